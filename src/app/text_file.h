// A document from disk as valid UTF-8.
#pragma once

#include <cstddef>
#include <string>

namespace precis::app {

struct TextFile {
  std::string text;
  std::size_t n_replaced = 0;  // invalid byte sequences that became U+FFFD
};

// "-" reads standard input. Throws Error(kIo).
TextFile read_text_file(const std::string& path);

}  // namespace precis::app
