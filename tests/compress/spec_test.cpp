// The reader of SPECs, on a small registry of its own.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "compress/method.h"

namespace precis {
namespace {

struct NoParams {
  template <class V>
  void fields(V&&) {}
};

struct NumberParams {
  int window = 32;
  double share = 0.5;

  template <class V>
  void fields(V&& v) {
    v("window", window, 1, 100, "");
    v("share", share, 0, 1, "");
  }
};

struct WordParams {
  int window = 8;
  std::string mode = "fast";

  template <class V>
  void fields(V&& v) {
    v("window", window, 1, 100, "");
    v("mode", mode, {"fast", "slow"}, "");
  }
};

class FlatScorer final : public Scorer {
 public:
  explicit FlatScorer(const NoParams&) {}
  void score(HeadView&, std::span<float> scores) const override {
    std::fill(scores.begin(), scores.end(), 0.0f);
  }
};

class WindowScorer final : public Scorer {
 public:
  explicit WindowScorer(const NumberParams& params)
      : window_(static_cast<std::size_t>(params.window)) {}
  void score(HeadView&, std::span<float> scores) const override {
    std::fill(scores.begin(), scores.end(), 0.0f);
  }
  std::size_t queries_needed(std::size_t n) const override { return std::min(window_, n); }

 private:
  std::size_t window_;
};

class EmptySelector final : public Selector {
 public:
  explicit EmptySelector(const NoParams&) {}
  Protection protection() const override { return {}; }
  std::vector<HeadPlan> select(const LayerTable& table) const override {
    return std::vector<HeadPlan>(table.n_kv_heads);
  }
};

class NoMerger final : public Merger {
 public:
  explicit NoMerger(const WordParams& params) {
    if (params.window == 13)
      throw Error(ErrorCode::kInvalidArgument, "parameter 'window' = '13' is unlucky");
  }
  HeadMerge merge(HeadView&, const HeadPlan&) const override { return {}; }
  std::size_t queries_needed(std::size_t n_tokens) const override { return n_tokens; }
};

class NoCompensator final : public Compensator {
 public:
  explicit NoCompensator(const NoParams&) {}
  std::vector<std::vector<std::vector<float>>> compensate(
      std::span<const LayerEntries>) const override {
    return {};
  }
};

const Registry& registry() {
  static const Registry instance = [] {
    Registry out;
    out.add_stage<FlatScorer, NoParams>(StageKind::kScore, "flat", "", "");
    out.add_stage<WindowScorer, NumberParams>(StageKind::kScore, "window", "", "");
    out.add_stage<EmptySelector, NoParams>(StageKind::kSelect, "none_at_all", "", "");
    out.add_stage<NoMerger, WordParams>(StageKind::kMerge, "blend", "", "");
    out.add_stage<NoCompensator, NoParams>(StageKind::kBias, "votes", "", "");
    out.add_preset({"full", "", "", ""});
    out.add_preset({"both", "score=window select=none_at_all merge=blend bias=votes", "", ""});
    out.add_preset({"flat", "score=flat select=none_at_all", "", ""});
    return out;
  }();
  return instance;
}

std::string rejection(std::string_view spec) {
  try {
    return "accepted: " + registry().parse(spec).spec;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
}

constexpr const char* kBoth =
    "score=window(window=32,share=0.5) select=none_at_all merge=blend(window=8,mode=fast) "
    "bias=votes";

TEST(Spec, PresetsPrintAllStagesAndParameters) {
  EXPECT_EQ(registry().parse("full").spec, "full");
  EXPECT_EQ(registry().parse("flat").spec, "score=flat select=none_at_all");
  EXPECT_EQ(registry().parse("both").spec, kBoth);
}

TEST(Spec, FullHasNoStages) {
  const Method method = registry().parse("full");
  EXPECT_TRUE(method.is_full());
  EXPECT_EQ(method.selector, nullptr);
  EXPECT_EQ(method.observation(100).n_queries, 0u);
}

TEST(Spec, CanonicalFormsAreFixedPoints) {
  for (const char* spec :
       {"full", "both", "flat", "both(window=9)", "both(share=0.1,mode=slow)", "both bias=none",
        "both merge=none bias=none", "full score=flat select=none_at_all",
        "select=none_at_all score=window(share=0.30000000000000004)", "both(share=-0)",
        "both residual=none"}) {
    const std::string canonical = registry().parse(spec).spec;
    EXPECT_EQ(registry().parse(canonical).spec, canonical) << spec;
  }
}

TEST(Spec, PresetArgumentsReachEveryStageThatHasThem) {
  EXPECT_EQ(registry().parse("both(window=9)").spec,
            "score=window(window=9,share=0.5) select=none_at_all merge=blend(window=9,mode=fast) "
            "bias=votes");
  EXPECT_EQ(registry().parse("both(mode=slow,merge=blend)").spec,
            "score=window(window=32,share=0.5) select=none_at_all merge=blend(window=8,mode=slow) "
            "bias=votes");
  EXPECT_EQ(registry().parse("flat(share=0.25,score=window)").spec,
            "score=window(window=32,share=0.25) select=none_at_all");
  EXPECT_EQ(registry().parse("both(bias=none,merge=none)").spec,
            "score=window(window=32,share=0.5) select=none_at_all");
}

TEST(Spec, LaterStagesReplaceThePresets) {
  EXPECT_EQ(registry().parse("both(window=9) score=flat").spec,
            "score=flat select=none_at_all merge=blend(window=9,mode=fast) bias=votes");
  EXPECT_EQ(registry().parse("both(window=9) merge=blend(mode=slow)").spec,
            "score=window(window=9,share=0.5) select=none_at_all merge=blend(window=8,mode=slow) "
            "bias=votes");
}

TEST(Spec, SpacesAreFreeBetweenAndInsideOfParentheses) {
  EXPECT_EQ(registry().parse("  both( window = 9 ,\tshare=0.25 )\n bias=none ").spec,
            registry().parse("both(window=9,share=0.25) bias=none").spec);
}

TEST(Spec, QueriesNeededIsTheLargestOfTheStages) {
  EXPECT_EQ(registry().parse("flat").observation(50).n_queries, 0u);
  EXPECT_EQ(registry().parse("flat(score=window)").observation(50).n_queries, 32u);
  EXPECT_EQ(registry().parse("flat(score=window)").observation(5).n_queries, 5u);
  EXPECT_EQ(registry().parse("both").observation(50).n_queries, 50u);
}

struct Rejected {
  const char* spec;
  const char* column;  // "column N:"
  std::vector<const char*> mention;
};

TEST(Spec, RejectionsGiveColumnAndWayOut) {
  const std::vector<Rejected> cases = {
      {"", "column 1:", {"empty"}},
      {"   ", "column 1:", {"empty"}},
      {"bth", "column 1:", {"unknown preset 'bth'", "nearest: both"}},
      {"both flat", "column 6:", {"only the first word"}},
      {"skore=flat",
       "column 1:",
       {"unknown kind", "score, select, layers, merge, bias, positions, residual"}},
      {"score=flt select=none_at_all", "column 7:", {"unknown score stage 'flt'", "nearest: flat"}},
      {"both merge=blond", "column 12:", {"nearest: blend"}},
      {"both bias=vote", "column 11:", {"nearest: votes"}},
      {"both residual=some", "column 15:", {"unknown residual stage", "nearest: none"}},
      {"both score=none", "column 12:", {"unknown score stage 'none'"}},
      {"both bias=none(x=1)", "column 16:", {"'none' has no parameters"}},
      {"score=window(windw=3) select=none_at_all",
       "column 14:",
       {"score=window has no parameter 'windw'", "window, share"}},
      {"both(speed=3)",
       "column 6:",
       {"preset both has no parameter 'speed'", "window, share, mode"}},
      {"full(x=1)", "column 6:", {"no parameter 'x'"}},
      {"both(window=0)", "column 6:", {"'window' = '0'", "1..100"}},
      {"both(window=101)", "column 6:", {"'window' = '101'", "1..100"}},
      {"both(window=1.5)", "column 6:", {"'window' = '1.5'"}},
      {"both(window=99999999999999)", "column 6:", {"1..100"}},
      {"both(share=nan)", "column 6:", {"'share' = 'nan'", "0..1"}},
      {"both(share=1e999)", "column 6:", {"0..1"}},
      {"both(mode=medium)", "column 6:", {"'mode' = 'medium'", "fast|slow"}},
      {"both(window=13)", "column 6:", {"merge=blend", "unlucky"}},
      {"both(window=1,window=2)", "column 15:", {"'window' is given twice"}},
      {"both(merge=none,merge=blend)", "column 17:", {"'merge' is given twice"}},
      {"flat merge=blend(mode=fast,mode=slow)", "column 28:", {"'mode' is given twice"}},
      {"score=flat score=flat", "column 12:", {"a score stage is given twice"}},
      {"both(", "column 6:", {"expected the name of a parameter, found the end"}},
      {"both()", "column 6:", {"expected the name of a parameter, found ')'"}},
      {"both(window)", "column 12:", {"expected '=' after 'window', found ')'"}},
      {"both(window=)", "column 13:", {"expected a value, found ')'"}},
      {"both(window=3", "column 14:", {"expected ',' or ')', found the end"}},
      {"both(window=3;share=1)", "column 14:", {"found ';'"}},
      {"both(window=3)x", "column 15:", {"expected a space"}},
      {"both)", "column 5:", {"expected a space"}},
      {"score=", "column 7:", {"expected the name of a stage, found the end"}},
      {"=flat", "column 1:", {"expected a preset or a stage, found '='"}},
      {"score=flat", "column 1:", {"lacks select="}},
      {"select=none_at_all", "column 1:", {"lacks score="}},
      {"flat bias=votes", "column 1:", {"bias without a merge", "bias=none"}},
      {"full merge=blend", "column 1:", {"lacks score="}},
  };
  for (const Rejected& c : cases) {
    const std::string message = rejection(c.spec);
    EXPECT_NE(message.find(c.column), std::string::npos) << c.spec << " -> " << message;
    for (const char* part : c.mention)
      EXPECT_NE(message.find(part), std::string::npos) << c.spec << " -> " << message;
  }
}

TEST(Spec, LongAndBinaryTextIsRejectedInShortPrintableMessages) {
  std::vector<std::string> specs = {std::string(100000, 'a'),
                                    std::string(4000, 'a'),
                                    "both(window=" + std::string(4000, '9') + ")",
                                    "both(" + std::string(4000, 'k') + "=1)",
                                    std::string("both\0", 5),
                                    std::string("\xff\xfe\x80", 3),
                                    "score=" + std::string(4000, 's'),
                                    std::string(4000, '('),
                                    std::string(1, '\0'),
                                    "both(mode=\x01)"};
  for (const std::string& spec : specs) {
    const std::string message = rejection(spec);
    EXPECT_EQ(message.rfind("accepted", 0), std::string::npos);
    EXPECT_LT(message.size(), 5000u);
    for (const char c : message) EXPECT_TRUE(c >= ' ' && c <= '~') << message;
  }
}

TEST(Spec, AnyBytesAreReadOrRejected) {
  const std::vector<std::string> pieces = {"both",
                                           "flat",
                                           "full",
                                           "score=",
                                           "select=",
                                           "merge=",
                                           "bias=",
                                           "residual=",
                                           "window",
                                           "none",
                                           "blend",
                                           "votes",
                                           "(",
                                           ")",
                                           ",",
                                           "=",
                                           " ",
                                           "window=3",
                                           "share",
                                           "0.5",
                                           "mode=slow",
                                           "none_at_all",
                                           std::string(1, '\0'),
                                           "\xc3\xa9",
                                           "-1",
                                           "\t"};
  std::mt19937 draw(5);
  std::size_t accepted = 0;
  for (int round = 0; round < 30000; ++round) {
    std::string spec;
    for (std::size_t k = draw() % 10; k > 0; --k)
      spec += round % 8 == 0 ? std::string(1, static_cast<char>(draw()))
                             : pieces[draw() % pieces.size()];
    try {
      const std::string canonical = registry().parse(spec).spec;
      ASSERT_EQ(registry().parse(canonical).spec, canonical) << spec;
      ++accepted;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kInvalidArgument) << spec;
    }
  }
  EXPECT_GT(accepted, 50u);
}

TEST(SpecDeathTest, PresetNamesAreUnique) {
  Registry twice;
  twice.add_preset({"full", "", "", ""});
  EXPECT_DEATH(twice.add_preset({"full", "", "", ""}), "check failed");
}

}  // namespace
}  // namespace precis
