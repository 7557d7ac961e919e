// The tokens that NVIDIA's kvpress keeps of real rows, and ours. The fixtures in tests/data/kvpress
// and their format are those of make_kvpress_fixtures.py; kvpress ran in float64. Every method has
// a row in kRows; where kvpress computes something else on purpose, the row says what, and its SPEC
// brings ours as near as parameters can.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "compress/layer_case.h"
#include "compress/output_projection.h"
#include "compress/repetition.h"
#include "methods/registry.h"
#include "support/head_rows.h"
#include "test_paths.h"

namespace precis {
namespace {

using Json = nlohmann::json;
using Tokens = std::vector<std::int32_t>;

constexpr const char* kLayers[] = {"smollm2_early", "smollm2_late", "qwen2_early", "qwen2_late",
                                   "smollm2_repeat"};

// Where kept sets may differ by tokens whose scores are nearly equal.
enum class Rivals {
  kHead,   // within a head: each keeps its own best
  kLayer,  // between all entries of the layer: heads share a budget
  kNone,   // nowhere
};

constexpr double kGroupSize = -1;

struct Row {
  const char* press;  // of the fixtures
  const char* spec;
  // Our score / theirs, outside of the protected tokens; 0: other numbers, in the same order;
  // kGroupSize: theirs is the mean over the query heads of a KV head, ours the sum.
  double factor = 1;
  Rivals rivals = Rivals::kHead;
  double ratio = 0;  // only this compression ratio; 0: all
  // kvpress: equal scores at the cut-off are frequent, and which of them are kept is left to topk.
  bool equal_scores = false;
};

constexpr Row kRows[] = {
    // The scores of kvpress are 1 and 0, set by the budget: the first 4 and the last tokens.
    {"streaming", "streaming(recent=0)", 0},
    // Pooling is the mean of 5, and the window is 64 with kvpress' defaults. kvpress gives the
    // window the largest score plus 1, ours protects it: the same set from that many entries on.
    {"snapkv", "snapkv(window=64,recent=64,pool=5,kind=avg)"},
    {"snapkv12", "snapkv(window=12,recent=12,pool=5,kind=avg)"},
    {"knorm", "knorm"},
    {"keydiff", "keydiff"},
    // kvpress scores the last token 1 above the others, ours protects it. Theirs is the mean over
    // all query heads, the same for every KV head; ours is summed over the KV heads when selecting.
    {"tova", "tova", 0},
    // ObservedAttention is H2O without recent tokens, per query that sees the token.
    {"h2o", "h2o(mean=visible,recent=0)", kGroupSize},
    // A prompt below 4 + 2 * 128 tokens: the sinks and the most recent tokens.
    {"lagkv", "lagkv(recent=0)", 0},
    // Every partition has the same ranks, so that a cut-off falls among equal scores: ours takes
    // the earlier partitions. kvpress scores the last partition and the sinks 1.
    {"lagkv8", "lagkv(lag=8,recent=8)", 1, Rivals::kHead, 0, true},
    {"lagkv8_cross", "lagkv(lag=8,recent=8,order=softmax)"},
    // The floor of kvpress counts the window, ours comes beside it: int(0.2 * kept) of theirs is
    // below the window of 64, 17 of 86 (5 beside the window of 12) and below it in the others.
    {"adakv", "adakv(window=64,recent=64,pool=5,kind=avg,alpha=0)", 1, Rivals::kLayer},
    {"adakv12", "adakv(window=12,recent=12,pool=5,kind=avg,alpha=0.07)", 1, Rivals::kLayer, 0.5},
    {"adakv12", "adakv(window=12,recent=12,pool=5,kind=avg,alpha=0)", 1, Rivals::kLayer, 0.75},
    {"adakv12", "adakv(window=12,recent=12,pool=5,kind=avg,alpha=0)", 1, Rivals::kLayer, 0.9},
    // A floor of 0.9: 77 of 86, 38 of 43 and 15 of 17, so 65 of 74, 26 of 31 and 3 of 5 beside it.
    {"adakv12_floor90", "adakv(window=12,recent=12,pool=5,kind=avg,alpha=0.885)", 1, Rivals::kLayer,
     0.5},
    {"adakv12_floor90", "adakv(window=12,recent=12,pool=5,kind=avg,alpha=0.855)", 1, Rivals::kLayer,
     0.75},
    {"adakv12_floor90", "adakv(window=12,recent=12,pool=5,kind=avg,alpha=0.7)", 1, Rivals::kLayer,
     0.9},
    // kvpress rounds down to whole chunks, 72 or 80 of 86 entries; the budget here is what it kept.
    // The window is exactly its last chunk, which its scores put first; ours protects it.
    {"chunkkv12", "chunkkv(window=12,recent=12,pool=5,kind=avg)", 1, Rivals::kNone},
    {"chunkkv_knorm", "chunkkv score=knorm select=chunk(recent=0,sinks=0)", 1, Rivals::kNone},
    {"merging_knorm", "merging score=knorm select=head(recent=0,sinks=0)"},
    // The layer by itself; what it gets of the whole budget: PyramidsShareLikeTheirs.
    {"pyramidkv12_beta3", "pyramidkv(window=12,recent=12,pool=5,kind=avg,beta=3)"},
    // Keys stay where they are (rerotate_keys off). The question is a window of 12; kvpress gives
    // it the largest score plus 1.
    {"finch12", "finch(window=12,recent=12)"},
    // kvpress has the first stage's entries, and the window, with scores above all others. Its
    // first stage counts the window, as ours does.
    {"criticalkv12", "criticalkv(window=12,recent=12,pool=5,kind=avg)", 0},
    {"criticalkv12_first90", "criticalkv(window=12,recent=12,pool=5,kind=avg,first=0.9)", 0},
    {"criticalkv_knorm", "criticalkv score=knorm select=critical(recent=0,sinks=0)", 0},
    // Scores before the stages. The floor as for adakv12.
    {"criticaladakv12", "criticaladakv(window=12,recent=12,pool=5,kind=avg,alpha=0.07)", 1,
     Rivals::kLayer, 0.5},
    {"criticaladakv12", "criticaladakv(window=12,recent=12,pool=5,kind=avg,alpha=0)", 1,
     Rivals::kLayer, 0.75},
    {"criticaladakv12", "criticaladakv(window=12,recent=12,pool=5,kind=avg,alpha=0)", 1,
     Rivals::kLayer, 0.9},
    {"expected", "expected"},
    {"expected_mean", "expected(future=64,covariance=off,epsilon=0.02)"},
    // One layer of it, so that it is the heads of the layer that share (layerwise).
    {"kvzip", "score=kvzip select=layer(recent=0,sinks=4,floor=0)", 1, Rivals::kLayer},
};

// Scores may differ by this much, relative to the larger one; Qwen2.5's first layer, with logits in
// the hundreds, needs 4e-5, all others 1e-6. A token may be kept instead of another one if the
// scores that kvpress gives them are so near.
constexpr double kTolerance = 1e-4;
constexpr std::size_t kMostNearTies = 2;

struct KeptCase {
  std::string press;
  double ratio = 0;
  std::vector<float> scores;  // [KV heads, n_tokens]
  std::vector<Tokens> kept;   // of every KV head
  std::vector<Half> merged;   // values of the kept tokens where they merge, [KV heads, kept, d]
};

// Norms as kvpress has them, the mean over the query heads of a KV head, for each of these.
class FixtureOutput final : public OutputProjection {
 public:
  explicit FixtureOutput(std::vector<float> means) : means_(std::move(means)) {}

