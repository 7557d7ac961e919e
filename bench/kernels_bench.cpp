// Speed of the attention kernels on one thread, for the head shapes of the models we quote.
//
//   decode   one token, g rows against n entries; GB/s of K and V rows read
//   prefill  a tile of 32 tokens at the end of n entries (causal); GFLOPS, 4 * head_dim per visible
//   pair
//
// Compare with the machine: decode is bound by memory (one pass over K and V), prefill by
// multiply-add.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/attention.h"
#include "kernels/rows.h"

namespace precis {
namespace {

struct Head {
  std::size_t head_dim;
  std::size_t group;
};
constexpr Head kSmolLm2{64, 3};
constexpr Head kQwen25{64, 7};
constexpr Head kGemma3{256, 4};

struct Inputs {
  Inputs(const Head& head, std::size_t tokens, std::size_t n)
      : queries(tokens * head.group * head.head_dim),
        keys(n * head.head_dim),
        values(n * head.head_dim),
        max(tokens * head.group),
        sum(tokens * head.group),
        out(tokens * head.group * head.head_dim) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& x : queries) x = normal(random);
    for (Half& x : keys) x = to_half(normal(random));
    for (Half& x : values) x = to_half(normal(random));
    for (std::size_t t = 0; t < tokens; ++t)
      visible.push_back({0, static_cast<std::uint32_t>(n - tokens + t + 1)});
    query_view = {queries.data(), tokens, head.group, head.head_dim, head.group * head.head_dim};
    entry_view = {keys.data(), values.data(), nullptr, n};
    state_view = {max.data(), sum.data(), out.data()};
    rule.scale = 1.0f / std::sqrt(static_cast<float>(head.head_dim));
  }

  std::vector<float> queries;
  std::vector<Half> keys, values;
  std::vector<float> max, sum, out;
  std::vector<Visible> visible;
  QueryView query_view;
  EntryView entry_view;
  StateView state_view;
  LogitRule rule;
  Scratch scratch;
};

void run(benchmark::State& state, const Head& head, std::size_t tokens, std::size_t n) {
  Inputs in(head, tokens, n);
  for (auto _ : state) {
    reset_states(in.state_view, in.query_view.n_rows(), head.head_dim);
    attend(in.query_view, in.entry_view, in.rule, in.visible.data(), in.state_view, in.scratch);
    benchmark::DoNotOptimize(in.out.data());
    benchmark::ClobberMemory();
  }
  state.SetLabel(instruction_set_name());
}

void decode(benchmark::State& state, const Head& head) {
  const auto n = static_cast<std::size_t>(state.range(0));
  run(state, head, 1, n);
  const std::size_t bytes = 2 * n * head.head_dim * sizeof(Half);
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
}

void prefill(benchmark::State& state, const Head& head) {
  constexpr std::size_t kTokens = 32;
  const auto n = static_cast<std::size_t>(state.range(0));
  run(state, head, kTokens, n);
  const std::size_t pairs = kTokens * n - kTokens * (kTokens - 1) / 2;
  const double flops = 4.0 * static_cast<double>(pairs * head.group * head.head_dim);
  state.counters["GFLOPS"] = benchmark::Counter(
      flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

void mass(benchmark::State& state, const Head& head) {
  constexpr std::size_t kTokens = 32;
  const auto n = static_cast<std::size_t>(state.range(0));
  Inputs in(head, kTokens, n);
  std::vector<float> total(n);
  const std::vector<float> sums(kTokens * head.group, 10.0f);  // its values do not matter for time
  for (auto _ : state) {
    add_attention_mass(in.query_view, in.entry_view, in.rule, in.visible.data(), sums.data(),
                       total.data(), in.scratch);
    benchmark::DoNotOptimize(total.data());
  }
}

void convert(benchmark::State& state) {
  std::vector<Half> from(1u << 14);
  std::vector<float> to(from.size());
  for (auto _ : state) {
    convert_rows(from.data(), to.data(), from.size());
    convert_rows(to.data(), from.data(), from.size());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(2 * from.size()));
}

void lengths(benchmark::internal::Benchmark* b) { b->Arg(1024)->Arg(8192)->Arg(32768); }

BENCHMARK_CAPTURE(decode, smollm2, kSmolLm2)->Apply(lengths);
BENCHMARK_CAPTURE(decode, qwen25_05b, kQwen25)->Apply(lengths);
BENCHMARK_CAPTURE(decode, gemma3, kGemma3)->Apply(lengths);
BENCHMARK_CAPTURE(prefill, smollm2, kSmolLm2)->Apply(lengths);
BENCHMARK_CAPTURE(prefill, qwen25_05b, kQwen25)->Apply(lengths);
BENCHMARK_CAPTURE(prefill, gemma3, kGemma3)->Apply(lengths);
BENCHMARK_CAPTURE(mass, smollm2, kSmolLm2)->Arg(8192);
BENCHMARK(convert);

}  // namespace
}  // namespace precis

BENCHMARK_MAIN();
