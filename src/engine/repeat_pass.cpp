#include "engine/repeat_pass.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"
#include "compress/repetition.h"

namespace precis {
namespace {

// KVzip's requests. Later chunks are named by the tokens before them.
constexpr const char* kRepeatAll = "\n\nRepeat the previous context exactly.";
constexpr const char* kRepeatFrom =
    "\n\nRepeat the part of the previous context exactly, starting with";
constexpr std::size_t kNamed = 8;

// Queries that share one task of the scoring, and the conversion of the keys.
constexpr std::size_t kTile = 128;

void append(std::vector<Token>& to, std::span<const Token> tokens) {
  to.insert(to.end(), tokens.begin(), tokens.end());
}

// What the chat template puts before and after the user's words.
struct Frame {
  std::vector<Token> before;
  std::vector<Token> after;
};

Frame chat_frame(const Engine& engine) {
  Frame frame;
  const ChatTemplate* chat = engine.model().chat_template();
  if (chat == nullptr) return frame;
  const Tokenizer& tokenizer = engine.tokenizer();
  const std::string bos = tokenizer.bos_text();
  std::vector<PromptPart> parts;
  try {
    parts = chat->render({{"user", "text"}}, true);
  } catch (const Error&) {  // it refuses a lone message: then no prompt was made so
    return frame;
  }
  bool after = false;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].is_input) {
      after = true;
      continue;
    }
    const bool add_bos =
        i == 0 && tokenizer.adds_bos() && !(!bos.empty() && parts[i].text.starts_with(bos));
    append(after ? frame.after : frame.before, tokenizer.tokenize(parts[i].text, add_bos, true));
  }
  return frame;
}

}  // namespace

bool begins_as_chat(const Engine& engine, std::span<const Token> prompt) {
  const std::vector<Token> before = chat_frame(engine).before;
  return !before.empty() && before.size() <= prompt.size() &&
         std::equal(before.begin(), before.end(), prompt.begin());
}

RepeatPass::RepeatPass(const Engine& engine, std::span<const Token> prompt, std::size_t n_before,
                       std::size_t chunk, bool is_chat)
    : engine_(engine), n_prompt_(n_before + prompt.size()) {
  PRECIS_CHECK(chunk > 0, "chunks of 0 tokens");
  const Tokenizer& tokenizer = engine.tokenizer();
  const std::vector<Token> after =
      is_chat ? chat_frame(engine).after : tokenizer.tokenize("\n", false, false);
  for (std::size_t start = 0; start < prompt.size(); start += chunk) {
    Piece piece;
    piece.first = n_before + start;
    piece.last = n_before + std::min(prompt.size(), start + chunk);
    if (start == 0) {
      piece.tokens = tokenizer.tokenize(kRepeatAll, false, false);
    } else {
      piece.tokens = tokenizer.tokenize(kRepeatFrom, false, false);
      const std::size_t n_named = std::min(kNamed, start);
      append(piece.tokens, prompt.subspan(start - n_named, n_named));
    }
    append(piece.tokens, after);
    append(piece.tokens, prompt.subspan(start, piece.last - piece.first));
    n_tokens_ += piece.tokens.size();
    pieces_.push_back(std::move(piece));
  }
}

std::size_t RepeatPass::most_rows() const {
  std::size_t most = 0;
  for (const Piece& piece : pieces_) most = std::max(most, piece.tokens.size());
  return most;
}

void RepeatPass::embed(GraphRunner& runner) {
  const std::size_t n_embd = engine_.config().n_embd;
  hidden_.resize(n_tokens_ * n_embd);
  float* at = hidden_.data();
  for (const Piece& piece : pieces_)
    for (std::size_t t = 0; t < piece.tokens.size(); t += runner.chunk_tokens()) {
      const std::size_t m = std::min(runner.chunk_tokens(), piece.tokens.size() - t);
      runner.embed(std::span(piece.tokens).subspan(t, m), at);
      at += m * n_embd;
    }
}

bool RepeatPass::run_layer(std::size_t layer, GraphRunner& runner, CacheAttention& attention,
                           TailRows& tail, const CancelFlag* cancel, ObservedQueries& observed) {
  const ModelConfig& c = engine_.config();
  const bool sliding = c.is_sliding[layer];
  const bool last = layer + 1 == c.n_layers;
  if (last && sliding) return true;  // nothing would come of it
  const std::size_t n_rows = tail.size();
  float* at = hidden_.data();
  ObservedQueries queries;
  for (const Piece& piece : pieces_) {
    const std::size_t n = piece.tokens.size();
    if (!sliding) {
      queries.n_heads = c.n_heads;
      queries.n_tokens = n;
      queries.head_dim = c.head_dim;
      queries.queries.resize(c.n_heads * n * c.head_dim);
      queries.log_sum_exp.resize(c.n_heads * n);
    }
    attention.observe(sliding ? nullptr : &queries, n_prompt_ + n);
    for (std::size_t t = 0; t < n; t += runner.chunk_tokens()) {
      const std::size_t m = std::min(runner.chunk_tokens(), n - t);
      runner.run_layer(layer, static_cast<std::int32_t>(n_prompt_ + t), m, m, last ? 0 : m, at,
                       attention);
      if (attention.take_cancelled()) return false;
      at += m * c.n_embd;
    }
    attention.observe(nullptr, 0);
    if (!sliding) score(piece, tail, queries, cancel, observed);
    tail.truncate(n_rows);
  }
  return true;
}

void RepeatPass::score(const Piece& piece, const TailRows& tail, const ObservedQueries& queries,
                       const CancelFlag* cancel, ObservedQueries& observed) const {
  const ModelConfig& c = engine_.config();
  const std::size_t d = c.head_dim;
  const std::size_t group = c.group();
  const std::size_t n = piece.tokens.size();
  const std::size_t n_tiles = (n + kTile - 1) / kTile;
  const std::size_t n_chunk = piece.last - piece.first;
  const LogitRule rule{c.attn_scale, c.attn_softcap};
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  std::vector<float> peaks(c.n_kv_heads * n_tiles * n_chunk, kNone);
  Backend& backend = engine_.backend();
  std::vector<Scratch> scratch(backend.n_workers());
  backend.run(c.n_kv_heads * n_tiles, [&](std::size_t task, std::size_t worker) {
    throw_if_cancelled(cancel);
    const std::size_t head = task / n_tiles;
    const std::size_t begin = task % n_tiles * kTile;
    const Repetition repetition{tail.head(head).keys,
                                queries.queries.data() + head * group * n * d,
                                n_prompt_,
                                n,
                                piece.first,
                                piece.last,
                                group,
                                d,
                                rule};
    raise_repetition_peaks(repetition, begin, std::min(kTile, n - begin),
                           peaks.data() + task * n_chunk, scratch[worker]);
  });
  for (std::size_t head = 0; head < c.n_kv_heads; ++head) {
    float* into = observed.log_peaks.data() + head * n_prompt_ + piece.first;
    std::fill_n(into, n_chunk, kNone);
    for (std::size_t tile = 0; tile < n_tiles; ++tile) {
      const float* from = peaks.data() + (head * n_tiles + tile) * n_chunk;
      // A probability's logarithm, whatever was rounded.
      for (std::size_t j = 0; j < n_chunk; ++j)
        into[j] = std::max(into[j], std::min(from[j], 0.0f));
    }
  }
}

}  // namespace precis