  void norms(HeadView& head, std::span<float> norms) const override {
    for (std::size_t g = 0; g < head.group; ++g)
      std::copy_n(means_.data() + head.head * head.n_tokens, head.n_tokens,
                  norms.data() + g * head.n_tokens);
  }
  void factors(HeadView&, std::span<float>) const override {
    FAIL() << "the fixtures have no matrices";
  }

 private:
  std::vector<float> means_;  // [KV heads, n_tokens]
};

struct Fixture {
  test::LayerCase layer;
  std::size_t index = 0;  // of the layer, of n_layers
  std::size_t n_layers = 0;
  std::unique_ptr<Rope> rope;
  std::unique_ptr<FixtureOutput> output;
  std::vector<KeptCase> cases;
};

// Neither model scales frequencies or has factors of its own.
std::unique_ptr<Rope> rope_of(const Json& head, std::size_t width) {
  auto rope = std::make_unique<Rope>();
  rope->n_rot = width;
  rope->interleaved = head.at("rope_pairs").get<std::string>() == "neighbours";
  const auto base = head.at("rope_base").get<double>();
  for (std::size_t i = 0; i < width / 2; ++i)
    rope->frequencies.push_back(
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(width)));
  return rope;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

template <class T>
std::vector<T> read_array(const Json& arrays, const std::string& bytes, const std::string& name) {
  const Json& array = arrays.at(name);
  std::size_t count = 1;
  for (const Json& size : array.at("shape")) count *= size.get<std::size_t>();
  const auto at = array.at("at").get<std::size_t>();
  std::vector<T> values(count);
  EXPECT_LE(at + count * sizeof(T), bytes.size()) << name;
  std::memcpy(values.data(), bytes.data() + at, count * sizeof(T));
  return values;
}

void read_rows(const Json& arrays, const std::string& bytes, test::LayerCase& layer) {
  const KvShape& kv = layer.shape.kv;
  const auto keys = read_array<Half>(arrays, bytes, "keys");
  const auto values = read_array<Half>(arrays, bytes, "values");
  layer.dense = TailRows(kv, 0);
  layer.dense.grow(layer.n_tokens);
  const std::size_t count = layer.n_tokens * kv.head_dim;
  for (std::size_t h = 0; h < kv.n_kv_heads; ++h) {
    std::copy_n(keys.data() + h * count, count, layer.dense.key_row(h, 0));
    std::copy_n(values.data() + h * count, count, layer.dense.value_row(h, 0));
  }
  const auto queries = read_array<Half>(arrays, bytes, "queries");
  std::transform(queries.begin(), queries.end(), std::back_inserter(layer.observed.queries),
                 to_float);
  observe(layer);
}

// The rows are those of a prompt of n_tokens, of a demand and of the prompt again, the queries
// those after the prompt: leaves the prompt, and what it got from the repetition.
void take_repetition(test::LayerCase& layer, std::size_t n_tokens) {
  const KvShape& kv = layer.shape.kv;
  ObservedQueries& observed = layer.observed;
  Repetition repetition;
  repetition.n_prompt = n_tokens;
  repetition.n_tokens = observed.n_tokens;
  repetition.last = n_tokens;
  repetition.group = layer.shape.group;
  repetition.head_dim = kv.head_dim;
  repetition.rule = layer.shape.rule;
  ASSERT_EQ(n_tokens + observed.n_tokens, layer.n_tokens);
  observed.repeat_chunk = 2048;
  observed.log_peaks.assign(kv.n_kv_heads * n_tokens, -INFINITY);
  Scratch scratch;
  for (std::size_t h = 0; h < kv.n_kv_heads; ++h) {
    repetition.keys = layer.dense.head(h).keys;
    repetition.queries =
        observed.queries.data() + h * layer.shape.group * observed.n_tokens * kv.head_dim;
    raise_repetition_peaks(repetition, 0, observed.n_tokens,
                           observed.log_peaks.data() + h * n_tokens, scratch);
  }
  layer.dense.truncate(n_tokens);
  layer.n_tokens = n_tokens;
  observed.n_tokens = 0;
  observed.queries.clear();
  observed.log_sum_exp.clear();
}

Fixture read_fixture(const std::string& name) {
  const std::string path = PRECIS_TEST_DATA "/kvpress/" + name;
  const Json head = Json::parse(read_file(path + ".json"));
  const std::string bytes = read_file(path + ".bin");
  const Json& arrays = head.at("arrays");
  const auto keys = arrays.at("keys").at("shape").get<std::vector<std::size_t>>();
  const auto queries = arrays.at("queries").at("shape").get<std::vector<std::size_t>>();
  Fixture fixture;
  test::LayerCase& layer = fixture.layer;
  layer.shape = {{keys[0], keys[2]}, queries[0] / keys[0], {head.at("scale").get<float>(), 0.0f}};
  layer.n_tokens = keys[1];
  layer.observed.n_heads = queries[0];
  layer.observed.n_tokens = queries[1];
  layer.observed.head_dim = queries[2];
  fixture.index = head.at("layer").get<std::size_t>();
  fixture.n_layers = head.at("n_layers").get<std::size_t>();
  fixture.rope = rope_of(head, keys[2]);
  layer.shape.rope = fixture.rope.get();
  if (arrays.contains("output_norms")) {
    fixture.output =
        std::make_unique<FixtureOutput>(read_array<float>(arrays, bytes, "output_norms"));
    layer.shape.output = fixture.output.get();
  }
  read_rows(arrays, bytes, layer);
  for (const Json& from : head.at("cases")) {
    fixture.cases.push_back({from.at("press").get<std::string>(),
                             from.at("ratio").get<double>(),
                             read_array<float>(arrays, bytes, from.at("scores")),
                             from.at("kept").get<std::vector<Tokens>>(),
                             {}});
    if (from.contains("merged"))
      fixture.cases.back().merged = read_array<Half>(arrays, bytes, from.at("merged"));
  }
  if (fixture.cases.at(0).press == "kvzip")
    take_repetition(layer, fixture.cases[0].scores.size() / keys[0]);
  return fixture;
}

bool is_for(const Row& row, const KeptCase& wanted) {
  return row.press == wanted.press && (row.ratio == 0 || row.ratio == wanted.ratio);
}

// A condenser that keeps n_entries per head. A budget pays for the positions of entries too, so
// that a budget of n_entries dense tokens would keep fewer.
Condenser condenser_for(const Method& method, const test::LayerCase& layer, std::size_t n_entries) {
  const KvShape& kv = layer.shape.kv;
  const std::size_t entry_bytes = kv.row_pair_bytes() + sizeof(std::int32_t);
  const std::string bytes = std::to_string(kv.n_kv_heads * n_entries * entry_bytes) + "B";
  return Condenser(method, Budget::parse(bytes), {layer.shape}, layer.n_tokens, 1);
}

FrozenLayer condense_like(const Method& method, const test::LayerCase& layer,
                          const KeptCase& wanted) {
  std::size_t total = 0;
  for (const Tokens& kept : wanted.kept) total += kept.size();
  EXPECT_EQ(total % wanted.kept.size(), 0u);
  Condenser condenser = condenser_for(method, layer, total / wanted.kept.size());
  EXPECT_EQ(condenser.entries_per_head() * wanted.kept.size(), total);
  SerialExecutor serial;
  return test::condense_only(condenser, layer.dense, layer.observed, serial);
}

std::vector<Tokens> kept_tokens(const FrozenLayer& layer) {
  std::vector<Tokens> kept;
  for (std::size_t h = 0; h < layer.shape().n_kv_heads; ++h)
    kept.push_back(test::kept_positions(layer, h));
  return kept;
}

// Merged values are rounded to f16 at the end by both; a half of a unit is 2^-11 of the value.
void compare_merged(const FrozenLayer& layer, const std::vector<Half>& wanted) {
  std::size_t at = 0;
  for (std::size_t h = 0; h < layer.shape().n_kv_heads; ++h) {
    const test::HeadRows held(layer, h);
    const EntryView entries = held.view();
    for (std::size_t i = 0; i < entries.n * layer.shape().head_dim; ++i, ++at) {
      const float theirs = to_float(wanted[at]);
      EXPECT_NEAR(to_float(entries.values[i]), theirs, 0x1p-10f * std::abs(theirs) + 1e-6f)
          << "KV head " << h << ", channel " << i;
    }
  }
  EXPECT_EQ(at, wanted.size());
}

// The largest difference of scores outside of the protected tokens, relative to the larger one.
double score_difference(const Method& method, const test::LayerCase& layer, const KeptCase& wanted,
                        double factor) {
  const Protection protection = method.selector->protection();
  const std::size_t n = layer.n_tokens;
  const double scale = factor == kGroupSize ? static_cast<double>(layer.shape.group) : factor;
  std::vector<float> scores(n);
  double largest = 0;
  for (std::size_t h = 0; h < wanted.kept.size(); ++h) {
    HeadView head = test::view_head(layer, h);
    method.scorer->score(head, scores);
    for (std::size_t t = 0; t < n; ++t) {
      if (protection.covers(static_cast<std::uint32_t>(t), n)) continue;
      const double theirs = scale * static_cast<double>(wanted.scores[h * n + t]);
      const double ours = static_cast<double>(scores[t]);
      const double size = std::max(std::abs(ours), std::abs(theirs));
      if (ours != theirs) largest = std::max(largest, std::abs(ours - theirs) / size);
    }
  }
  return largest;
}

// Entries that only one of the two keeps, as scores of kvpress.
struct Difference {
  std::vector<float> only_ours;
  std::vector<float> only_theirs;
};

Difference difference_of(const Tokens& ours, const Tokens& theirs, const float* scores) {
  Difference out;
  const std::set<std::int32_t> in_ours(ours.begin(), ours.end());
  const std::set<std::int32_t> in_theirs(theirs.begin(), theirs.end());
  for (const std::int32_t t : ours)
    if (in_theirs.count(t) == 0) out.only_ours.push_back(scores[t]);
  for (const std::int32_t t : theirs)
    if (in_ours.count(t) == 0) out.only_theirs.push_back(scores[t]);
  return out;
}

struct Counts {
  std::size_t n_kept = 0;
  std::size_t n_equal = 0;  // kept instead of one with the same score
  std::size_t n_near = 0;   // kept instead of one with a score that is nearly the same
};

void judge(const Difference& difference, const Row& row, Counts& counts) {
  ASSERT_EQ(difference.only_ours.size(), difference.only_theirs.size());
  if (difference.only_ours.empty()) return;
  ASSERT_NE(static_cast<int>(row.rivals), static_cast<int>(Rivals::kNone));
  const auto [low, high_ours] =
      std::minmax_element(difference.only_ours.begin(), difference.only_ours.end());
  const auto [low_theirs, high] =
      std::minmax_element(difference.only_theirs.begin(), difference.only_theirs.end());
  const double gap = static_cast<double>(std::max(*high, *high_ours)) -
                     static_cast<double>(std::min(*low, *low_theirs));
  ASSERT_LE(gap, kTolerance * std::abs(static_cast<double>(*high)))
      << "kept tokens of score " << *low << ", not of " << *high;
  (gap == 0 ? counts.n_equal : counts.n_near) += difference.only_ours.size();
}

void compare_kept(const std::vector<Tokens>& ours, const KeptCase& wanted, std::size_t n_tokens,
                  const Row& row, Counts& counts) {
  Counts own;
  Difference layer;
  for (std::size_t h = 0; h < ours.size(); ++h) {
    SCOPED_TRACE("KV head " + std::to_string(h));
    const Difference head =
        difference_of(ours[h], wanted.kept[h], wanted.scores.data() + h * n_tokens);
    own.n_kept += ours[h].size();
    if (row.rivals != Rivals::kLayer) judge(head, row, own);
    layer.only_ours.insert(layer.only_ours.end(), head.only_ours.begin(), head.only_ours.end());
    layer.only_theirs.insert(layer.only_theirs.end(), head.only_theirs.begin(),
                             head.only_theirs.end());
  }
  if (row.rivals == Rivals::kLayer) judge(layer, row, own);
  if (!row.equal_scores) {
    EXPECT_EQ(own.n_equal, 0u) << "among equal scores, another choice";
  }
  counts.n_kept += own.n_kept;
  counts.n_equal += own.n_equal;
  counts.n_near += own.n_near;
}

TEST(Kvpress, SameScoresAndSameTokens) {
  const Registry registry = builtin_methods();
  Counts counts;
  for (const char* name : kLayers) {
    const Fixture fixture = read_fixture(name);
    ASSERT_FALSE(fixture.cases.empty());
    for (const KeptCase& wanted : fixture.cases)
      for (const Row& row : kRows) {
        if (!is_for(row, wanted)) continue;
        std::ostringstream where;
        where << name << ", " << wanted.press << " at " << wanted.ratio << ", " << row.spec;
        SCOPED_TRACE(where.str());
        const Method method = registry.parse(row.spec);
        if (row.factor != 0) {
          EXPECT_LE(score_difference(method, fixture.layer, wanted, row.factor), kTolerance);
        }
        const FrozenLayer frozen = condense_like(method, fixture.layer, wanted);
        compare_kept(kept_tokens(frozen), wanted, fixture.layer.n_tokens, row, counts);
        if (!wanted.merged.empty()) compare_merged(frozen, wanted.merged);
      }
  }
  EXPECT_GE(counts.n_kept, 1000u);
  EXPECT_LE(counts.n_near, kMostNearTies);
  RecordProperty("kept", std::to_string(counts.n_kept));
  RecordProperty("equal", std::to_string(counts.n_equal));
  RecordProperty("near", std::to_string(counts.n_near));
}

// kvpress takes n * kept share for what the layers get beside the window, and keeps the window
// within that; ours takes it of what is kept. From (n * share) / beta < window on, kvpress gives
// all layers the same.
TEST(Kvpress, PyramidsShareLikeTheirs) {
  const Method method = builtin_methods().parse("pyramidkv(beta=3)");
  std::size_t n_compared = 0;
  for (const char* name : kLayers) {
    const Fixture fixture = read_fixture(name);
    for (const KeptCase& wanted : fixture.cases) {
      if (wanted.press != "pyramidkv12_beta3") continue;
      const auto n = static_cast<double>(fixture.layer.n_tokens);
      const auto share = static_cast<std::size_t>(n * (1 - wanted.ratio) + 0.5);
      const auto theirs = static_cast<double>(wanted.kept[0].size());
      if (share < 3 * 12) {
        EXPECT_EQ(theirs, static_cast<double>(share));
        continue;
      }
      const auto ours = method.layers->entries(fixture.n_layers, share, {});
      EXPECT_NEAR(ours[fixture.index], theirs, 0.5 + 1e-9) << name << " at " << wanted.ratio;
      ++n_compared;
    }
  }
  EXPECT_EQ(n_compared, 8u);
}

TEST(Kvpress, EveryCaseIsCompared) {
  for (const char* name : kLayers) {
    SCOPED_TRACE(name);
    for (const KeptCase& wanted : read_fixture(name).cases) {
      const auto n_rows = std::count_if(std::begin(kRows), std::end(kRows),
                                        [&](const Row& row) { return is_for(row, wanted); });
      EXPECT_EQ(n_rows, 1) << wanted.press << " at " << wanted.ratio;
    }
  }
}

}  // namespace
}  // namespace precis
