// RazorAttention: Tang, Lin, Lin, Han, Hong, Yao, Wang, "RazorAttention: Efficient KV Cache
// Compression Through Retrieval Heads", arXiv 2407.15891: a few heads look up the whole text and
// keep it, all other heads keep the first tokens and a buffer of the N / C most recent of N.
// Retrieval heads are echo and induction heads, found once per model: of a text of random tokens
// that is read four times over, an echo head attends to the earlier place of a token, an induction
// head to what followed it there; 1 % of the heads by the first and 14 % by the second score.
//
// Here they are found on the prompt itself, which is read again, repeated (engine/repeat_pass.h, as
// for KVzip): a head's score is the mean over the prompt's tokens of the most attention that any
// query of the repetition gives the token. A head of either kind turns to every token in its turn
// and scores near 1; a head that looks near by, or at the same few tokens always, gives nothing to
// most of the prompt, and one that looks everywhere gives each token 1 / N.
//
// Written as a score for select=layer with layers=global: first the buffers of all heads, newest
// tokens first, then the rest of the heads, the best head first. So heads are kept whole as far as
// the budget goes, over all layers, and a smaller budget than the buffers shortens them alike.
//
// Cost: a second prefill, as KVzip's.
//
// Deviation: no compensation token: what other heads drop is lost.
// Deviation: retrieval heads are found on the prompt and their number follows from the budget, as
//   above; the paper's is fixed, and so is its budget. The peak is taken over all of a chunk's
//   repetition, so that echo and induction are not told apart.
// Deviation: a retrieval head is a KV head: the best query head of the group counts.
// Deviation: C is 20. With the paper's 5 a keep of 20 % is all buffers and no head is kept whole.
// Deviation: heads whose scores differ by less than a thousandth may share the last of the budget.
// Deviation: the buffer is the larger of N / C and the select stage's recent tokens, 16.
//   The paper's least is not in the note that was read.
#include <cmath>

#include "base/error.h"
#include "compress/method.h"

namespace precis {

void register_razor(Registry& registry);

namespace {

struct RazorParams {
  int chunk = 2048;
  double parts = 20;

  template <class V>
  void fields(V&& v) {
    v("chunk", chunk, 16, 1 << 20, "tokens of the prompt that are repeated at a time");
    v("parts", parts, 1, 1e6, "C: heads that retrieve nothing keep one of so many parts");
  }
};

// Within a head newer tokens come first. A thousandth of a score in 8,192 steps is still more than
// the resolution of a float.
constexpr double kNewest = 1e-3;

class RazorScorer final : public Scorer {
 public:
  explicit RazorScorer(const RazorParams& params) : params_(params) {}

  std::size_t repeat_chunk() const override { return static_cast<std::size_t>(params_.chunk); }

  void score(HeadView& head, std::span<float> scores) const override {
    PRECIS_CHECK(head.log_peaks != nullptr, "the prompt was not repeated");
    const std::size_t n = scores.size();
    double sum = 0;
    for (std::size_t t = 0; t < n; ++t) sum += std::exp(static_cast<double>(head.log_peaks[t]));
    const double retrieval = sum / static_cast<double>(n);
    const auto buffer = static_cast<std::size_t>(static_cast<double>(n) / params_.parts);
    for (std::size_t t = 0; t < n; ++t) {
      const double age = static_cast<double>(n - 1 - t) / static_cast<double>(n);
      scores[t] = static_cast<float>(t + buffer >= n ? 3 - age : retrieval * (1 - kNewest * age));
    }
  }

 private:
  RazorParams params_;
};

}  // namespace

void register_razor(Registry& registry) {
  const std::string paper = "arXiv 2407.15891";
  registry.add_stage<RazorScorer, RazorParams>(
      StageKind::kScore, "razor", paper,
      "recent tokens of every head, then all of the heads that look up a repeated text");
  registry.add_preset({"razor", "score=razor select=layer(recent=16,sinks=4,floor=0) layers=global",
                       paper,
                       "RazorAttention: heads that look up the text are kept whole; a second "
                       "prefill"});
}

}  // namespace precis
