// What every method promises, for every preset and every stage of the registry.
#include <gtest/gtest.h>

#include <cctype>
#include <set>

#include "base/error.h"
#include "compress/condenser.h"
#include "compress/layer_case.h"
#include "compress/matrix_output.h"
#include "methods/registry.h"
#include "support/head_rows.h"

namespace precis {

#define PRECIS_METHOD(name) void register_##name(Registry& registry);
#include "methods/methods.def"
#undef PRECIS_METHOD

namespace {

using test::fingerprint;
using test::LayerCase;
using test::make_layer;
using test::Pattern;

// Everything that a method may look at is there.
const Rope kRope{12, false, {1.0, 0.3, 0.1, 0.03, 0.01, 0.003}, 1.0f};
const test::MatrixOutput kOutput(40, 3 * 2 * 16, 1);
constexpr LayerShape kShape{{3, 16}, 2, {0.25f, 0.0f}, &kRope, &kOutput};

// Every preset, and every stage in a method that is otherwise SelKV's.
std::vector<std::string> all_specs() {
  const Registry registry = builtin_methods();
  std::vector<std::string> specs;
  for (const Registry::Preset& preset : registry.presets()) specs.push_back(preset.name);
  for (const Registry::Stage& stage : registry.stages())
    specs.push_back(std::string("selkv ") + stage_kind_name(stage.kind) + "=" + stage.name);
  specs.push_back("selkv bias=none merge=none");
  specs.push_back("selkv(mode=head,gate=one,sinks=4)");
  specs.push_back("selkv(select=head,mode=layer)");
  specs.push_back("snapkv(kind=avg)");
  specs.push_back("criticaladakv layers=global");
  // Residual entries wherever they fit, and by validation over bases of every kind.
  specs.push_back("reskv(validate=off,parts=0.25,gate=linear)");
  specs.push_back("snapkv residual=reskv(validate=layer,calibrate=mass,metric=query)");
  specs.push_back("selkv residual=reskv(validate=off,calibrate=mass)");
  specs.push_back("selkv(mode=global) residual=reskv(validate=off)");
  specs.push_back("adakv residual=reskv(validate=off,metric=query)");
  specs.push_back("cam residual=reskv");
  specs.push_back("tova residual=reskv");
  specs.push_back("adakv layers=global residual=reskv(validate=off)");
  specs.push_back("match residual=reskv(validate=off)");
  specs.push_back("kvzip merge=match bias=ratio(alpha=1,mode=head)");
  specs.push_back("selkv(mode=global) layers=global");
  return specs;
}

struct Outcome {
  std::vector<FrozenLayer> layers;
  CompressionReport report;
  std::size_t m = 0;
};

Outcome condense(const Method& method, const std::string& keep,
                 const std::vector<LayerCase>& layers, Executor& executor,
                 std::uint64_t seed = 42) {
  std::vector<LayerShape> shapes;
  for (const LayerCase& layer : layers) shapes.push_back(layer.shape);
  Condenser condenser(method, Budget::parse(keep), shapes, layers[0].n_tokens, seed);
  Outcome run;
  run.m = condenser.entries_per_head();
  for (std::size_t l = 0; l < layers.size(); ++l)
    condenser.condense_layer(l, layers[l].dense, layers[l].observed, executor);
  run.layers = condenser.finish(executor);
  run.report = condenser.report();
  return run;
}

std::string bits(const Outcome& run) {
  std::string out;
  for (const FrozenLayer& layer : run.layers) out += fingerprint(layer);
  return out;
}

class Contract : public ::testing::TestWithParam<std::string> {
 protected:
  Method method() const { return builtin_methods().parse(GetParam()); }
  // full has no protection; the others protect the same tokens whatever they score.
  Protection protection(const Method& method) const {
    return method.is_full() ? Protection{} : method.selector->protection();
  }
};

TEST_P(Contract, CanonicalSpecParsesBackToItself) {
  const Registry registry = builtin_methods();
  const std::string canonical = registry.parse(GetParam()).spec;
  EXPECT_EQ(registry.parse(canonical).spec, canonical);
}

TEST_P(Contract, StaysInsideTheBudgetAndUsesIt) {
  const Method method = this->method();
  SerialExecutor serial;
  const std::vector<LayerCase> layers = {make_layer(kShape, 160, Pattern::kRandom, 1),
                                         make_layer(kShape, 160, Pattern::kRandom, 2)};
  for (const char* keep : {"30%", "60", "50000B", "75%"}) {
    const Outcome run = condense(method, keep, layers, serial);
    if (method.is_full()) {
      EXPECT_EQ(run.report.kept_bytes, run.report.dense_bytes);
      continue;
    }
    const std::size_t allowed = Budget::parse(keep).bytes(run.report.dense_bytes, 160);
    std::size_t bytes = 0;
    for (const FrozenLayer& layer : run.layers) bytes += layer.bytes();
    EXPECT_EQ(bytes, run.report.kept_bytes);
    EXPECT_LE(bytes, allowed);
    // No more is wasted than the bytes of one more entry in every head and of biases that are all
    // 0.
    EXPECT_GE(bytes + 2 * 3 * (run.m * 4 + 72), allowed) << keep;
  }
}

TEST_P(Contract, KeepsProtectedTokensAndOrderedUniquePositions) {
  const Method method = this->method();
  SerialExecutor serial;
  for (const Pattern pattern : {Pattern::kRandom, Pattern::kRepeated, Pattern::kZeros}) {
    const Outcome run = condense(method, "40%", {make_layer(kShape, 150, pattern, 3)}, serial);
    for (std::size_t h = 0; h < 3; ++h) {
      const std::vector<std::int32_t> kept = test::kept_positions(run.layers[0], h);
      for (std::size_t i = 1; i < kept.size(); ++i) ASSERT_LT(kept[i - 1], kept[i]);
      for (std::int32_t t = 0; t < 150; ++t) {
        if (protection(method).covers(static_cast<std::size_t>(t), 150)) {
          EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), t)) << t;
        }
      }
    }
  }
}

