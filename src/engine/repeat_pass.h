// The prompt read a second time, as a task to repeat it, for scores that ask what the model looks
// at when it reproduces the text (KVzip: Kim, Kim, Kwon, Lee, Yun, Song, arXiv 2505.23416).
//
// The prompt is cut into chunks. For each of them the model is told to repeat that part and reads
// it, with the whole prompt before it; chunks know nothing of each other. A prompt token's score is
// the largest attention that any query of its own chunk's repetition, of any query head of the
// group, gives it. That attention is taken among the first four tokens of the prompt, the chunk and
// the repetition itself, as KVzip does, and not among the whole prompt.
//
// Runs layer by layer beside the prefill: a layer's dense rows are needed while it is at work,
// never those of two layers. Costs the weights' work of a prefill again, and attention of about
// twice a prefill's. Repetitions take positions after the prompt's, even beyond the model's
// context.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/layer_cache.h"

namespace precis {

class RepeatPass {
 public:
  // Repeats prompt tokens [first, prompt.size()) of a prompt whose earlier ones, n_before of them,
  // are not listed. The words around a chunk are the chat template's if the whole prompt begins as
  // the template does: is_chat.
  RepeatPass(const Engine& engine, std::span<const Token> prompt, std::size_t n_before,
             std::size_t chunk, bool is_chat);

  // Tokens that one layer reads.
  std::size_t n_tokens() const { return n_tokens_; }
  // Of the longest repetition: rows that a layer needs beside the prompt's.
  std::size_t most_rows() const;

  void embed(GraphRunner& runner);
  // Runs one layer once the prompt went through it; `tail` ends as it was. Writes the scores of the
  // repeated tokens into observed.log_peaks, unless the layer is sliding. Leaves attention without
  // an observer. False if the work was cut short by the cancel flag.
  bool run_layer(std::size_t layer, GraphRunner& runner, CacheAttention& attention, TailRows& tail,
                 const CancelFlag* cancel, ObservedQueries& observed);

 private:
  struct Piece {
    std::vector<Token> tokens;  // the request and the chunk
    std::size_t first = 0;      // the chunk's tokens in the prompt
    std::size_t last = 0;
  };
  void score(const Piece& piece, const TailRows& tail, const ObservedQueries& queries,
             const CancelFlag* cancel, ObservedQueries& observed) const;

  const Engine& engine_;
  std::size_t n_prompt_ = 0;
  std::size_t n_tokens_ = 0;
  std::vector<Piece> pieces_;
  std::vector<float> hidden_;  // [n_tokens_, n_embd]
};

// Whether a prompt begins with what the model's chat template puts before the user's words.
bool begins_as_chat(const Engine& engine, std::span<const Token> prompt);

}  // namespace precis
