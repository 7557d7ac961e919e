// Overlaps against sets of tuples, duplicates that were planted, and the audit of a tiny model's
// caches.
#include "eval/method_audit.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <tuple>

#include "base/error.h"
#include "methods/registry.h"
#include "support/test_models.h"

namespace precis::test {
namespace {

constexpr KvShape kShape{2, 32};
using Positions = std::vector<std::int32_t>;

// Rows that follow from layer, head and position, as those of one prompt do.
float number_at(std::size_t layer, std::size_t head, std::int32_t position, std::size_t channel) {
  const auto row = static_cast<unsigned>(layer * 1000003 + head * 10007) +
                   static_cast<unsigned>(position) * 101u;
  return static_cast<float>(static_cast<int>((row + channel * 7u) % 199u) - 99) / 16.0f;
}

// What may be changed of one entry of head 1 of a layer.
struct Change {
  std::size_t entry = 0;
  float key = 0;
  float value = 0;
};

FrozenLayer make_layer(std::size_t layer, const std::vector<Positions>& kept,
                       const Change& change = {}, const std::vector<float>& bias = {},
                       RowTypes types = {}) {
  std::vector<FrozenLayer::Head> heads;
  for (std::size_t h = 0; h < kept.size(); ++h) {
    const std::size_t n = kept[h].size();
    std::vector<float> keys, values;
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t c = 0; c < kShape.head_dim; ++c) {
        const bool changed = h == 1 && i == change.entry && c == 5;
        keys.push_back(number_at(layer, h, kept[h][i], c) + (changed ? change.key : 0.0f));
        values.push_back(number_at(layer, h, kept[h][i], c + 64) + (changed ? change.value : 0.0f));
      }
    FrozenLayer::Head head;
    head.rows = PackedList(types, kShape.head_dim);
    head.rows.reserve(n);
    head.rows.append(keys.data(), values.data(), n);
    head.positions = kept[h];
    if (!bias.empty()) head.bias.assign(n, bias[h]);
    heads.push_back(std::move(head));
  }
  return FrozenLayer(kShape, std::move(heads));
}

// Several caches.
class MethodAuditTest : public testing::Test {
 protected:
  // One cache of two layers, the second with a change or a bias per head.
  void add(const std::string& label, const std::string& selection, const Positions& first,
           const Positions& second, const Change& change = {}, const std::vector<float>& bias = {},
           RowTypes types = {}) {
    AuditedCache cache{label, selection, {}};
    cache.layers.push_back(std::make_shared<const FrozenLayer>(
        make_layer(0, {first, second}, {}, bias.empty() ? bias : std::vector<float>{0, 0}, types)));
    cache.layers.push_back(
        std::make_shared<const FrozenLayer>(make_layer(1, {first, second}, change, bias, types)));
    caches_.push_back(std::move(cache));
  }
  CachePair only_pair() const {
    const std::vector<CachePair> pairs = compare_caches(caches_);
    EXPECT_EQ(pairs.size(), 1u);
    return pairs.front();
  }

