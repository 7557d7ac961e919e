// Real text for tests: the GPL-3, about 7,500 tokens.
#pragma once

#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace precis::test {

// A long text that every Debian has, or nothing where it is absent.
inline std::optional<std::string> sample_text() {
  std::ifstream file("/usr/share/common-licenses/GPL-3");
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace precis::test
