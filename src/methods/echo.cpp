// Echo: what a prompt would look at if it were repeated, without reading it again. KVzip (arXiv
// 2505.23416) has the model repeat the prompt, at the price of a second prefill, and keeps the
// tokens that the repetition attends to. A repeated token looks for its first occurrence through
// heads that match the token itself, and its query is much the same in both places. So the query
// that a token had when it was read, moved behind the prompt by RoPE, stands for the query that it
// would have in the repetition; the keys of its chunk, moved there too, stand for the repetition's
// own.
//
//   score[t] = the most attention that token t gets from the moved queries of its chunk, among the
//              first four tokens, the chunk, and the moved keys up to the query (KVzip's softmax)
//
// The best entries of all layers and heads are kept, with a floor for every head, as with KVzip.
//
// This is not published; it is this project's. What is lost against KVzip: a token that was read
// once does not yet know that it is repeated.
//
// Cost: 2.5 chunk products of queries and keys a token, linear in the prompt; all queries of a
// layer are kept in f32 while it is condensed.
//
// Layers whose keys are not turned by RoPE have no places to move to: their queries stay as they
// are.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "compress/method.h"
#include "compress/repetition.h"
#include "kernels/rope.h"
#include "kernels/rows.h"

namespace precis {

void register_echo(Registry& registry);

namespace {

// Queries that share the conversion of the keys.
constexpr std::size_t kTile = 128;

struct EchoParams {
  int chunk = 1024;

  template <class V>
  void fields(V&& v) {
    v("chunk", chunk, 16, 1 << 20, "tokens that are thought to be repeated at a time");
  }
};

// First tokens, chunk, and the chunk's keys again, moved behind the prompt.
std::vector<Half> keys_with_echo(const HeadView& head, std::size_t first, std::size_t last,
                                 std::size_t n_sinks, RopeTurn* turn) {
  const std::size_t d = head.head_dim;
  const Half* keys = head.entries.keys;
  std::vector<Half> out(keys, keys + n_sinks * d);
  out.insert(out.end(), keys + first * d, keys + last * d);
  std::vector<float> row(d);
  for (std::size_t t = first; t < last; ++t) {
    convert_rows(keys + t * d, row.data(), d);
    if (turn != nullptr) turn->apply(row.data());
    for (const float x : row) out.push_back(to_half(x));
  }
  return out;
}

// [group, tokens, head_dim]
std::vector<float> moved_queries(const HeadView& head, std::size_t first, std::size_t last,
                                 RopeTurn* turn) {
  std::vector<float> out;
  out.reserve(head.group * (last - first) * head.head_dim);
  for (std::size_t g = 0; g < head.group; ++g)
    for (std::size_t t = first; t < last; ++t) {
      const float* query = head.query(g, t);
      out.insert(out.end(), query, query + head.head_dim);
      if (turn != nullptr) turn->apply(out.data() + out.size() - head.head_dim);
    }
  return out;
}

class EchoScorer final : public Scorer {
 public:
  explicit EchoScorer(const EchoParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override { return n_tokens; }

  void score(HeadView& head, std::span<float> scores) const override {
    constexpr std::size_t kSinks = 4;
    std::fill(scores.begin(), scores.end(), -std::numeric_limits<float>::infinity());
    const auto chunk = static_cast<std::size_t>(params_.chunk);
    for (std::size_t first = 0; first < head.n_tokens; first += chunk) {
      const std::size_t last = std::min(head.n_tokens, first + chunk);
      std::optional<RopeTurn> turn;
      if (head.rope != nullptr) {
        turn.emplace(*head.rope);
        turn->set_delta(static_cast<std::int64_t>(head.n_tokens - first));
      }
      RopeTurn* moved = turn ? &*turn : nullptr;
      const std::size_t n_sinks = std::min(kSinks, first);
      const std::vector<Half> keys = keys_with_echo(head, first, last, n_sinks, moved);
      const std::vector<float> queries = moved_queries(head, first, last, moved);
      Repetition repetition;
      repetition.keys = keys.data();
      repetition.queries = queries.data();
      repetition.n_tokens = last - first;
      repetition.first = n_sinks;
      repetition.last = n_sinks + repetition.n_tokens;
      repetition.n_prompt = repetition.last;
      repetition.group = head.group;
      repetition.head_dim = head.head_dim;
      repetition.rule = head.rule;
      for (std::size_t t = 0; t < repetition.n_tokens; t += kTile) {
        throw_if_cancelled(head.cancel);
        raise_repetition_peaks(repetition, t, std::min(kTile, repetition.n_tokens - t),
                               scores.data() + first, head.scratch());
      }
    }
    // Logits of 1e9 and more are further from their rounded log-sum-exp than an exponential bears;
    // attention stays a probability all the same.
    for (float& score : scores) score = std::exp(std::min(score, 0.0f));
  }

 private:
  EchoParams params_;
};

}  // namespace

void register_echo(Registry& registry) {
  const std::string source = "this project";
  registry.add_stage<EchoScorer, EchoParams>(
      StageKind::kScore, "echo", source,
      "the most attention that a token would get from its chunk's queries behind the prompt");
  registry.add_preset({"echo", "score=echo select=layer(recent=0,sinks=4) layers=global", source,
                       "what the prompt would look at if it were repeated, in one prefill"});
}

}  // namespace precis
