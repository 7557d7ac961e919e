// A document from disk as valid UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace precis::app {

struct TextFile {
  std::string text;
  std::size_t n_replaced = 0;  // invalid byte sequences that became U+FFFD
};

// "-" reads standard input. Throws Error(kIo).
TextFile read_text_file(const std::string& path);
// The text; says on stderr where it is not valid UTF-8.
std::string read_text(const std::string& path);

// A folder stands for its files, in order of name. Throws Error(kInvalidArgument) for standard
// input, which cannot be read again, and Error(kIo) for a folder without files.
std::vector<std::string> list_files(const std::vector<std::string>& paths);

}  // namespace precis::app