TEST_P(Contract, SameBitsForAnyNumberOfWorkersAndCalls) {
  const Method method = this->method();
  const std::vector<LayerCase> layers = {make_layer(kShape, 150, Pattern::kRandom, 4),
                                         make_layer(kShape, 150, Pattern::kRepeated, 5)};
  const std::vector<LayerCase> other = {make_layer(kShape, 97, Pattern::kRandom, 6)};
  SerialExecutor serial;
  test::ThreadExecutor four(4);
  const std::string first = bits(condense(method, "40%", layers, serial));
  condense(method, "60%", other, serial);  // the stages must keep nothing between calls
  EXPECT_EQ(bits(condense(method, "40%", layers, serial)), first);
  EXPECT_EQ(bits(condense(method, "40%", layers, four)), first);
}

TEST_P(Contract, StaysFiniteOnExtremeInput) {
  const Method method = this->method();
  SerialExecutor serial;
  for (const Pattern pattern :
       {Pattern::kZeros, Pattern::kEqualKeys, Pattern::kHuge, Pattern::kRepeated}) {
    const Outcome run = condense(method, "50%", {make_layer(kShape, 140, pattern, 7)}, serial);
    for (std::size_t h = 0; h < 3; ++h) {
      const test::HeadRows view(run.layers[0], h);
      ASSERT_GT(view.n, 0u);
      for (std::size_t i = 0; i < view.n * 16; ++i)
        ASSERT_TRUE(std::isfinite(to_float(view.values[i])) &&
                    std::isfinite(to_float(view.keys[i])))
            << test::pattern_name(pattern);
      for (std::size_t i = 0; view.bias != nullptr && i < view.n; ++i)
        ASSERT_TRUE(std::isfinite(view.bias[i])) << test::pattern_name(pattern);
    }
  }
}

TEST_P(Contract, WorksJustAboveTheProtectedTokensAndBelowTheWindow) {
  const Method method = this->method();
  SerialExecutor serial;
  const std::size_t n_protected = protection(method).count(1000);
  // Where positions and biases cost little.
  const test::MatrixOutput output(20, 3 * 2 * 128, 2);
  const LayerShape wide{{3, 128}, 2, {0.125f, 0.0f}, &kRope, &output};
  const std::size_t fewest = std::max<std::size_t>(n_protected, 1);  // entries of a valid budget
  for (std::size_t n = fewest + 1; n < fewest + 4; ++n) {
    // The largest budget that still evicts a token.
    const Outcome run = condense(method, concat(n * 3 * wide.kv.row_pair_bytes() - 1, "B"),
                                 {make_layer(wide, n, Pattern::kRandom, 8)}, serial);
    if (method.is_full()) continue;
    EXPECT_FALSE(run.report.skipped.has_value());
    std::size_t kept = 0;  // heads may share the budget unevenly
    for (std::size_t h = 0; h < 3; ++h) kept += run.layers[0].n_entries(h);
    EXPECT_EQ(kept, 3 * run.m);
    EXPECT_LT(run.m, n);
  }
}

TEST_P(Contract, AShortPromptIsLeftWhole) {
  const Method method = this->method();
  SerialExecutor serial;
  const std::size_t n = std::max<std::size_t>(protection(method).count(1000), 1);
  // Where nothing is protected, no prompt is short.
  if (!method.is_full() && protection(method).count(1000) == 0) return;
  const LayerCase layer = make_layer(kShape, n, Pattern::kRandom, 8);
  const Outcome run = condense(method, "10%", {layer}, serial);
  EXPECT_EQ(bits(run), fingerprint(FrozenLayer::from_tail(layer.dense)));
  EXPECT_EQ(run.report.skipped.has_value(), !method.is_full());
}

