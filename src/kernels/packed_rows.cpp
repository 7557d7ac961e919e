// Packing: done once per entry when a cache is frozen, so plain C++ (8,000 tokens of a layer take a
// few milliseconds).
#include "kernels/packed_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"

namespace precis {
namespace {

constexpr float kLargestHalf = 65504.0f;

Half saturated(float x) { return to_half(std::clamp(x, -kLargestHalf, kLargestHalf)); }

void put(std::uint8_t* to, Half x) { std::memcpy(to, &x, sizeof x); }
Half get(const std::uint8_t* from) {
  Half x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

std::size_t half_of(std::size_t n) { return (n + 1) / 2; }

// x ~ scale * i with |i| <= 127.
struct Symmetric {
  Half scale{};
  float inverse = 0.0f;
  explicit Symmetric(float largest) {
    scale = saturated(largest / 127.0f);
    const float rounded = to_float(scale);
    inverse = rounded > 0.0f ? 1.0f / rounded : 0.0f;
  }
  std::int8_t pack(float x) const {
    return static_cast<std::int8_t>(std::lrint(std::clamp(x * inverse, -127.0f, 127.0f)));
  }
};

// x ~ low + scale * u with u in 0..15.
struct Affine {
  Half scale{};
  Half low{};
  float base = 0.0f;
  float inverse = 0.0f;
  Affine(float lowest, float highest) {
    low = saturated(lowest);
    base = to_float(low);
    scale = saturated((std::min(highest, kLargestHalf) - base) / 15.0f);
    const float rounded = to_float(scale);
    inverse = rounded > 0.0f ? 1.0f / rounded : 0.0f;
  }
  std::uint8_t pack(float x) const {
    return static_cast<std::uint8_t>(std::lrint(std::clamp((x - base) * inverse, 0.0f, 15.0f)));
  }
};

float block_largest(const float* x) {
  float largest = 0.0f;
  for (std::size_t i = 0; i < kBlockChannels; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

// Where the parts of a group lie.
struct Q8Group {
  std::size_t scales;  // bytes before them
  Q8Group(std::size_t n, std::size_t d) : scales(n * d) {}
  std::size_t scale(std::size_t block, std::size_t entry, std::size_t n) const {
    return scales + (block * n + entry) * sizeof(Half);
  }
};

void pack_keys_q4(const float* rows, std::size_t n, std::size_t d, std::uint8_t* out) {
  std::uint8_t* codes = out + 2 * d * sizeof(Half);
  const std::size_t half = half_of(n);
  std::fill(codes, codes + d * half, std::uint8_t{0});
  for (std::size_t c = 0; c < d; ++c) {
    float lowest = rows[c];
    float highest = rows[c];
    for (std::size_t i = 1; i < n; ++i) {
      lowest = std::min(lowest, rows[i * d + c]);
      highest = std::max(highest, rows[i * d + c]);
    }
    const Affine affine(lowest, highest);
    put(out + c * sizeof(Half), affine.scale);
    put(out + (d + c) * sizeof(Half), affine.low);
    for (std::size_t i = 0; i < n; ++i) {
      const auto code = static_cast<unsigned>(affine.pack(rows[i * d + c]));
      std::uint8_t& byte = codes[c * half + i % half];
      byte = static_cast<std::uint8_t>(byte | (i < half ? code : code << 4));
    }
  }
}

void pack_values_q4(const float* rows, std::size_t n, std::size_t d, std::uint8_t* out) {
  const std::size_t n_blocks = d / kBlockChannels;
  std::uint8_t* scales = out + n * d / 2;
  std::uint8_t* lows = scales + n_blocks * n * sizeof(Half);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t b = 0; b < n_blocks; ++b) {
      const float* x = rows + i * d + b * kBlockChannels;
      const auto [lowest, highest] = std::minmax_element(x, x + kBlockChannels);
      const Affine affine(*lowest, *highest);
      put(scales + (b * n + i) * sizeof(Half), affine.scale);
      put(lows + (b * n + i) * sizeof(Half), affine.low);
      std::uint8_t* codes = out + (i * d + b * kBlockChannels) / 2;
      for (std::size_t c = 0; c < kBlockChannels / 2; ++c)
        codes[c] = static_cast<std::uint8_t>(affine.pack(x[c]) |
                                             affine.pack(x[c + kBlockChannels / 2]) << 4);
    }
  }
}

}  // namespace

void pack_keys(RowType type, const float* rows, std::size_t n, std::size_t d, std::uint8_t* out) {
  if (type == RowType::kQ4) return pack_keys_q4(rows, n, d, out);
  if (type == RowType::kF16) {
    for (std::size_t c = 0; c < d; ++c)
      for (std::size_t i = 0; i < n; ++i)
        put(out + (c * n + i) * sizeof(Half), saturated(rows[i * d + c]));
    return;
  }
  const Q8Group group(n, d);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t b = 0; b < d / kBlockChannels; ++b) {
      const float* x = rows + i * d + b * kBlockChannels;
      const Symmetric symmetric(block_largest(x));
      put(out + group.scale(b, i, n), symmetric.scale);
      for (std::size_t c = 0; c < kBlockChannels; ++c)
        out[(b * kBlockChannels + c) * n + i] = static_cast<std::uint8_t>(symmetric.pack(x[c]));
    }
  }
}

