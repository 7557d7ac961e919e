// Packing: done once per entry when a cache is frozen, so plain C++ (8,000 tokens of a layer take a
// few milliseconds).
#include "kernels/packed_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "kernels/packed_groups.h"

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

// Where the parts of a group of n entries lie, in bytes from its start.
struct Q8Group {
  std::size_t n;
  std::size_t d;
  std::size_t scale(std::size_t block, std::size_t entry) const {
    return n * d + (block * n + entry) * sizeof(Half);
  }
  std::size_t key(std::size_t entry, std::size_t channel) const {
    return (channel / 2 * n + entry) * 2 + channel % 2;
  }
  std::size_t value(std::size_t entry, std::size_t channel) const {
    const std::size_t first = entry / 2 * 2;
    return first * d + channel * std::min<std::size_t>(2, n - first) + entry % 2;
  }
};

struct Q4Group {
  static constexpr std::size_t kHalf = kBlockChannels / 2;
  std::size_t n;
  std::size_t d;
  std::size_t channel_scale(std::size_t channel) const { return channel * sizeof(Half); }
  std::size_t channel_low(std::size_t channel) const { return (d + channel) * sizeof(Half); }
  std::size_t entry_scale(std::size_t block, std::size_t entry) const {
    return n * d / 2 + (block * n + entry) * sizeof(Half);
  }
  std::size_t entry_low(std::size_t block, std::size_t entry) const {
    return entry_scale(d / kBlockChannels + block, entry);
  }
  std::size_t key(std::size_t entry, std::size_t channel) const {
    const std::size_t four = channel / kBlockChannels * 4 + channel % kHalf / 4;
    return 2 * d * sizeof(Half) + (four * n + entry) * 4 + channel % 4;
  }
  std::size_t value(std::size_t entry, std::size_t channel) const {
    const std::size_t first = entry / 4 * 4;
    const std::size_t column = channel / kBlockChannels * kHalf + channel % kHalf;
    return first * d / 2 + column * std::min<std::size_t>(4, n - first) + entry % 4;
  }
  static bool is_high(std::size_t channel) { return channel % kBlockChannels >= kHalf; }
  static std::uint8_t placed(std::uint8_t code, std::size_t channel) {
    return static_cast<std::uint8_t>(is_high(channel) ? code << 4 : code);
  }
  static float code(std::uint8_t byte, std::size_t channel) {
    return static_cast<float>(is_high(channel) ? byte >> 4 : byte & 15);
  }
};

void pack_keys_q4(const float* rows, std::size_t n, std::size_t d, std::uint8_t* out) {
  const Q4Group group{n, d};
  std::fill(out, out + key_bytes(RowType::kQ4, d, n), std::uint8_t{0});
  for (std::size_t c = 0; c < d; ++c) {
    float lowest = rows[c];
    float highest = rows[c];
    for (std::size_t i = 1; i < n; ++i) {
      lowest = std::min(lowest, rows[i * d + c]);
      highest = std::max(highest, rows[i * d + c]);
    }
    const Affine affine(lowest, highest);
    put(out + group.channel_scale(c), affine.scale);
    put(out + group.channel_low(c), affine.low);
    for (std::size_t i = 0; i < n; ++i)
      out[group.key(i, c)] |= Q4Group::placed(affine.pack(rows[i * d + c]), c);
  }
}

void pack_values_q4(const float* rows, std::size_t n, std::size_t d, std::uint8_t* out) {
  const Q4Group group{n, d};
  std::fill(out, out + value_bytes(RowType::kQ4, d, n), std::uint8_t{0});
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t b = 0; b < d / kBlockChannels; ++b) {
      const float* x = rows + i * d + b * kBlockChannels;
      const auto [lowest, highest] = std::minmax_element(x, x + kBlockChannels);
      const Affine affine(*lowest, *highest);
      put(out + group.entry_scale(b, i), affine.scale);
      put(out + group.entry_low(b, i), affine.low);
      for (std::size_t c = 0; c < kBlockChannels; ++c)
        out[group.value(i, b * kBlockChannels + c)] |= Q4Group::placed(affine.pack(x[c]), c);
    }
  }
}

template <class Place>
void pack_q8(const float* rows, const Q8Group& group, const Place& place, std::uint8_t* out) {
  for (std::size_t i = 0; i < group.n; ++i) {
    for (std::size_t b = 0; b < group.d / kBlockChannels; ++b) {
      const float* x = rows + i * group.d + b * kBlockChannels;
      const Symmetric symmetric(block_largest(x));
      put(out + group.scale(b, i), symmetric.scale);
      for (std::size_t c = 0; c < kBlockChannels; ++c)
        out[place(i, b * kBlockChannels + c)] = static_cast<std::uint8_t>(symmetric.pack(x[c]));
    }
  }
}

// rows[i][c] = number(i, c)
template <class Number>
void fill_rows(std::size_t n, std::size_t d, float* rows, const Number& number) {
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t c = 0; c < d; ++c) rows[i * d + c] = number(i, c);
}