  std::vector<AuditedCache> caches_;
};

// Two layers alike: head 0 shares 2 and 9 of {2, 5, 9} and {1, 2, 9, 12}, head 1 nothing.
TEST_F(MethodAuditTest, OverlapByHand) {
  add("a", "x", {2, 5, 9}, {0, 1});
  add("b", "y", {1, 2, 9, 12}, {2});
  const CachePair pair = only_pair();
  EXPECT_EQ(pair.n_both, 2u * 2);
  EXPECT_EQ(pair.n_either, 2u * (5 + 3));
  EXPECT_DOUBLE_EQ(pair.overlap(), 0.25);
  EXPECT_EQ(pair.relation, CacheRelation::kOtherEntries);
  EXPECT_FALSE(pair.is_fault());
}

TEST_F(MethodAuditTest, TheSamePositionsInOtherHeadsAreOtherEntries) {
  add("a", "x", {1, 2, 3}, {4, 5, 6});
  add("b", "y", {4, 5, 6}, {1, 2, 3});
  EXPECT_EQ(only_pair().overlap(), 0);
  EXPECT_EQ(only_pair().relation, CacheRelation::kOtherEntries);
}

TEST_F(MethodAuditTest, FindsAPlantedDuplicateAmongOthers) {
  add("a", "x", {1, 2, 3}, {4, 5});
  add("b", "y", {1, 2, 7}, {4, 5});
  add("duplicate of a", "z", {1, 2, 3}, {4, 5});
  add("c", "w", {0}, {});
  const std::vector<CachePair> pairs = compare_caches(caches_);
  ASSERT_EQ(pairs.size(), 6u);
  for (const CachePair& pair : pairs) {
    const bool planted = pair.first == 0 && pair.second == 2;
    EXPECT_EQ(pair.is_fault(), planted) << pair.first << " " << pair.second;
    EXPECT_EQ(pair.relation == CacheRelation::kSameCache, planted);
    EXPECT_EQ(pair.overlap() == 1, planted);
  }
}

// One selection: what merges or adds a bias is told apart by its numbers, each by its own kind.
TEST_F(MethodAuditTest, CountsTheEntriesWhoseNumbersDiffer) {
  const Positions first = {3, 8, 40};
  Positions second(70);  // more than two groups of rows
  for (std::size_t i = 0; i < second.size(); ++i) second[i] = static_cast<std::int32_t>(3 * i);
  add("evicts", "x", first, second);
  add("merges", "x", first, second, {67, 0, 0.5f});
  add("rewrites a key", "x", first, second, {1, 0.5f, 0});
  add("biases one head", "x", first, second, {}, {0, 0.25f});
  add("has biases of 0", "x", first, second, {}, {0, -0.0f});
  const std::vector<CachePair> pairs = compare_caches(caches_);
  const auto expect = [&](std::size_t i, std::size_t keys, std::size_t values, std::size_t biases) {
    EXPECT_EQ(pairs[i].n_keys, keys) << i;
    EXPECT_EQ(pairs[i].n_values, values) << i;
    EXPECT_EQ(pairs[i].n_biases, biases) << i;
    EXPECT_EQ(pairs[i].relation, keys + values + biases == 0 ? CacheRelation::kSameCache
                                                             : CacheRelation::kOtherNumbers);
    EXPECT_EQ(pairs[i].overlap(), 1);
  };
  expect(0, 0, 1, 0);   // evicts, merges
  expect(1, 1, 0, 0);   // evicts, rewrites a key
  expect(2, 0, 0, 70);  // evicts, biases one head: of layer 1
  expect(3, 0, 0, 0);   // evicts, has biases of 0
  expect(4, 1, 1, 0);   // merges, rewrites a key
  expect(5, 0, 1, 70);  // merges, biases one head
}

// A merge over another selection that keeps the same tokens: the merge must not hide it.
TEST_F(MethodAuditTest, TheSameEntriesByOtherStagesAreAFaultWhateverTheNumbers) {
  add("a", "score=snapkv select=head", {1, 2}, {3});
  add("b", "score=h2o select=head", {1, 2}, {3}, {0, 0, 1.0f});
  EXPECT_EQ(only_pair().relation, CacheRelation::kSameEntries);
  EXPECT_EQ(only_pair().n_values, 1u);
  EXPECT_TRUE(only_pair().is_fault());
}

TEST_F(MethodAuditTest, ReadsRowsOfAllTypes) {
  Positions second(40);
  for (std::size_t i = 0; i < second.size(); ++i) second[i] = static_cast<std::int32_t>(i);
  for (const RowType type : {RowType::kF16, RowType::kQ8_0, RowType::kQ4}) {
    caches_.clear();
    add("a", "x", {1, 2}, second, {}, {}, {type, type});
    add("b", "x", {1, 2}, second, {}, {}, {type, type});
    EXPECT_EQ(only_pair().relation, CacheRelation::kSameCache) << row_type_name(type);
    caches_.pop_back();
    add("c", "x", {1, 2}, second, {39, 0, 8.0f}, {}, {type, type});
    EXPECT_EQ(only_pair().relation, CacheRelation::kOtherNumbers) << row_type_name(type);
    EXPECT_EQ(only_pair().n_values, 1u) << row_type_name(type);
  }
}

TEST_F(MethodAuditTest, ResidualEntriesAreNumbersNotTokens) {
  const auto with_residual = [](std::size_t n_residual) {
    std::vector<FrozenLayer::Head> heads(2);
    for (FrozenLayer::Head& head : heads) {
      const std::vector<float> rows(3 * kShape.head_dim, 1.0f);
      head.rows = PackedList({}, kShape.head_dim);
      head.rows.append(rows.data(), rows.data(), 3);
      head.positions = {0, 1, 2};
      if (n_residual == 0) continue;
      head.residual_rows = PackedList({}, kShape.head_dim);
      head.residual_rows.append(rows.data(), rows.data(), n_residual);
      head.residual_bias.assign(n_residual, 1.0f);
    }
    return FrozenLayer(kShape, std::move(heads));
  };
  const auto plain = std::make_shared<const FrozenLayer>(with_residual(0));
  const auto more = std::make_shared<const FrozenLayer>(with_residual(2));
  caches_ = {{"plain", "x", {plain}}, {"more", "x", {more}}};
  const CachePair pair = only_pair();
  EXPECT_EQ(pair.n_either, 2u * 3);
  EXPECT_EQ(pair.overlap(), 1);
  EXPECT_EQ(pair.n_values, 2u * 2);
  EXPECT_EQ(pair.relation, CacheRelation::kOtherNumbers);
}

TEST_F(MethodAuditTest, OverlapsAgreeWithSetsOfTuples) {
  std::mt19937 draw(7);
  using Entries = std::set<std::tuple<std::size_t, std::size_t, std::int32_t>>;
  std::vector<Entries> entries;
  for (std::size_t c = 0; c < 5; ++c) {
    std::vector<Positions> kept(2);
    entries.emplace_back();
    for (std::size_t h = 0; h < 2; ++h)
      for (std::int32_t p = 0; p < 60; ++p)
        if (draw() % 3 != 0) {
          kept[h].push_back(p);
          for (std::size_t l = 0; l < 2; ++l) entries.back().insert({l, h, p});
        }
    add("cache " + std::to_string(c), std::to_string(c), kept[0], kept[1]);
  }
  for (const CachePair& pair : compare_caches(caches_)) {
    Entries either = entries[pair.first];
    std::size_t n_both = 0;
    for (const auto& entry : entries[pair.second]) n_both += either.insert(entry).second ? 0 : 1;
    EXPECT_EQ(pair.n_both, n_both);
    EXPECT_EQ(pair.n_either, either.size());
  }
}

TEST(SelectionStages, LeaveOutWhatChangesNumbersOnly) {
  const Registry registry = builtin_methods();
  EXPECT_EQ(selection_stages(registry.parse("full")), "full");
  const std::string snapkv = selection_stages(registry.parse("snapkv"));
  EXPECT_EQ(snapkv, registry.parse("snapkv").spec);
  EXPECT_EQ(selection_stages(registry.parse("merging")), snapkv);
  EXPECT_NE(selection_stages(registry.parse("snapkv(recent=31)")), snapkv);
  const std::string selkv = selection_stages(registry.parse("selkv"));
  EXPECT_EQ(selkv, registry.parse("selkv merge=none bias=none").spec);
  EXPECT_EQ(selection_stages(registry.parse("pyramidkv")), registry.parse("pyramidkv").spec);
}

class AuditOfAModel : public testing::Test {
 protected:
  void SetUp() override {
    engine_ = Engine::load(tiny_model("llama"), {.n_threads = 1, .matmul = MatmulMode::kSgemm});
    tokens_ = random_tokens(300, engine_->config().n_vocab, 3);
  }
  MethodAudit audit(const std::vector<std::string>& specs, const std::string& keep = "25%") const {
    AuditOptions options;
    for (const std::string& spec : specs)
      options.methods.push_back({builtin_methods().parse(spec), Budget::parse(keep), spec, {}});
    return audit_methods(engine_, tokens_, options);
  }
  std::string refusal(const std::vector<std::string>& specs, const std::string& keep) const {
    try {
      audit(specs, keep);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return "";
  }

  std::shared_ptr<const Engine> engine_;
  std::vector<Token> tokens_;
};

TEST_F(AuditOfAModel, EveryPairIsWhereItBelongs) {
  const MethodAudit found = audit({"full", "streaming", "snapkv", "merging", "selkv"});
  EXPECT_EQ(found.n_tokens, 300u);
  ASSERT_EQ(found.pairs.size(), 10u);
  for (std::size_t a = 0; a < 5; ++a)
    for (std::size_t b = 0; b < 5; ++b) {
      if (a == b) continue;
      EXPECT_EQ(found.pair(a, b).first, std::min(a, b));
      EXPECT_EQ(found.pair(a, b).second, std::max(a, b));
      EXPECT_FALSE(found.pair(a, b).is_fault());
    }
  const ModelConfig& c = engine_->config();
  EXPECT_EQ(found.n_entries[0], c.n_layers * c.n_kv_heads * 300);
  // `full` holds every entry of the others, so the overlap is theirs over its own.
  for (std::size_t m = 1; m < 5; ++m) {
    EXPECT_EQ(found.pair(0, m).n_both, found.n_entries[m]);
    EXPECT_EQ(found.pair(0, m).n_either, found.n_entries[0]);
  }
  EXPECT_EQ(found.pair(2, 3).relation, CacheRelation::kOtherNumbers);
  EXPECT_GT(found.pair(2, 3).n_values, 0u);
  EXPECT_EQ(found.pair(2, 3).n_keys, 0u);
  EXPECT_EQ(found.nearest(2), 3u);
  EXPECT_EQ(found.nearest(3), 2u);
}

TEST_F(AuditOfAModel, FindsOneMethodUnderTwoNames) {
  const MethodAudit found =
      audit({"snapkv", "h2o", "score=snapkv select=head(recent=32,sinks=0) merge=none"});
  EXPECT_EQ(found.pair(0, 2).relation, CacheRelation::kSameCache);
  EXPECT_FALSE(found.pair(0, 1).is_fault());
}

TEST_F(AuditOfAModel, RefusesWhatTellsNothing) {
  EXPECT_NE(refusal({"snapkv"}, "25%").find("2 methods"), std::string::npos);
  const std::string whole = refusal({"streaming", "snapkv"}, "100%");
  EXPECT_NE(whole.find("'streaming'"), std::string::npos) << whole;
  EXPECT_NE(whole.find("300"), std::string::npos) << whole;
}

}  // namespace
}  // namespace precis::test
