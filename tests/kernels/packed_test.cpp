// Packed rows: the formats against their definition, attention over them against the oracle in
// double precision over the very numbers that are stored, for every instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <tuple>

#include "kernels/packed_rows.h"
#include "kernels/problem.h"
#include "kernels/row_type.h"

namespace precis::testing {
namespace {

constexpr RowType kTypes[] = {RowType::kF16, RowType::kQ8_0, RowType::kQ4};

// The entries of a problem, packed, and what the packed numbers mean.
struct Packed {
  Packed(const Problem& problem, const RowTypes& t) : types(t), d(problem.shape.head_dim) {
    n = problem.shape.n;
    const EntryView rows = problem.entries();
    std::vector<float> k(n * d), v(n * d);
    for (std::size_t i = 0; i < n * d; ++i) {
      k[i] = to_float(rows.keys[i]);
      v[i] = to_float(rows.values[i]);
    }
    // Exactly as long as the rows: nothing past the end may be read (the sanitizers see it).
    keys.resize(key_bytes(types.keys, d, n));
    values.resize(value_bytes(types.values, d, n));
    unpacked_keys.resize(n * d);
    unpacked_values.resize(n * d);
    for (std::size_t i = 0; i < n; i += kGroupEntries) {
      const std::size_t width = std::min(kGroupEntries, n - i);
      std::uint8_t* to_keys = keys.data() + key_bytes(types.keys, d, i);
      std::uint8_t* to_values = values.data() + value_bytes(types.values, d, i);
      pack_keys(types.keys, k.data() + i * d, width, d, to_keys);
      pack_values(types.values, v.data() + i * d, width, d, to_values);
      unpack_keys(types.keys, to_keys, width, d, unpacked_keys.data() + i * d);
      unpack_values(types.values, to_values, width, d, unpacked_values.data() + i * d);
    }
    bias = rows.bias;
  }
  PackedView view() const { return {keys.data(), values.data(), bias, n, types}; }

