// Scissorhands: Liu, Desai, Liao, Wang, Xie, Xu, Kyrillidis, Shrivastava, "Scissorhands: Exploiting
// the Persistence of Importance Hypothesis for LLM KV Cache Compression at Test Time", arXiv
// 2305.17118, algorithm 2: within a history window of the last w queries, count how often a token's
// attention is below 1 / t, the mean over the t tokens that the query sees; the tokens with the
// largest counts are dropped. The 10 most recent tokens stay.
//
//   form=count  minus that count, over the rows of the window (the paper)
//   form=mean   the attention itself, averaged over the window (guozhiyu/vatp, and KVCache-Factory)
//
// Cost of form=count: see attention_rows.h; at window 400 some ten times SnapKV's.
//
// decode=step goes on counting over the last w queries, of the prompt and after it.
//
// Deviation: the prompt is condensed once, with every query seeing the whole cache. The paper drops
//   half of the cache whenever it is full; decode=step drops one entry per token, so that the cache
//   keeps its size.
// Deviation: decode=step counts in 8 parts of the window, of which the oldest is forgotten when a
//   new one begins, so that between 7/8 of w and w queries count; counts of single queries would be
//   more memory than the entries. The prompt's counts are spread evenly over the parts.
// Deviation: window 400 and 10 recent tokens are those of guozhiyu/vatp; the paper's own were not
//   read at source, nor its rule for budgets per layer.
// Deviation: counts are summed over the query heads of a KV head. Queries before a token do not
//   count; equal counts, which are frequent, leave the choice to the position.
#include <algorithm>
#include <cmath>

#include "compress/method.h"
#include "compress/step.h"
#include "methods/attention_rows.h"

namespace precis {

void register_scissorhands(Registry& registry);

namespace {

struct ScissorParams {
  int window = 400;
  std::string form = "count";

  template <class V>
  void fields(V&& v) {
    v("window", window, 1, 4096, "last queries whose attention is observed");
    v("form", form, {"count", "mean"}, "rows with attention below their mean, or the attention");
  }
};

class ScissorScorer final : public Scorer, public StepScorer {
 public:
  explicit ScissorScorer(const ScissorParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return observed_window(params_.window, n_tokens);
  }

  void score(HeadView& head, std::span<float> scores) const override {
    const std::size_t window = queries_needed(head.n_tokens);
    const auto n_rows = static_cast<float>(window * head.group);
    if (params_.form == "mean") {
      const std::span<const float> mass = head.window_mass(window);
      for (std::size_t t = 0; t < scores.size(); ++t) scores[t] = mass[t] / n_rows;
      return;
    }
    std::vector<std::uint32_t> below(head.n_tokens, 0);
    visit_attention_rows(head, window, [&](const AttentionRow& row) {
      const float mean = 1.0f / static_cast<float>(row.attention.size());
      for (std::size_t t = 0; t < row.attention.size(); ++t)
        below[t] += row.attention[t] < mean ? 1u : 0u;
    });
    for (std::size_t t = 0; t < scores.size(); ++t)
      scores[t] = -static_cast<float>(below[t]) / n_rows;
  }

  const StepScorer* step() const override { return this; }

  std::size_t n_fields() const override { return kParts; }

  void carry(HeadView& head, std::span<const std::uint32_t> kept,
             const StepFields& fields) const override {
    const auto n_rows = static_cast<float>(queries_needed(head.n_tokens) * head.group);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const float score = head.scores[kept[i]];
      const float sum = is_mean() ? score * n_rows : std::round(-score * n_rows);
      for (std::size_t part = 0; part < kParts; ++part)
        fields.row(part)[i] = sum / static_cast<float>(kParts);
    }
  }

  void observe(const StepHead& head) const override {
    const std::size_t length = (static_cast<std::size_t>(params_.window) + kParts - 1) / kParts;
    float* part = head.fields.row(head.n_before / length % kParts);
    if (head.n_before % length == 0) std::fill_n(part, head.n, 0.0f);
    if (is_mean()) {
      add_attention(head, part);
      return;
    }
    const float mean = 1.0f / static_cast<float>(head.n);
    for (std::size_t g = 0; g < head.group; ++g) {
      const float* row = head.attention + g * head.attention_stride;
      for (std::size_t i = 0; i < head.n; ++i) part[i] += row[i] < mean ? 1.0f : 0.0f;
    }
  }

  void importance(const StepHead& head, std::span<float> scores) const override {
    for (std::size_t i = 0; i < scores.size(); ++i) {
      float sum = 0;
      for (std::size_t part = 0; part < kParts; ++part) sum += head.fields.row(part)[i];
      scores[i] = is_mean() ? sum : -sum;
    }
  }

 private:
  static constexpr std::size_t kParts = 8;  // a power of two: counts stay exact

  bool is_mean() const { return params_.form == "mean"; }

  ScissorParams params_;
};

}  // namespace

void register_scissorhands(Registry& registry) {
  const std::string paper = "arXiv 2305.17118";
  registry.add_stage<ScissorScorer, ScissorParams>(
      StageKind::kScore, "scissorhands", paper,
      "how seldom the token's attention was below the mean in the history window");
  registry.add_preset({"scissorhands", "score=scissorhands select=head(recent=10,sinks=0)", paper,
                       "Scissorhands: tokens that were important again and again"});
}

}  // namespace precis
