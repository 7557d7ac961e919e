#include "store/checksum.h"

#define XXH_INLINE_ALL
#include <hash/xxhash/xxhash.h>

namespace precis {

struct Checksum::State {
  XXH64_state_t xxh;
};

Checksum::Checksum(std::uint64_t seed) : state_(std::make_unique<State>()) {
  XXH64_reset(&state_->xxh, seed);
}
Checksum::~Checksum() = default;

void Checksum::add(const void* bytes, std::size_t n) {
  if (n > 0) XXH64_update(&state_->xxh, bytes, n);
}

std::uint64_t Checksum::value() const { return XXH64_digest(&state_->xxh); }

std::uint64_t checksum_of(const void* bytes, std::size_t n, std::uint64_t seed) {
  return XXH64(bytes, n, seed);
}

}  // namespace precis
