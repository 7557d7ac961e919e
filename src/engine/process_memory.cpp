#include "engine/process_memory.h"

#include <fstream>
#include <string>

#ifdef __GLIBC__  // known only after a header of the library
#include <malloc.h>
#endif

namespace precis {
namespace {

std::size_t status_kib(const std::string& name) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line))
    if (line.starts_with(name)) return std::stoull(line.substr(name.size()));
  return 0;
}

}  // namespace

std::size_t resident_bytes() { return status_kib("VmRSS:") * 1024; }

std::size_t peak_resident_bytes() { return status_kib("VmHWM:") * 1024; }

void release_free_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

bool reset_peak_resident_bytes() {
  // "5" resets the high-water mark (proc(5), clear_refs).
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

}  // namespace precis
