// Plain English words for keys and lists. All are lower-case ASCII letters, and no word is in both
// lists or twice in one.
#pragma once

#include <string>
#include <vector>

namespace precis {

// At least 500.
const std::vector<std::string>& plain_nouns();
// At least 250.
const std::vector<std::string>& plain_adjectives();

}  // namespace precis