// n_lines lines of n elements as lines of kGroupEntries, zeros added.
void pad_lines(const std::uint8_t* from, std::size_t n_lines, std::size_t n, std::size_t size,
               std::uint8_t* to) {
  std::memset(to, 0, n_lines * kGroupEntries * size);
  for (std::size_t line = 0; line < n_lines; ++line)
    std::memcpy(to + line * kGroupEntries * size, from + line * n * size, n * size);
}

// n entries of values, `width` bytes each, `together` of them side by side, as kGroupEntries.
void pad_entries(const std::uint8_t* from, std::size_t n, std::size_t width, std::size_t together,
                 std::uint8_t* to) {
  const std::size_t rest = n % together;
  const std::size_t whole = (n - rest) * width;
  std::memcpy(to, from, whole);
  std::memset(to + whole, 0, kGroupEntries * width - whole);
  for (std::size_t x = 0; x < width; ++x)
    for (std::size_t j = 0; j < rest; ++j)
      to[whole + x * together + j] = from[whole + x * rest + j];
}

}  // namespace

void pack_keys(RowType type, const float* rows, std::size_t n, std::size_t d, std::uint8_t* out) {
  const Q8Group q8{n, d};
  const auto place = [&](std::size_t i, std::size_t c) { return q8.key(i, c); };
  switch (type) {
    case RowType::kF16:
      for (std::size_t c = 0; c < d; ++c)
        for (std::size_t i = 0; i < n; ++i)
          put(out + (c * n + i) * sizeof(Half), saturated(rows[i * d + c]));
      return;
    case RowType::kQ8_0:
      return pack_q8(rows, q8, place, out);
    case RowType::kQ4:
      return pack_keys_q4(rows, n, d, out);
  }
}

void pack_values(RowType type, const float* rows, std::size_t n, std::size_t d, std::uint8_t* out) {
  const Q8Group q8{n, d};
  const auto place = [&](std::size_t i, std::size_t c) { return q8.value(i, c); };
  switch (type) {
    case RowType::kF16:
      for (std::size_t i = 0; i < n * d; ++i) put(out + i * sizeof(Half), saturated(rows[i]));
      return;
    case RowType::kQ8_0:
      return pack_q8(rows, q8, place, out);
    case RowType::kQ4:
      return pack_values_q4(rows, n, d, out);
  }
}

void unpack_keys(RowType type, const std::uint8_t* group, std::size_t n, std::size_t d,
                 float* rows) {
  const Q8Group q8{n, d};
  const Q4Group q4{n, d};
  fill_rows(n, d, rows, [&](std::size_t i, std::size_t c) {
    if (type == RowType::kF16) return to_float(get(group + (c * n + i) * sizeof(Half)));
    if (type == RowType::kQ8_0)
      return to_float(get(group + q8.scale(c / kBlockChannels, i))) *
             static_cast<float>(static_cast<std::int8_t>(group[q8.key(i, c)]));
    return to_float(get(group + q4.channel_low(c))) +
           to_float(get(group + q4.channel_scale(c))) * Q4Group::code(group[q4.key(i, c)], c);
  });
}

void unpack_values(RowType type, const std::uint8_t* group, std::size_t n, std::size_t d,
                   float* rows) {
  const Q8Group q8{n, d};
  const Q4Group q4{n, d};
  fill_rows(n, d, rows, [&](std::size_t i, std::size_t c) {
    const std::size_t b = c / kBlockChannels;
    if (type == RowType::kF16) return to_float(get(group + (i * d + c) * sizeof(Half)));
    if (type == RowType::kQ8_0)
      return to_float(get(group + q8.scale(b, i))) *
             static_cast<float>(static_cast<std::int8_t>(group[q8.value(i, c)]));
    return to_float(get(group + q4.entry_low(b, i))) +
           to_float(get(group + q4.entry_scale(b, i))) * Q4Group::code(group[q4.value(i, c)], c);
  });
}

void pad_key_group(RowType type, const std::uint8_t* group, std::size_t n, std::size_t d,
                   std::uint8_t* out) {
  const std::size_t n_blocks = d / kBlockChannels;
  if (type == RowType::kF16) return pad_lines(group, d, n, sizeof(Half), out);
  if (type == RowType::kQ8_0) {
    pad_lines(group, d / 2, n, 2, out);
    return pad_lines(group + n * d, n_blocks, n, sizeof(Half), out + kGroupEntries * d);
  }
  const std::size_t header = 2 * d * sizeof(Half);
  std::memcpy(out, group, header);
  pad_lines(group + header, n_blocks * 4, n, 4, out + header);
}

void pad_value_group(RowType type, const std::uint8_t* group, std::size_t n, std::size_t d,
                     std::uint8_t* out) {
  const bool q4 = type == RowType::kQ4;
  const std::size_t width = type == RowType::kF16 ? d * sizeof(Half) : q4 ? d / 2 : d;
  pad_entries(group, n, width, type == RowType::kF16 ? 1 : q4 ? 4 : 2, out);
  const std::size_t lines = type == RowType::kF16 ? 0 : d / kBlockChannels * (q4 ? 2 : 1);
  pad_lines(group + n * width, lines, n, sizeof(Half), out + kGroupEntries * width);
}

}  // namespace precis