  RowTypes types;
  std::size_t d;
  std::size_t n;
  std::vector<std::uint8_t> keys, values;
  std::vector<float> unpacked_keys, unpacked_values;
  const float* bias = nullptr;
};

Result run_packed(const Problem& problem, const PackedView& view) {
  States states(problem.shape.n_tokens * problem.shape.group, problem.shape.head_dim);
  Scratch scratch;
  attend(problem.queries(), view, problem.rule, problem.visible.data(), states.view(), scratch);
  return finish(states, problem);
}

// Softmax attention in double over the unpacked numbers.
Expected reference_over(const Problem& problem, const Packed& packed) {
  const Shape& s = problem.shape;
  const QueryView q = problem.queries();
  Expected out;
  for (std::size_t r = 0; r < q.n_rows(); ++r) {
    const std::size_t t = r / s.group;
    const float* query = q.data + t * q.token_stride + r % s.group * s.head_dim;
    std::vector<double> z(s.n, -INFINITY);
    double max = -INFINITY;
    for (std::size_t j = problem.visible[t].first; j < problem.visible[t].last; ++j) {
      double dot = 0;
      for (std::size_t c = 0; c < s.head_dim; ++c)
        dot += static_cast<double>(query[c]) *
               static_cast<double>(packed.unpacked_keys[j * s.head_dim + c]);
      dot *= static_cast<double>(problem.rule.scale);
      if (s.softcap != 0.0f) {
        const double cap = static_cast<double>(s.softcap);
        dot = cap * std::tanh(dot / cap);
      }
      z[j] = dot + (packed.bias == nullptr ? 0.0 : static_cast<double>(packed.bias[j]));
      max = std::max(max, z[j]);
    }
    double sum = 0;
    std::vector<double> row(s.head_dim, 0.0);
    for (std::size_t j = 0; j < s.n && max > -INFINITY; ++j) {
      const double p = std::exp(z[j] - max);
      sum += p;
      for (std::size_t c = 0; c < s.head_dim; ++c)
        row[c] += p * static_cast<double>(packed.unpacked_values[j * s.head_dim + c]);
    }
    for (double& x : row) x = sum > 0 ? x / sum : 0.0;
    out.output.insert(out.output.end(), row.begin(), row.end());
    out.log_sum_exp.push_back(sum > 0 ? max + std::log(sum) : -INFINITY);
  }
  return out;
}

TEST(RowType, NamesAreFoundAgain) {
  for (RowType type : kTypes) EXPECT_EQ(find_row_type(row_type_name(type)), type);
  EXPECT_FALSE(find_row_type("q8").has_value());
  EXPECT_FALSE(find_row_type("").has_value());
}

TEST(RowType, BytesAreThoseOfTheFormat) {
  // 64 channels: f16 128 bytes; q8_0 64 + 2 scales; q4 values 32 + 2 * 4; q4 keys 32 and 256 a
  // group.
  EXPECT_EQ(key_bytes(RowType::kF16, 64, 100), 12800u);
  EXPECT_EQ(value_bytes(RowType::kQ8_0, 64, 100), 6800u);
  EXPECT_EQ(key_bytes(RowType::kQ8_0, 64, 100), 6800u);
  EXPECT_EQ(value_bytes(RowType::kQ4, 64, 100), 4000u);
  EXPECT_EQ(key_bytes(RowType::kQ4, 64, 96), 96u * 32 + 3 * 256);
  EXPECT_EQ(key_bytes(RowType::kQ4, 64, 99), 96u * 32 + 3 * 256 + 256 + 2 * 64);
  for (RowType k : kTypes)
    for (RowType v : kTypes)
      for (std::size_t n : {0u, 1u, 31u, 32u, 33u, 1000u})
        for (std::size_t cut = 0; cut <= n; ++cut)
          EXPECT_LE(row_bytes({k, v}, 64, cut) + row_bytes({k, v}, 64, n - cut),
                    most_row_bytes({k, v}, 64, n, 2));
}

TEST(Packing, ErrorIsAtMostHalfAStep) {
  for (std::size_t d : {32u, 64u, 256u}) {
    for (std::size_t n : {1u, 2u, 17u, 32u, 70u}) {
      const Problem problem({.head_dim = d, .n = n}, static_cast<std::uint32_t>(d + n));
      const EntryView rows = problem.entries();
      for (RowType type : kTypes) {
        const Packed packed(problem, {type, type});
        for (std::size_t j = 0; j < n; ++j) {
          for (std::size_t c = 0; c < d; ++c) {
            const float key = to_float(rows.keys[j * d + c]);
            const float value = to_float(rows.values[j * d + c]);
            float key_step = 0, value_step = 0;
            if (type == RowType::kQ8_0) {
              for (std::size_t i = c / 32 * 32; i < c / 32 * 32 + 32; ++i) {
                key_step = std::max(key_step, std::fabs(to_float(rows.keys[j * d + i])) / 127);
                value_step =
                    std::max(value_step, std::fabs(to_float(rows.values[j * d + i])) / 127);
              }
            } else if (type == RowType::kQ4) {
              float low = key, high = key;
              for (std::size_t i = j / 32 * 32; i < std::min(n, j / 32 * 32 + 32); ++i) {
                low = std::min(low, to_float(rows.keys[i * d + c]));
                high = std::max(high, to_float(rows.keys[i * d + c]));
              }
              key_step = (high - low) / 15;
              low = high = value;
              for (std::size_t i = c / 32 * 32; i < c / 32 * 32 + 32; ++i) {
                low = std::min(low, to_float(rows.values[j * d + i]));
                high = std::max(high, to_float(rows.values[j * d + i]));
              }
              value_step = (high - low) / 15;
            }
            // Half a step, and the rounding of scale and low to f16 (2^-11 of up to 15 steps).
            const float slack = 0.51f + (type == RowType::kQ4 ? 0.01f : 0.063f);
            const float low_error = type == RowType::kQ4 ? 0x1p-11f * 5.0f : 0.0f;
            ASSERT_LE(std::fabs(packed.unpacked_keys[j * d + c] - key),
                      slack * key_step + low_error)
                << row_type_name(type) << " d " << d << " n " << n;
            ASSERT_LE(std::fabs(packed.unpacked_values[j * d + c] - value),
                      slack * value_step + low_error);
          }
        }
      }
    }
  }
}

TEST(Packing, ExtremeNumbersStayFinite) {
  const float largest = 3.4e38f;
  std::vector<float> rows(kGroupEntries * 32);
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i] = i % 5 == 0   ? largest
              : i % 5 == 1 ? -largest
              : i % 5 == 2 ? 0.0f
              : i % 5 == 3 ? 1e-30f
                           : 7.0f;
  for (RowType type : kTypes) {
    std::vector<std::uint8_t> bytes(key_bytes(type, 32, kGroupEntries));
    std::vector<float> back(rows.size());
    pack_keys(type, rows.data(), kGroupEntries, 32, bytes.data());
    unpack_keys(type, bytes.data(), kGroupEntries, 32, back.data());
    for (float x : back) ASSERT_TRUE(std::isfinite(x)) << row_type_name(type);
    bytes.resize(value_bytes(type, 32, kGroupEntries));
    pack_values(type, rows.data(), kGroupEntries, 32, bytes.data());
    unpack_values(type, bytes.data(), kGroupEntries, 32, back.data());
    for (float x : back) ASSERT_TRUE(std::isfinite(x)) << row_type_name(type);
  }
}

class PackedAttend : public ::testing::TestWithParam<std::tuple<RowType, RowType>> {};

void check(const Shape& shape, const RowTypes& types, std::uint32_t seed) {
  SCOPED_TRACE(shape.describe() + " keys " + row_type_name(types.keys) + " values " +
               row_type_name(types.values));
  const Problem problem(shape, seed);
  const Packed packed(problem, types);
  const Expected expected = reference_over(problem, packed);
  for (std::int64_t target : instruction_sets()) {
    const UseInstructionSet use(target);
    SCOPED_TRACE(instruction_set_name());
    expect_close(problem, run_packed(problem, packed.view()), expected);
  }
}

TEST_P(PackedAttend, AgreesWithOracle) {
  const auto [keys, values] = GetParam();
  std::uint32_t seed = 1;
  for (std::size_t d : {32u, 64u, 96u, 256u})
    for (std::size_t group : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 11u})
      for (std::size_t n : {1u, 31u, 32u, 33u, 64u, 100u, 200u}) {
        ++seed;
        const Bias biases[] = {Bias::kNone, Bias::kFinite, Bias::kMixed, Bias::kAllHidden};
        const Range ranges[] = {Range::kAll, Range::kCausal, Range::kWindow, Range::kGaps,
                                Range::kRandom};
        check({.head_dim = d,
               .group = group,
               .n_tokens = 1 + seed % 3,
               .n = n,
               .bias = biases[seed % 4],
               .range = ranges[seed % 5],
               .data = seed % 7 == 0 ? Data::kSteep : Data::kNormal,
               .softcap = seed % 11 == 0 ? 30.0f : 0.0f},
              {keys, values}, seed);
      }
}

