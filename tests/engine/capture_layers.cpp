// capture_layers [--repeat] MODEL.gguf N_TOKENS FOLDER LAYER...: reads N_TOKENS of the GPL-3 with a
// real model and writes the dense rows and queries of some layers, for tests/compare_selkv.py and
// tests/methods/make_kvpress_fixtures.py. --repeat: the text is followed by KVzip's demand to
// repeat it and by the text again, as kvpress 0.5.5 puts it for a model without chat template.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "compress/layer_dump.h"
#include "engine/session.h"
#include "support/sample_text.h"

namespace {

// The same bits on every run.
precis::EngineOptions fixed_options() {
  precis::EngineOptions options;
  options.matmul = precis::MatmulMode::kSgemm;
  options.weights = precis::WeightsMode::kFile;
  return options;
}

void append_repetition(const precis::Tokenizer& tokenizer, std::vector<precis::Token>& tokens) {
  const std::vector<precis::Token> context = tokens;
  const std::string demands[] = {"\n\nRepeat the previous context exactly.", "\n"};
  for (const std::string& demand : demands) {
    const auto more = tokenizer.tokenize(demand, false, false);
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  tokens.insert(tokens.end(), context.begin(), context.end());
}

}  // namespace

int main(int argc, char** argv) {
  const bool repeat = argc > 1 && std::string(argv[1]) == "--repeat";
  if (repeat) {
    --argc;
    ++argv;
  }
  const auto text = precis::test::sample_text();
  if (argc < 5 || !text) {
    std::fprintf(stderr,
                 "usage: capture_layers [--repeat] MODEL.gguf N_TOKENS FOLDER LAYER...   "
                 "(needs the GPL-3's text)\n");
    return 2;
  }
  try {
    const auto engine = precis::Engine::load(argv[1], fixed_options());
    std::vector<precis::Token> tokens = engine->tokenizer().tokenize(*text, true, false);
    tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(std::atoi(argv[2]))));
    if (repeat) append_repetition(engine->tokenizer(), tokens);
    precis::Session session(engine);
    session.prefill(tokens, {SIZE_MAX});
    const auto indices = engine->compressible_indices();
    const auto shapes = engine->compressible_layers();
    for (int i = 4; i < argc; ++i) {
      const auto wanted = static_cast<std::size_t>(std::atoi(argv[i])) % indices.size();
      const std::size_t layer = indices[wanted];
      const std::string path = std::string(argv[3]) + "/layer" + std::to_string(layer) + ".bin";
      precis::test::write_layer_dump(path, session.tail(layer), session.observed(layer),
                                     shapes[wanted]);
      std::puts(path.c_str());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "capture_layers: %s\n", error.what());
    return 1;
  }
}
