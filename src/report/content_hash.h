// SHA-256, by which results name the model and the inputs that they come from.
#pragma once

#include <span>
#include <string>

namespace precis {

// Lower-case hexadecimal.
std::string sha256_of_bytes(std::span<const char> bytes);
// Of a file, read once from its beginning; "-" is not special. Throws Error(kIo) with its name.
std::string sha256_of_file(const std::string& path);

}  // namespace precis
