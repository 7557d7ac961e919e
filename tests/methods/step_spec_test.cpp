// decode= in a SPEC: which methods have decode=step, how it is written, and what is refused.
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "methods/registry.h"

namespace precis {
namespace {

std::string refusal(const std::string& spec) {
  try {
    return "accepted: " + builtin_methods().parse(spec).spec;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
}

TEST(StepSpec, TheseHaveIt) {
  std::set<std::string> names;
  const Registry registry = builtin_methods();
  for (const Registry::Preset& preset : registry.presets())
    if (registry.parse(preset.name).can_step()) names.insert(preset.name);
  EXPECT_EQ(names, (std::set<std::string>{"cam", "h2o", "keyformer", "scissorhands", "squeeze",
                                          "streaming", "tova", "vatp", "weightedkv"}));
}

TEST(StepSpec, IsPrintedOnlyWhenItIsNotTheDefault) {
  const Registry registry = builtin_methods();
  for (const Registry::Preset& preset : registry.presets()) {
    const Method plain = registry.parse(preset.name);
    EXPECT_EQ(plain.spec.find("decode"), std::string::npos) << plain.spec;
    EXPECT_FALSE(plain.steps);
    if (preset.name == "full") continue;
    EXPECT_EQ(registry.parse(preset.name + " decode=once").spec, plain.spec);
    if (!plain.can_step()) continue;
    const Method steps = registry.parse(preset.name + " decode=step");
    EXPECT_TRUE(steps.steps);
    EXPECT_EQ(steps.spec, plain.spec + " decode=step");
    EXPECT_EQ(registry.parse(steps.spec).spec, steps.spec);
    EXPECT_TRUE(registry.parse(steps.spec).steps);
    EXPECT_EQ(registry.parse(preset.name + "(decode=step)").spec, steps.spec);
  }
}

TEST(StepSpec, OthersAreRefusedWithAListOfThoseThatHaveIt) {
  const std::string message = refusal("snapkv decode=step");
  EXPECT_NE(message.find("column 8"), std::string::npos) << message;
  EXPECT_NE(message.find("score stage"), std::string::npos) << message;
  for (const char* name : {"h2o", "tova", "scissorhands", "keyformer", "vatp", "cam", "weightedkv",
                           "select=mean", "merge=cam"})
    EXPECT_NE(message.find(name), std::string::npos) << name << " in: " << message;
  EXPECT_EQ(message.find("snapkv"), std::string::npos) << message;
  EXPECT_NE(refusal("full decode=step").find("evicts nothing"), std::string::npos);
  EXPECT_NE(refusal("h2o select=adakv decode=step").find("select stage"), std::string::npos);
  EXPECT_NE(refusal("h2o merge=selkv decode=step").find("merge stage"), std::string::npos);
  EXPECT_NE(refusal("cam bias=ratio decode=step").find("bias=none"), std::string::npos);
  EXPECT_NE(refusal("h2o positions=compact decode=step").find("positions=none"), std::string::npos);
}

TEST(StepSpec, ItsSyntaxIsChecked) {
  EXPECT_NE(refusal("h2o decode=twice").find("known: once, step"), std::string::npos);
  EXPECT_NE(refusal("h2o decode=step(n=1)").find("has no parameters"), std::string::npos);
  EXPECT_NE(refusal("h2o decode=step decode=once").find("given twice"), std::string::npos);
  EXPECT_NE(refusal("h2o stop=step").find("decode"), std::string::npos);
}

}  // namespace
}  // namespace precis
