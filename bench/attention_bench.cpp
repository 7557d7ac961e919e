// Attention over a long frozen cache on all threads, against what the same threads can read: the
// share of the read bandwidth for each head shape and row type, and entries a second against f16.
// Every turn measures the probe and all types once, so drift hits all alike; medians are printed.
//
//   attention_bench [entries per head = 100000] [threads = all] [turns = 9] [avx2]
//
// avx2: without AVX-512 where the machine has it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "cache/packed_list.h"
#include "eval/read_bandwidth.h"
#include "eval/statistics.h"
#include "eval/turns.h"
#include "kernels/simd_targets.h"
#include "model/backend.h"

// After simd_targets.h.
#include "hwy/highway.h"

namespace {

using precis::Backend;
using precis::PackedList;
using precis::RowType;
using precis::RowTypes;

struct Shape {
  const char* model;
  std::size_t head_dim;
  std::size_t group;
  std::size_t n_kv_heads;
};
constexpr Shape kShapes[] = {
    {"SmolLM2-135M", 64, 3, 3}, {"Qwen2.5-0.5B", 64, 7, 2}, {"gemma-3-270m", 256, 4, 1}};
constexpr RowTypes kTypes[] = {{RowType::kF16, RowType::kF16},
                               {RowType::kQ8_0, RowType::kQ8_0},
                               {RowType::kQ4, RowType::kQ4},
                               {RowType::kQ8_0, RowType::kQ4}};
// As the engine cuts long lists (engine/layer_cache.cpp).
constexpr std::size_t kSlice = 4096;

class Case {
 public:
  Case(const Shape& shape, const RowTypes& types, std::size_t n, Backend& backend)
      : shape_(shape), types_(types), n_(n), backend_(backend), scratch_(backend.n_workers()) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> table(1u << 20);
    for (float& x : table) x = normal(random);
    const std::size_t width = precis::kGroupEntries * shape.head_dim;
    for (std::size_t h = 0; h < shape.n_kv_heads; ++h) {
      PackedList& list = lists_.emplace_back(types, shape.head_dim);
      list.reserve(n);
      for (std::size_t i = 0; i < n; i += precis::kGroupEntries) {
        const float* keys = table.data() + random() % (table.size() - width);
        const float* values = table.data() + random() % (table.size() - width);
        list.append(keys, values, std::min(precis::kGroupEntries, n - i));
      }
    }
    queries_.assign(table.begin(),
                    table.begin() + static_cast<std::ptrdiff_t>(shape.n_kv_heads * shape.group *
                                                                shape.head_dim));
    n_slices_ = (n + kSlice - 1) / kSlice;
    const std::size_t rows = n_slices_ * shape.n_kv_heads * shape.group;
    max_.resize(rows);
    sum_.resize(rows);
    out_.resize(rows * shape.head_dim);
  }

  void run() {
    backend_.run(n_slices_ * shape_.n_kv_heads, [&](std::size_t task, std::size_t worker) {
      const std::size_t h = task % shape_.n_kv_heads;
      const std::size_t begin = task / shape_.n_kv_heads * kSlice;
      const precis::Visible visible{static_cast<std::uint32_t>(begin),
                                    static_cast<std::uint32_t>(std::min(n_, begin + kSlice))};
      const std::size_t row = task * shape_.group;
      const precis::StateView state{max_.data() + row, sum_.data() + row,
                                    out_.data() + row * shape_.head_dim};
      precis::reset_states(state, shape_.group, shape_.head_dim);
      const std::size_t width = shape_.group * shape_.head_dim;
      precis::attend({queries_.data() + h * width, 1, shape_.group, shape_.head_dim, width},
                     lists_[h].view(),
                     {1.0f / std::sqrt(static_cast<float>(shape_.head_dim)), 0.0f}, &visible, state,
                     scratch_[worker]);
    });
  }

  double bytes() const {
    double bytes = 0;
    for (const PackedList& list : lists_) bytes += static_cast<double>(list.bytes());
    return bytes;
  }
  double entries() const { return static_cast<double>(n_ * shape_.n_kv_heads); }
  const Shape& shape() const { return shape_; }
  std::string types() const {
    return std::string(row_type_name(types_.keys)) + "/" + row_type_name(types_.values);
  }

 private:
  Shape shape_;
  RowTypes types_;
  std::size_t n_;
  Backend& backend_;
  std::vector<precis::Scratch> scratch_;
  std::vector<PackedList> lists_;
  std::vector<float> queries_;
  std::size_t n_slices_ = 0;
  std::vector<float> max_, sum_, out_;
};

void run(std::size_t n, std::size_t n_threads, std::size_t n_turns) {
  Backend backend(n_threads);
  const precis::Clock clock = precis::steady_clock();
  std::printf("%zu entries a head, %s, %s, median of %zu turns\n\n", n,
              backend.description().c_str(), precis::instruction_set_name(), n_turns);
  std::printf(
      "| shape | rows | GB/s | read GB/s | share | min | max | entries/s against f16 |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (const Shape& shape : kShapes) {
    std::vector<Case> cases;
    for (const RowTypes& types : kTypes) cases.emplace_back(shape, types, n, backend);
    std::vector<double> probe;
    std::vector<std::vector<double>> seconds(cases.size()), shares(cases.size()),
        ratios(cases.size());
    for (std::size_t turn = 0; turn <= n_turns; ++turn) {
      const double read =
          precis::measure_read_bandwidth(backend, precis::probe_bytes(), 3, clock).median_gb_s;
      if (turn > 0) probe.push_back(read);
      std::vector<double> own;
      for (Case& c : cases) {
        const double start = clock();
        c.run();
        own.push_back(clock() - start);
      }
      for (std::size_t i = 0; turn > 0 && i < cases.size(); ++i) {
        seconds[i].push_back(own[i]);
        shares[i].push_back(cases[i].bytes() / own[i] / 1e9 / read);
        ratios[i].push_back(own[0] / own[i]);
      }
    }
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const auto [low, high] = std::minmax_element(shares[i].begin(), shares[i].end());
      std::printf("| %s (%zu x %zu, group %zu) | %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n",
                  shape.model, shape.n_kv_heads, shape.head_dim, shape.group,
                  cases[i].types().c_str(), cases[i].bytes() / precis::median_of(seconds[i]) / 1e9,
                  precis::median_of(probe), precis::median_of(shares[i]), *low, *high,
                  precis::median_of(ratios[i]));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, std::size_t value) {
    return argc > i ? std::strtoul(argv[i], nullptr, 10) : value;
  };
  if (argc > 4) hwy::DisableTargets(HWY_AVX3 | HWY_AVX3_DL);
  try {
    run(argument(1, 100000), argument(2, 0), argument(3, 9));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attention_bench: %s\n", error.what());
    return 1;
  }
}