TEST_P(Contract, KeepingEverythingIsFullBitForBit) {
  SerialExecutor serial;
  const std::vector<LayerCase> layers = {make_layer(kShape, 90, Pattern::kRandom, 9),
                                         make_layer(kShape, 90, Pattern::kRandom, 10)};
  const Method full = builtin_methods().parse("full");
  const std::string expected = bits(condense(full, "20%", layers, serial));
  for (const char* keep : {"100%", "90", "1.0", "1TiB"})
    EXPECT_EQ(bits(condense(method(), keep, layers, serial)), expected) << keep;
}

TEST_P(Contract, ALayerDependsOnNoOtherLayerUnlessBudgetsOrBiasesAreShared) {
  const Method method = this->method();
  if (method.layers != nullptr && method.layers->sees_scores()) return;
  if (method.compensator != nullptr && method.compensator->needs_all_layers()) return;
  SerialExecutor serial;
  const LayerCase a = make_layer(kShape, 120, Pattern::kRandom, 11);
  const LayerCase b = make_layer(kShape, 120, Pattern::kRandom, 12);
  const LayerCase c = make_layer(kShape, 120, Pattern::kRandom, 13);
  const Outcome among = condense(method, "50%", {a, b}, serial);
  const Outcome others = condense(method, "50%", {c, b}, serial);
  EXPECT_TRUE(fingerprint(among.layers[1]) == fingerprint(others.layers[1]));
  // Random choices are seeded by the layer's number, so equal layers choose otherwise.
  if (method.spec.find("score=random") != std::string::npos ||
      method.spec.find("score=keyformer") != std::string::npos) {
    const Outcome alone = condense(method, "50%", {b}, serial);
    EXPECT_FALSE(fingerprint(among.layers[1]) == fingerprint(alone.layers[0]));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Contract, ::testing::ValuesIn(all_specs()), [](const auto& info) {
  std::string name;
  for (const char c : info.param)
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

TEST(Registry, EveryStageAndPresetIsDescribed) {
  const Registry registry = builtin_methods();
  // Files of stages that other methods take; every other file has a preset.
  const std::set<std::string> stages_only = {"top_entries", "layer_weights", "evolkv",
                                             "global_budget", "positions"};
#define PRECIS_METHOD(name)                                                   \
  {                                                                           \
    Registry own;                                                             \
    register_##name(own);                                                     \
    EXPECT_EQ(own.presets().empty(), stages_only.count(#name) == 1) << #name; \
  }
#include "methods/methods.def"
#undef PRECIS_METHOD
  for (const Registry::Stage& stage : registry.stages()) {
    EXPECT_FALSE(stage.citation.empty()) << stage.name;
    EXPECT_FALSE(stage.summary.empty()) << stage.name;
    for (const FieldInfo& field : stage.fields) {
      EXPECT_FALSE(field.help.empty()) << stage.name << " " << field.name;
      // Parameters of a preset and replacements of its stages share one name space.
      for (const char* kind :
           {"score", "select", "layers", "merge", "bias", "positions", "residual"})
        EXPECT_NE(field.name, kind);
    }
  }
  for (const Registry::Preset& preset : registry.presets()) {
    EXPECT_FALSE(preset.citation.empty()) << preset.name;
    EXPECT_FALSE(preset.summary.empty()) << preset.name;
  }
}

TEST(Registry, PresetsAreThePapersSettings) {
  const Registry registry = builtin_methods();
  EXPECT_EQ(registry.parse("full").spec, "full");
  EXPECT_EQ(registry.parse("random").spec, "score=random select=head(recent=16,sinks=4)");
  EXPECT_EQ(registry.parse("streaming").spec, "score=recency select=head(recent=16,sinks=4)");
  EXPECT_EQ(registry.parse("snapkv").spec,
            "score=snapkv(window=32,pool=7,kind=max) select=head(recent=32,sinks=0)");
  EXPECT_EQ(registry.parse("selkv").spec,
            "score=selkv(window=32,pool=5) select=shared(recent=16,sinks=0) "
            "merge=selkv(block=32,window=32,gate=cos,cap=0) bias=ratio(alpha=0.5,mode=layer)");
}

TEST(Registry, EvenPoolsAreRejected) {
  for (const char* spec : {"selkv(pool=4)", "snapkv(pool=2)"}) {
    try {
      builtin_methods().parse(spec);
      FAIL() << spec;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("must be odd"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace precis
