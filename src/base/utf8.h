// Turns bytes that arrive in any split into whole UTF-8 characters. Invalid bytes become U+FFFD,
// one for each maximal part that begins like a character (Unicode 15, section 3.9, the practice of
// W3C decoders).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace precis {

class Utf8Assembler {
 public:
  // Returns the complete characters that are now known; keeps back an unfinished one.
  std::string push(std::string_view bytes);
  // Returns U+FFFD if an unfinished character is left, else nothing.
  std::string finish();
  // Characters replaced so far.
  std::size_t n_replaced() const { return n_replaced_; }

 private:
  std::string pending_;
  std::size_t n_replaced_ = 0;
};

}  // namespace precis