TEST_P(PackedAttend, LongLists) {
  const auto [keys, values] = GetParam();
  check({.head_dim = 64, .group = 3, .n = 4097, .bias = Bias::kMixed}, {keys, values}, 5);
}

TEST_P(PackedAttend, RowsDoNotSeeEachOther) {
  const auto [keys, values] = GetParam();
  const Problem problem({.group = 7, .n_tokens = 5, .n = 150, .range = Range::kCausal}, 17);
  const Packed packed(problem, {keys, values});
  for (std::int64_t target : instruction_sets()) {
    const UseInstructionSet use(target);
    const Result all = run_packed(problem, packed.view());
    for (std::size_t t = 0; t < 5; ++t) {
      for (std::size_t j = 0; j < 7; ++j) {
        QueryView one = problem.queries();
        one.data += t * one.token_stride + j * one.head_dim;
        one.n_tokens = 1;
        one.group = 1;
        States states(1, 64);
        Scratch scratch;
        attend(one, packed.view(), problem.rule, &problem.visible[t], states.view(), scratch);
        std::vector<float> out(64);
        finish_states(states.view(), 1, 1, 64, 64, out.data(), nullptr);
        const auto from = all.output.begin() + static_cast<std::ptrdiff_t>((t * 7 + j) * 64);
        ASSERT_TRUE(same_bits(out, std::vector<float>(from, from + 64)));
      }
    }
  }
}

// The last entries of a list are stored in a shorter group: the bits must not show it.
TEST_P(PackedAttend, ShorterListsGiveTheBitsOfHiddenEntries) {
  const auto [keys, values] = GetParam();
  const Problem problem({.group = 3, .n = 128}, 23);
  const Packed whole(problem, {keys, values});
  for (std::size_t n : {1u, 31u, 32u, 45u, 96u, 127u}) {
    // The scales of a group of q4 keys depend on all of it.
    if (keys == RowType::kQ4 && n % kGroupEntries != 0) continue;
    Problem part = problem;
    part.shape.n = n;
    const Packed shorter(part, {keys, values});
    const Visible seen{0, static_cast<std::uint32_t>(n)};
    part.visible = {seen};
    EXPECT_TRUE(
        same_bits(run_packed(part, shorter.view()).output, run_packed(part, whole.view()).output))
        << n;
  }
}

TEST(PackedAttendF16, AgreesWithRowsAsTheyAre) {
  for (std::size_t d : {8u, 72u, 80u, 512u}) {
    const Problem problem(
        {.head_dim = d, .group = 5, .n_tokens = 2, .n = 131, .range = Range::kCausal},
        static_cast<std::uint32_t>(d));
    const Packed packed(problem, {});
    const Expected expected = run_reference(problem);
    for (std::int64_t target : instruction_sets()) {
      const UseInstructionSet use(target);
      expect_close(problem, run_packed(problem, packed.view()), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, PackedAttend,
                         ::testing::Combine(::testing::ValuesIn(kTypes),
                                            ::testing::ValuesIn(kTypes)),
                         [](const auto& info) {
                           return std::string(row_type_name(std::get<0>(info.param))) + "_" +
                                  row_type_name(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace precis::testing
