// parity MODEL.gguf...: compares Precis with libllama on 512 tokens of the GPL and prints a
// table.
#include <cstdio>
#include <exception>
#include <filesystem>

#include "oracle/parity.h"
#include "support/sample_text.h"

int main(int argc, char** argv) {
  const auto text = precis::test::sample_text();
  if (argc < 2 || !text) {
    std::fprintf(stderr,
                 "usage: parity MODEL.gguf...   (needs /usr/share/common-licenses/GPL-3)\n");
    return 1;
  }
  std::puts(precis::test::parity_header().c_str());
  for (int i = 1; i < argc; ++i) {
    try {
      const auto engine = precis::Engine::load(argv[i], {});
      precis::test::Oracle oracle(argv[i]);
      std::vector<precis::Token> tokens = engine->tokenizer().tokenize(*text, true, false);
      tokens.resize(512);
      const auto parity = precis::test::measure_parity(engine, oracle, tokens, 0, 64);
      std::puts(precis::test::parity_row(std::filesystem::path(argv[i]).stem(), parity).c_str());
      precis::test::Oracle again(argv[i]);
      const auto noise = precis::test::measure_noise(oracle, again, tokens);
      std::puts(precis::test::parity_row("  libllama with itself", noise).c_str());
      std::fflush(stdout);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "parity: %s: %s\n", argv[i], error.what());
      return 1;
    }
  }
}
