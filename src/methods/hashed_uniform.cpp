#include "methods/hashed_uniform.h"

namespace precis {

float hashed_uniform(std::uint64_t seed, std::uint64_t token) {
  // SplitMix64 finaliser.
  std::uint64_t z = seed + 0x9e3779b97f4a7c15u * (token + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-24f;
}

}  // namespace precis
