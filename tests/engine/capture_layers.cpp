// capture_layers MODEL.gguf N_TOKENS FOLDER LAYER...: reads N_TOKENS of the GPL-3 with a real model
// and writes the dense rows and queries of some layers for tests/compare_selkv.py.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "compress/layer_dump.h"
#include "engine/session.h"
#include "support/sample_text.h"

int main(int argc, char** argv) {
  const auto text = precis::test::sample_text();
  if (argc < 5 || !text) {
    std::fprintf(
        stderr,
        "usage: capture_layers MODEL.gguf N_TOKENS FOLDER LAYER...   (needs the GPL-3's text)\n");
    return 2;
  }
  try {
    const auto engine = precis::Engine::load(argv[1], {});
    std::vector<precis::Token> tokens = engine->tokenizer().tokenize(*text, true, false);
    tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(std::atoi(argv[2]))));
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
