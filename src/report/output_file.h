// Files that are complete or not there.
#pragma once

#include <string>
#include <string_view>

namespace precis {

// Writes to a temporary name beside `path`, then renames, so that an older file of that name stays
// whole until the new one is. What is no regular file (a device, a pipe) is written directly.
// Throws Error(kIo) with the name; nothing is left behind then.
void write_file(const std::string& path, std::string_view text);

}  // namespace precis
