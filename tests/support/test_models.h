// Where the tests' models are: tiny ones are made by tools/make_tiny_models.py when the tests are
// built, real ones are fetched by `make models` and may be absent.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "support/sample_text.h"
#include "test_paths.h"

namespace precis::test {

inline std::string tiny_model(const std::string& name) {
  return std::string(PRECIS_TINY_DIR) + "/" + name + ".gguf";
}

inline std::string real_model(const std::string& file) {
  const char* folder = std::getenv("PRECIS_TEST_MODELS");
  return std::string(folder ? folder : PRECIS_MODELS_DIR) + "/" + file;
}

// Any ids below n_vocab; the same on every machine.
inline std::vector<std::int32_t> random_tokens(std::size_t n, std::size_t n_vocab, unsigned seed) {
  std::mt19937 draw(seed);
  std::vector<std::int32_t> tokens(n);
  for (std::int32_t& t : tokens) t = static_cast<std::int32_t>(draw() % n_vocab);
  return tokens;
}

inline constexpr const char* kSmolLm2 = "SmolLM2-135M-Instruct.Q4_1.gguf";
inline constexpr const char* kGemma3 = "gemma-3-270m-q4_k_m.gguf";
inline constexpr const char* kQwen2 = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";

}  // namespace precis::test

// Ends the running test where something it needs is absent: skipped on a person's machine, failed
// in continuous integration, which provides everything (CI is set there) and must not pass without
// it.
#define PRECIS_END_WITHOUT(reason)                      \
  do {                                                  \
    if (std::getenv("CI") != nullptr) FAIL() << reason; \
    GTEST_SKIP() << reason;                             \
  } while (false)

#define PRECIS_SKIP_IF_ABSENT(path)   \
  if (!std::filesystem::exists(path)) \
  PRECIS_END_WITHOUT((path) << " is not there; `make models MODELS=all` fetches it")
