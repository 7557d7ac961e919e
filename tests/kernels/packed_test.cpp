// Packed rows: the formats against their definition, attention over them against an oracle in
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

// What the kernel may differ by from the oracle, where it rounds queries and probabilities to whole
// numbers: a number that f32 cannot tell from the middle between two may go either way.
struct Freedom {
  std::vector<double> output;       // [n_rows, head_dim]
  std::vector<double> log_sum_exp;  // [n_rows]
};

// 32 numbers rounded to `most` steps of the largest.
struct Rounded {
  double step = 0;
  std::vector<double> codes;
  std::vector<double> doubt;  // steps by which f32 may differ
  // error: of the numbers, relative, beyond f32's rounding of the division and the product.
  Rounded(const std::vector<double>& x, double most, double error) {
    double largest = 0;
    for (double number : x) largest = std::max(largest, std::fabs(number));
    step = largest / most;
    for (double number : x) {
      const double exact = step > 0 ? number / step : 0.0;
      codes.push_back(std::nearbyint(exact));
      const double off = std::fabs(exact) * (error + 4 * detail::kUlp);
      const double to_middle = 0.5 - std::fabs(exact - codes.back());
      doubt.push_back(off < to_middle ? 0.0 : std::ceil(off - to_middle + 1e-12));
    }
  }
};

double most_codes(RowType type) { return type == RowType::kQ4 ? 127.0 : 4095.0; }

// Attention in double over the unpacked numbers, queries and probabilities rounded as packed_rows.h
// says; or, not rounding, what that is meant to be.
class RoundingOracle {
 public:
  RoundingOracle(const Problem& problem, const Packed& packed, bool rounds = true)
      : problem_(problem),
        packed_(packed),
        d_(packed.d),
        n_(packed.n),
        logit_error_(problem.logit_error()),
        rounds_(rounds) {
    const QueryView q = problem.queries();
    for (std::size_t r = 0; r < q.n_rows(); ++r) {
      const std::size_t t = r / q.group;
      add_row(q.data + t * q.token_stride + r % q.group * d_, problem.visible[t]);
    }
  }

  Expected expected;
  Freedom freedom;

 private:
  // Of entry (or channel) i in a group: x = low + scale * u; middle is what is not rounded away.
  double half(const std::uint8_t* at, std::size_t i) const {
    Half x;
    std::memcpy(&x, at + i * sizeof x, sizeof x);
    return static_cast<double>(to_float(x));
  }

  void add_row(const float* query, const Visible& visible) {
    std::vector<double> z(n_, -INFINITY);
    double doubt = 0;  // of a logit
    for (std::size_t g = 0; g < n_; g += kGroupEntries)
      doubt = std::max(doubt, logits_of_group(query, g, z));
    double max = -INFINITY;
    for (std::size_t j = 0; j < n_; ++j) {
      const double bias = packed_.bias == nullptr ? 0.0 : static_cast<double>(packed_.bias[j]);
      z[j] = j < visible.first || j >= visible.last ? -INFINITY : z[j] + bias;
      max = std::max(max, z[j]);
    }
    std::vector<double> row(d_, 0.0), free(d_, 0.0);
    double sum = 0;
    for (double& p : z) sum += p = max > -INFINITY ? std::exp(p - max) : 0.0;
    for (double& p : z) p = sum > 0 ? p / sum : 0.0;
    const double error = std::expm1(2 * (doubt + logit_error_));
    for (std::size_t g = 0; g < n_; g += kGroupEntries)
      for (std::size_t b = 0; b < d_; b += kBlockChannels)
        values_of_block(z, g, b, error, row, free);
    for (std::size_t c = 0; c < d_; ++c) {
      double spread = 0;
      for (std::size_t j = 0; j < n_; ++j)
        spread +=
            z[j] * std::fabs(static_cast<double>(packed_.unpacked_values[j * d_ + c]) - row[c]);
      free[c] += std::expm1(2 * doubt) * spread;
    }
    expected.output.insert(expected.output.end(), row.begin(), row.end());
    expected.log_sum_exp.push_back(sum > 0 ? max + std::log(sum) : -INFINITY);
    freedom.output.insert(freedom.output.end(), free.begin(), free.end());
    freedom.log_sum_exp.push_back(doubt);
  }

