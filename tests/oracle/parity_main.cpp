// parity [-t N] [--f32 FOLDER] MODEL.gguf...: compares Precis with libllama on 512 tokens of the
// GPL and prints a table. With --f32 both are compared with the same weights in f32 instead, whose
// copy lies in FOLDER meanwhile (4 bytes a weight).
#include <cstdio>
#include <exception>
#include <filesystem>

#include "oracle/parity.h"
#include "support/sample_text.h"

namespace {

using precis::test::parity_row;

void print(const std::string& model, const precis::test::Parity& parity) {
  std::puts(parity_row(model, parity).c_str());
  std::fflush(stdout);
}

void compare_with_libllama(const std::string& path, const std::string& text,
                           std::size_t n_threads) {
  const precis::test::OracleOptions options{.n_threads = static_cast<int>(n_threads)};
  const auto engine = precis::Engine::load(path, {.n_threads = n_threads});
  precis::test::Oracle oracle(path, options), again(path, options);
  std::vector<precis::Token> tokens = engine->tokenizer().tokenize(text, true, false);
  tokens.resize(512);
  print(std::filesystem::path(path).stem(),
        precis::test::measure_parity(engine, oracle, tokens, 0, 64));
  print("  libllama with itself", precis::test::measure_noise(oracle, again, tokens));
}

void compare_with_f32(const std::string& path, const std::string& text, std::size_t n_threads,
                      const std::string& scratch) {
  std::vector<precis::Token> tokens =
      precis::test::Oracle(path, {.n_ctx = 64}).tokenize(text, true, false);
  tokens.resize(512);
  std::printf("%s\n", std::filesystem::path(path).stem().c_str());
  for (const auto& row : precis::test::measure_distances(path, scratch, false, tokens, n_threads))
    print(row.name, row.parity);
}

}  // namespace

int main(int argc, char** argv) {
  const auto text = precis::test::sample_text();
  std::size_t n_threads = 2;
  std::string scratch;
  int i = 1;
  for (; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "-t")
      n_threads = std::stoul(argv[i + 1]);
    else if (std::string(argv[i]) == "--f32")
      scratch = argv[i + 1];
    else
      break;
  }
  if (i >= argc || !text) {
    std::fprintf(stderr,
                 "usage: parity [-t N] [--f32 FOLDER] MODEL.gguf...   (needs "
                 "/usr/share/common-licenses/GPL-3)\n");
    return 1;
  }
  std::puts(precis::test::parity_header().c_str());
  for (; i < argc; ++i) {
    try {
      if (scratch.empty())
        compare_with_libllama(argv[i], *text, n_threads);
      else
        compare_with_f32(argv[i], *text, n_threads, scratch);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "parity: %s: %s\n", argv[i], error.what());
      return 1;
    }
  }
}
