// Finch: Corallo, Papotti, "FINCH: Prompt-guided Key-Value Cache Compression for Large Language
// Models", TACL 12 (2024), 1517-1532, as in kvpress, which its authors name as the reference: the
// window of SnapKV is the question behind the document. The attention of each of its queries is
// multiplied by the number of tokens before the query, so that later queries, whose attention is
// spread over more tokens, count as much as earlier ones; then it is averaged, without pooling.
//
// To be used with the question in the prompt and window and recent at the question's length.
//
// Deviation: the length of the question is a parameter. The paper's prompt marks where it begins.
// Deviation: the document is condensed at once (kvpress' default). The paper reads it in chunks,
//   each of which sees the condensed ones before it and the question.
// Deviation: kept keys stay at their positions. The paper and kvpress move them together.
// Deviation: tokens of the window are scored by their own attention; the preset protects them.
#include <algorithm>

#include "compress/method.h"
#include "methods/attention_rows.h"

namespace precis {

void register_finch(Registry& registry);

namespace {

struct FinchParams {
  int window = 32;
  std::string normalise = "on";

  template <class V>
  void fields(V&& v) {
    v("window", window, 1, 1 << 20, "tokens of the question, the last ones of the prompt");
    v("normalise", normalise, {"on", "off"}, "multiply by the number of tokens before the query");
  }
};

class FinchScorer final : public Scorer {
 public:
  explicit FinchScorer(const FinchParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return observed_window(params_.window, n_tokens);
  }

  void score(HeadView& head, std::span<float> scores) const override {
    const std::size_t window = queries_needed(head.n_tokens);
    const bool normalise = params_.normalise == "on";
    std::vector<double> sums(head.n_tokens, 0.0);
    visit_attention_rows(head, window, [&](const AttentionRow& row) {
      const double weight = normalise ? static_cast<double>(row.token) : 1.0;
      for (std::size_t t = 0; t < row.attention.size(); ++t)
        sums[t] += weight * static_cast<double>(row.attention[t]);
    });
    const auto n_rows = static_cast<double>(window * head.group);
    for (std::size_t t = 0; t < scores.size(); ++t)
      scores[t] = static_cast<float>(sums[t] / n_rows);
  }

 private:
  FinchParams params_;
};

}  // namespace

void register_finch(Registry& registry) {
  const std::string paper = "doi 10.1162/tacl_a_00716";
  registry.add_stage<FinchScorer, FinchParams>(
      StageKind::kScore, "finch", paper, "attention of the question, later queries weighing more");
  registry.add_preset({"finch", "score=finch select=head(recent=32,sinks=0)", paper,
                       "Finch: tokens that the question at the end of the prompt attends to"});
}

}  // namespace precis