  // Returns by how much a logit may differ.
  double logits_of_group(const float* query, std::size_t g, std::vector<double>& z) const {
    const RowType type = packed_.types.keys;
    const std::size_t end = std::min(n_, g + kGroupEntries);
    std::vector<double> dot(kGroupEntries, 0.0), free(kGroupEntries, 0.0);
    for (std::size_t c = 0; c < d_; c += kBlockChannels) {
      const std::size_t width = std::min(kBlockChannels, d_ - c);
      const std::uint8_t* group = packed_.keys.data() + key_bytes(type, d_, g);
      std::vector<double> scale(width, 1.0), middle(width, 0.0), x;
      for (std::size_t i = 0; i < width; ++i) {
        if (type == RowType::kQ4) {
          scale[i] = half(group, c + i);
          middle[i] = half(group, d_ + c + i) + 7.5 * scale[i];
        }
        x.push_back(static_cast<double>(query[c + i]) * scale[i]);
      }
      const Rounded rounded(x, most_codes(type), 0);
      for (std::size_t j = g; j < end; ++j) {
        for (std::size_t i = 0; i < width; ++i) {
          const double key = static_cast<double>(packed_.unpacked_keys[j * d_ + c + i]);
          const double q = static_cast<double>(query[c + i]);
          const double rest = scale[i] > 0 ? (key - middle[i]) / scale[i] : 0.0;
          dot[j - g] += type == RowType::kF16 || !rounds_
                            ? q * key
                            : q * middle[i] + rounded.codes[i] * rounded.step * rest;
          if (type != RowType::kF16)
            free[j - g] += rounded.doubt[i] * rounded.step * std::fabs(rest);
        }
      }
    }
    double most = 0;
    for (std::size_t j = g; j < end; ++j) {
      z[j] = dot[j - g] * static_cast<double>(problem_.rule.scale);
      most = std::max(most, free[j - g] * static_cast<double>(problem_.rule.scale));
      const double cap = static_cast<double>(problem_.rule.softcap);
      if (cap != 0) z[j] = cap * std::tanh(z[j] / cap);
    }
    return most;
  }

  // Adds what the entries of a group contribute to the channels of a block.
  void values_of_block(const std::vector<double>& p, std::size_t g, std::size_t b, double error,
                       std::vector<double>& row, std::vector<double>& free) const {
    const RowType type = packed_.types.values;
    const std::size_t n = std::min(kGroupEntries, n_ - g);
    const std::size_t n_blocks = d_ / kBlockChannels;
    const std::uint8_t* scales =
        packed_.values.data() + value_bytes(type, d_, g) + n * (type == RowType::kQ4 ? d_ / 2 : d_);
    std::vector<double> scale(n, 1.0), middle(n, 0.0), x;
    for (std::size_t i = 0; i < n; ++i) {
      if (type != RowType::kF16) scale[i] = half(scales, b / kBlockChannels * n + i);
      if (type == RowType::kQ4)
        middle[i] = half(scales, (n_blocks + b / kBlockChannels) * n + i) + 7.5 * scale[i];
      x.push_back(p[g + i] * scale[i]);
    }
    const Rounded rounded(x, most_codes(type), error);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t c = b; c < std::min(d_, b + kBlockChannels); ++c) {
        const double value = static_cast<double>(packed_.unpacked_values[(g + i) * d_ + c]);
        if (type == RowType::kF16 || !rounds_) {
          row[c] += p[g + i] * value;
          continue;
        }
        const double rest = scale[i] > 0 ? (value - middle[i]) / scale[i] : 0.0;
        row[c] += p[g + i] * middle[i] + rounded.codes[i] * rounded.step * rest;
        free[c] += rounded.doubt[i] * rounded.step * std::fabs(rest);
      }
    }
  }

  const Problem& problem_;
  const Packed& packed_;
  std::size_t d_;
  std::size_t n_;
  double logit_error_;
  bool rounds_;
};

// Sums of q4 are taken in three parts, each of the size of the whole.
constexpr double kParts = 3;

