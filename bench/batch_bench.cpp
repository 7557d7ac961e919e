// Tokens per second of several sessions that decode together, against one of them alone: solo and
// batched runs alternate in one process, and the ratio is the median over pairs.
//   batch_bench MODEL [sessions=8] [prompt tokens=2048] [steps=16] [pairs=9] [threads=2]
// Prints both speeds, the median ratio and its quartiles.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "engine/batch.h"
#include "methods/registry.h"

namespace {

using precis::Token;

// Milliseconds of wall time.
template <class F>
double time_of(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

int run(int argc, char** argv) {
  const auto argument = [&](int i, std::size_t value) {
    return argc > i ? std::strtoul(argv[i], nullptr, 10) : value;
  };
  if (argc < 2) {
    std::fprintf(stderr,
                 "usage: batch_bench MODEL [sessions] [prompt] [steps] [pairs] [threads]\n");
    return 2;
  }
  const std::size_t n_sessions = argument(2, 8);
  const std::size_t n_prompt = argument(3, 2048);
  const std::size_t n_steps = argument(4, 16);
  const std::size_t n_pairs = argument(5, 9);
  const auto engine = precis::Engine::load(argv[1], {.n_threads = argument(6, 2)});
  std::mt19937 draw(1);
  std::vector<Token> prompt(n_prompt);
  for (Token& t : prompt) t = static_cast<Token>(draw() % engine->config().n_vocab);
  precis::Session document(engine);
  const precis::CondenseRequest request{precis::builtin_methods().parse("selkv"),
                                        precis::Budget::parse("25%"), 0};
  document.condense(prompt, request);
  // Forks: the prompt is read once. They share the document's rows, which flatters the attention of
  // the batch where the rows of one layer stay in the cache from session to session.
  std::vector<precis::Session> sessions;
  for (std::size_t i = 0; i < n_sessions; ++i) sessions.push_back(document.fork());
  precis::Session alone = document.fork();
  precis::BatchDecoder decoder(engine);
  std::vector<precis::BatchEntry> entries;
  for (precis::Session& session : sessions) entries.push_back({&session, 5});
  const Token token = 5;
  const auto solo = [&] {
    for (std::size_t i = 0; i < n_steps; ++i) alone.extend({&token, 1});
  };
  const auto batched = [&] {
    for (std::size_t i = 0; i < n_steps; ++i) decoder.step(entries);
  };
  alone.extend({&token, 1});  // warm-up: graphs, buffers, weights in memory
  decoder.step(entries);
  std::vector<double> ratios, solo_speed, batch_speed;
  for (std::size_t pair = 0; pair < n_pairs; ++pair) {
    const double a = 1000.0 * static_cast<double>(n_steps) / time_of(solo);
    const double b = 1000.0 * static_cast<double>(n_steps * n_sessions) / time_of(batched);
    solo_speed.push_back(a);
    batch_speed.push_back(b);
    ratios.push_back(b / a);
  }
  std::printf("%s, %zu sessions, prompt %zu at 25%%, %s\n", argv[1], n_sessions, n_prompt,
              engine->backend().description().c_str());
  std::printf(
      "solo %.2f tok/s, together %.2f tok/s, ratio %.2f (quartiles %.2f to %.2f, %zu pairs)\n",
      quantile(solo_speed, 0.5), quantile(batch_speed, 0.5), quantile(ratios, 0.5),
      quantile(ratios, 0.25), quantile(ratios, 0.75), n_pairs);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "batch_bench: %s\n", error.what());
    return 1;
  }
}
