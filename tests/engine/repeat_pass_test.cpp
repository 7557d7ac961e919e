// The scores of a repeated prompt against a plain loop in double over keys and queries that an
// ordinary prefill of the prompt and its repetition leaves.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/session_checks.h"

namespace precis {
namespace {

using namespace test;

class RepeatPassTest : public TinySession {
 protected:
  RepeatPassTest() : TinySession(90, 30) {}

  // log of the most attention that the queries of a repetition give the tokens [first, last) of the
  // prompt, among its first 4 tokens, these and the repetition.
  std::vector<double> plain_peaks(std::size_t layer, std::size_t head, std::size_t first,
                                  std::size_t last, const std::vector<Token>& repetition) const {
    std::vector<Token> all = prompt_;
    all.insert(all.end(), repetition.begin(), repetition.end());
    Session session(engine_);
    session.prefill(all, {all.size()});
    const ModelConfig& c = engine_->config();
    const EntryView keys = session.tail(layer).head(head);
    const ObservedQueries& seen = session.observed(layer);
    std::vector<double> peaks(last - first, -INFINITY);
    for (std::size_t t = prompt_.size(); t < all.size(); ++t)
      for (std::size_t g = 0; g < c.group(); ++g) {
        const float* query =
            seen.queries.data() + ((head * c.group() + g) * all.size() + t) * c.head_dim;
        const auto logit = [&](std::size_t j) {
          double sum = 0;
          for (std::size_t i = 0; i < c.head_dim; ++i)
            sum += static_cast<double>(query[i]) *
                   static_cast<double>(to_float(keys.keys[j * c.head_dim + i]));
          return sum * static_cast<double>(c.attn_scale);
        };
        double total = 0;
        for (std::size_t j = 0; j <= t; ++j)
          if (j < std::min<std::size_t>(4, first) || (j >= first && j < last) ||
              j >= prompt_.size())
            total += std::exp(logit(j));
        for (std::size_t j = first; j < last; ++j)
          peaks[j - first] = std::max(peaks[j - first], logit(j) - std::log(total));
      }
    return peaks;
  }

  std::vector<Token> repetition(const std::string& request, std::size_t n_named, std::size_t first,
                                std::size_t last) const {
    std::vector<Token> out = engine_->tokenizer().tokenize(request, false, false);
    const auto add = [&](std::size_t begin, std::size_t end) {
      for (std::size_t t = begin; t < end; ++t) out.push_back(prompt_[t]);
    };
    add(first - n_named, first);
    const std::vector<Token> after = engine_->tokenizer().tokenize("\n", false, false);
    out.insert(out.end(), after.begin(), after.end());
    add(first, last);
    return out;
  }
};

TEST_P(RepeatPassTest, ScoresAgreeWithAPlainLoop) {
  Session session(engine_);
  session.prefill(prompt_, {0, 0, 40});
  const ModelConfig& c = engine_->config();
  const std::string from = "\n\nRepeat the part of the previous context exactly, starting with";
  for (const std::size_t layer : engine_->compressible_indices())
    for (std::size_t head = 0; head < c.n_kv_heads; ++head)
      for (const std::size_t first : {0u, 40u, 80u}) {
        const std::size_t last = std::min<std::size_t>(first + 40, 90);
        const std::vector<Token> again =
            first == 0 ? repetition("\n\nRepeat the previous context exactly.", 0, first, last)
                       : repetition(from, 8, first, last);
        const std::vector<double> expected = plain_peaks(layer, head, first, last, again);
        const ObservedQueries& seen = session.observed(layer);
        ASSERT_EQ(seen.repeat_chunk, 40u);
        ASSERT_EQ(seen.log_peaks.size(), c.n_kv_heads * 90);
        for (std::size_t j = first; j < last; ++j)
          ASSERT_NEAR(static_cast<double>(seen.log_peaks[head * 90 + j]), expected[j - first], 2e-3)
              << "layer " << layer << " head " << head << " token " << j;
      }
  EXPECT_GT(session.observed(engine_->compressible_indices()[0]).repeat_ms, 0.0);
}

TEST_P(RepeatPassTest, LeavesTheCacheAsItWas) {
  Session plain(engine_), repeated(engine_);
  plain.prefill(prompt_);
  repeated.prefill(prompt_, {0, 0, 2048});
  EXPECT_EQ(difference(plain, repeated), "");
  EXPECT_TRUE(same_bits(copy(plain.last_logits()), copy(repeated.last_logits())));
  EXPECT_TRUE(same_bits(continue_with(plain, more_), continue_with(repeated, more_)));
}

TEST_P(RepeatPassTest, SameBitsForAnyNumberOfThreads) {
  Session one(engine_), three(load(3));
  const CondenseRequest wanted = request("kvzip(chunk=32)", "40%");
  one.condense(prompt_, wanted);
  const CompressionReport report = three.condense(prompt_, wanted);
  EXPECT_EQ(difference(one, three), "");
  EXPECT_GT(report.repeat_ms, 0.0);
  EXPECT_GE(three.compress_ms(), report.repeat_ms);
}

// A part of a prompt is repeated after itself; what was scored before stays.
TEST_P(RepeatPassTest, PartsOfAPromptAreRepeatedOnTheirOwn) {
  const Observation wanted{8, 0, 64};
  Session parts(engine_), first(engine_);
  const std::span<const Token> all = prompt_;
  first.prefill(all.first(50), wanted);
  parts.prefill(all.first(50), wanted);
  parts.prefill(all.subspan(50), wanted);
  const std::size_t layer = engine_->compressible_indices()[0];
  for (std::size_t j = 0; j < 50; ++j)
    EXPECT_EQ(parts.observed(layer).log_peaks[j], first.observed(layer).log_peaks[j]);
  const std::vector<Token> again =
      repetition("\n\nRepeat the previous context exactly.", 0, 50, 90);
  const std::vector<double> expected = plain_peaks(layer, 0, 50, 90, again);
  for (std::size_t j = 50; j < 90; ++j)
    EXPECT_NEAR(static_cast<double>(parts.observed(layer).log_peaks[j]), expected[j - 50], 2e-3);
  Session other(engine_);
  other.prefill(all.first(50), {8});
  EXPECT_NE(error_of(ErrorCode::kInvalidArgument, [&] { other.prefill(all.subspan(50), wanted); })
                .find("chunks of 64"),
            std::string::npos);
}

TEST_P(RepeatPassTest, NeedsItsObservation) {
  Session session(engine_);
  session.prefill(prompt_, {prompt_.size()});
  EXPECT_NE(
      error_of(ErrorCode::kInvalidArgument, [&] { session.compress(request("kvzip", "50%")); })
          .find("chunks of 2048"),
      std::string::npos);
}

TEST_P(RepeatPassTest, IsCancelledInTheMiddle) {
  Session session(engine_);
  CancelFlag cancel{false};
  CallControl control;
  control.cancel = &cancel;
  control.progress = [&](const Progress& p) { cancel = p.fraction > 0.3; };
  error_of(ErrorCode::kCancelled,
           [&] { session.condense(prompt_, request("kvzip", "50%"), control); });
  EXPECT_EQ(session.next_position(), 0u);
  session.condense(prompt_, request("kvzip", "50%"));
  EXPECT_EQ(difference(session, condensed(request("kvzip", "50%"))), "");
}

INSTANTIATE_TEST_SUITE_P(TinyModels, RepeatPassTest, testing::Values("llama", "qwen2", "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace precis