void expect_rounded(const Problem& problem, const Result& result, const RoundingOracle& oracle) {
  const std::size_t d = problem.shape.head_dim;
  const double value_error = kParts * problem.value_error();
  const double logit_error = kParts * problem.logit_error();
  for (std::size_t i = 0; i < result.output.size(); ++i) {
    const double got = static_cast<double>(result.output[i]);
    const double want = oracle.expected.output[i];
    const double tolerance = value_error + oracle.freedom.output[i];
    if (!(std::fabs(got - want) <= tolerance))
      FAIL() << "row " << i / d << " channel " << i % d << ": " << got << " instead of " << want
             << ", tolerance " << tolerance;
  }
  for (std::size_t r = 0; r < result.log_sum_exp.size(); ++r) {
    const double got = static_cast<double>(result.log_sum_exp[r]);
    const double want = oracle.expected.log_sum_exp[r];
    if (std::isinf(want)) {
      ASSERT_EQ(got, want) << "row " << r;
      for (std::size_t c = 0; c < d; ++c) ASSERT_EQ(result.output[r * d + c], 0.0f) << "row " << r;
      continue;
    }
    const double sums = (4 * std::sqrt(static_cast<double>(problem.shape.n)) + 8) * detail::kUlp;
    ASSERT_NEAR(
        got, want,
        logit_error + oracle.freedom.log_sum_exp[r] + sums + 2 * detail::kUlp * std::fabs(want))
        << "row " << r;
  }
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
  EXPECT_EQ(key_bytes(RowType::kQ4, 64, 99), 99u * 32 + 4 * 256);
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
  const RoundingOracle oracle(problem, packed);
  for (std::int64_t target : instruction_sets()) {
    const UseInstructionSet use(target);
    SCOPED_TRACE(instruction_set_name());
    expect_rounded(problem, run_packed(problem, packed.view()), oracle);
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

TEST_P(PackedAttend, ListsOfEverySize) {
  const auto [keys, values] = GetParam();
  for (std::size_t n = 1; n <= 65; ++n)
    check({.head_dim = 32, .group = 1 + n % 8, .n = n}, {keys, values},
          static_cast<std::uint32_t>(n));
  for (const std::size_t d : {64u, 128u, 512u})
    for (const std::size_t n : {29u, 61u, 97u})
      check({.head_dim = d, .group = 15, .n_tokens = 2, .n = n, .range = Range::kCausal},
            {keys, values}, static_cast<std::uint32_t>(d + n));
}

TEST_P(PackedAttend, LongLists) {
  const auto [keys, values] = GetParam();
  check({.head_dim = 64, .group = 3, .n = 4097, .bias = Bias::kMixed}, {keys, values}, 5);
}

// Root mean square of the differences.
template <class A, class B>
double distance(const A& a, const B& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

// Rounding queries and probabilities disturbs outputs by less than a third of what rounding the
// rows did, also where channels of keys, or entries of values, differ in size by orders of
// magnitude. Measured: 0.05 for q8_0 and 0.11 for q4 on even data; at most 0.23, of q4 on uneven
// data.
TEST_P(PackedAttend, RoundingOfTheOtherFactorAddsLittle) {
  const auto [keys, values] = GetParam();
  if (keys == RowType::kF16 && values == RowType::kF16) return;
  for (const bool uneven : {false, true}) {
    for (const std::size_t d : {64u, 256u}) {
      Problem problem({.head_dim = d, .group = 4, .n_tokens = 16, .n = 512},
                      static_cast<std::uint32_t>(d));
      if (uneven) {
        std::mt19937 random(3);
        std::vector<float> size(d);
        for (float& x : size) x = std::exp2(static_cast<float>(random() % 8) - 4);
        for (std::size_t i = 0; i < problem.keys.size() - problem.shift; ++i) {
          Half& key = problem.keys[problem.shift + i];
          key = to_half(to_float(key) * size[i % d]);
          Half& value = problem.values[problem.shift + i];
          value = to_half(to_float(value) * size[i / d % d]);
        }
      }
      const Packed packed(problem, {keys, values});
      const RoundingOracle exact(problem, packed, false);
      const double own = distance(exact.expected.output, run_reference(problem).output);
      const double added =
          distance(run_packed(problem, packed.view()).output, exact.expected.output);
      RecordProperty((uneven ? "uneven_" : "even_") + std::to_string(d),
                     std::to_string(added / own));
      EXPECT_LE(added, own / 3) << "head_dim " << d << (uneven ? " uneven" : "");
    }
  }
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