void pack_values(RowType type, const float* rows, std::size_t n, std::size_t d, std::uint8_t* out) {
  if (type == RowType::kQ4) return pack_values_q4(rows, n, d, out);
  if (type == RowType::kF16) {
    for (std::size_t i = 0; i < n * d; ++i) put(out + i * sizeof(Half), saturated(rows[i]));
    return;
  }
  const Q8Group group(n, d);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t b = 0; b < d / kBlockChannels; ++b) {
      const float* x = rows + i * d + b * kBlockChannels;
      const Symmetric symmetric(block_largest(x));
      put(out + group.scale(b, i, n), symmetric.scale);
      for (std::size_t c = 0; c < kBlockChannels; ++c)
        out[i * d + b * kBlockChannels + c] = static_cast<std::uint8_t>(symmetric.pack(x[c]));
    }
  }
}

void unpack_keys(RowType type, const std::uint8_t* group, std::size_t n, std::size_t d,
                 float* rows) {
  const Q8Group q8(n, d);
  const std::size_t half = half_of(n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t c = 0; c < d; ++c) {
      float& x = rows[i * d + c];
      if (type == RowType::kF16) {
        x = to_float(get(group + (c * n + i) * sizeof(Half)));
      } else if (type == RowType::kQ8_0) {
        x = to_float(get(group + q8.scale(c / kBlockChannels, i, n))) *
            static_cast<float>(static_cast<std::int8_t>(group[c * n + i]));
      } else {
        const unsigned byte = group[2 * d * sizeof(Half) + c * half + i % half];
        const unsigned code = i < half ? byte & 15u : byte >> 4;
        x = to_float(get(group + (d + c) * sizeof(Half))) +
            to_float(get(group + c * sizeof(Half))) * static_cast<float>(code);
      }
    }
  }
}

void unpack_values(RowType type, const std::uint8_t* group, std::size_t n, std::size_t d,
                   float* rows) {
  const Q8Group q8(n, d);
  const std::size_t n_blocks = d / kBlockChannels;
  const std::uint8_t* scales = group + n * d / 2;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t c = 0; c < d; ++c) {
      float& x = rows[i * d + c];
      const std::size_t b = c / kBlockChannels;
      if (type == RowType::kF16) {
        x = to_float(get(group + (i * d + c) * sizeof(Half)));
      } else if (type == RowType::kQ8_0) {
        x = to_float(get(group + q8.scale(b, i, n))) *
            static_cast<float>(static_cast<std::int8_t>(group[i * d + c]));
      } else {
        constexpr std::size_t kHalf = kBlockChannels / 2;
        const std::size_t in_block = c % kBlockChannels;
        const unsigned byte = group[(i * d + b * kBlockChannels) / 2 + in_block % kHalf];
        const unsigned code = in_block < kHalf ? byte & 15u : byte >> 4;
        x = to_float(get(scales + ((n_blocks + b) * n + i) * sizeof(Half))) +
            to_float(get(scales + (b * n + i) * sizeof(Half))) * static_cast<float>(code);
      }
    }
  }
}

}  // namespace precis
