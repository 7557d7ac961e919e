// A method is a choice of stages; the registry knows the stages and presets by name; a SPEC is a
// method as text. Grammar (whitespace separates words):
//
//   SPEC   := PRESET [ARGS] STAGE* | STAGE+
//   STAGE  := KIND '=' NAME [ARGS]
//   KIND   := score | select | layers | merge | bias | positions | residual | decode
//
//   ARGS   := '(' KEY '=' VALUE (',' KEY '=' VALUE)* ')'
//
//   VALUE  := letters, digits and _-+. or, for a path, what stands between two "
//
// ARGS of a preset set any parameter of its stages by name (in every stage that has it), or a stage
// itself (select=shared). Later STAGE words replace the preset's stage of that kind, with its own
// parameters. layers, merge, bias, positions and residual may be "none". A method without stages
// keeps everything ("full"). A residual stage goes with every other one but positions: the mean of
// keys that stood apart has no place to be turned to. decode is not a stage but a choice:
// decode=once condenses the prompt, which is the default and not printed; decode=step then keeps
// the cache at its size while text is generated, if the stages have a rule for that (step.h) and
// none is a residual. Examples:
//
//   selkv select=head
//   selkv(alpha=1,mode=head)
//   score=random select=head(recent=32)
//   snapkv layers=evolkv(path="budgets.json")
//   h2o decode=step
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/fields.h"
#include "compress/residual.h"
#include "compress/stage.h"

namespace precis {

struct StepRules;

enum class StageKind { kScore, kSelect, kLayers, kMerge, kBias, kPositions, kResidual };

const char* stage_kind_name(StageKind kind);  // "score", "select", "layers", "merge", ...

// A parsed SPEC: shared, immutable stages and the canonical text that parses back to the same
// method.
struct Method {
  std::string spec;                                // canonical
  std::shared_ptr<const Scorer> scorer;            // nullptr: keep everything
  std::shared_ptr<const Selector> selector;        // nullptr with scorer == nullptr only
  std::shared_ptr<const LayerBudgets> layers;      // nullptr: all layers alike; needs a selector
  std::shared_ptr<const Merger> merger;            // may be nullptr
  std::shared_ptr<const Compensator> compensator;  // may be nullptr; needs a merger
  std::shared_ptr<const Positioner> positioner;    // nullptr: entries stay where they stood
  std::shared_ptr<const Residual> residual;        // nullptr: what is evicted is gone
  bool steps = false;                              // decode=step

  bool is_full() const { return scorer == nullptr; }
  // What the stages read of a prompt of n_tokens tokens, all together.
  Observation observation(std::size_t n_tokens) const;
  // Whether its stages can do decode=step, and if not the first of them that cannot.
  bool can_step() const { return no_step_reason().empty(); }
  std::string no_step_reason() const;
  // REQUIRES: can_step().
  StepRules step_rules() const;
};

class Registry {
 public:
  // One stage of one paper: how to list its parameters and how to build it.
  struct Stage {
    StageKind kind;
    std::string name;
    std::string citation;
    std::string summary;
    std::vector<FieldInfo> fields;  // with default values
    bool steps = false;             // has a rule for decode=step
    // Builds from (name, value) pairs; throws Error(kInvalidArgument) for a bad one. The result is
    // one of the seven shared stage pointers, stored in the matching member of `into`.
    std::function<void(const std::vector<std::pair<std::string, std::string>>& args, Method& into,
                       std::vector<FieldInfo>& canonical)>
        build;
  };
  struct Preset {
    std::string name;
    std::string stages;  // "score=... select=..."; empty for `full`
    std::string citation;
    std::string summary;
  };

  // A stage of which some numbers stand in a file, written KIND=NAME(path="FILE"). The canonical
  // SPEC has the numbers in its place, as a stage of this kind with parameters: so it needs no
  // file, and says the same when the file has changed.
  struct FileStage {
    StageKind kind;
    std::string name;
    std::string citation;
    std::string summary;
    std::function<std::string(const std::vector<double>& numbers)> stage;
  };
  // The numbers in a file that a SPEC names. Throws Error that names the file.
  using ReadNumbers = std::function<std::vector<double>(const std::string& path)>;

  // Adds a stage of class S, constructed from its parameter struct P (see base/fields.h).
  template <class S, class P>
  void add_stage(StageKind kind, std::string name, std::string citation, std::string summary);
  void add_preset(Preset preset);
  void add_file_stage(FileStage stage);

  const std::vector<Stage>& stages() const { return stages_; }
  const std::vector<Preset>& presets() const { return presets_; }
  const std::vector<FileStage>& file_stages() const { return file_stages_; }

  // Files that the SPEC names are read now, and only with read_numbers: a SPEC from elsewhere must
  // not open any. Throws Error(kInvalidArgument): unknown names list the nearest known ones, syntax
  // errors give the position (column, from 1) of the offending character.
  Method parse(std::string_view spec, const ReadNumbers& read_numbers = {}) const;

 private:
  std::vector<Stage> stages_;
  std::vector<Preset> presets_;
  std::vector<FileStage> file_stages_;
};

namespace detail {
inline std::shared_ptr<const Scorer>& stage_slot(Method& m, const Scorer*) { return m.scorer; }
inline std::shared_ptr<const Selector>& stage_slot(Method& m, const Selector*) {
  return m.selector;
}
inline std::shared_ptr<const LayerBudgets>& stage_slot(Method& m, const LayerBudgets*) {
  return m.layers;
}
inline std::shared_ptr<const Merger>& stage_slot(Method& m, const Merger*) { return m.merger; }
inline std::shared_ptr<const Compensator>& stage_slot(Method& m, const Compensator*) {
  return m.compensator;
}
inline std::shared_ptr<const Positioner>& stage_slot(Method& m, const Positioner*) {
  return m.positioner;
}
inline std::shared_ptr<const Residual>& stage_slot(Method& m, const Residual*) {
  return m.residual;
}

template <class S>
bool can_step(const S& stage) {
  if constexpr (std::is_base_of_v<Scorer, S> || std::is_base_of_v<Merger, S>)
    return stage.step() != nullptr;
  else if constexpr (std::is_base_of_v<Selector, S>)
    return stage.step_scope() != StepScope::kNone;
  else
    return false;
}
}  // namespace detail

template <class S, class P>
void Registry::add_stage(StageKind kind, std::string name, std::string citation,
                         std::string summary) {
  Stage stage{
      kind, std::move(name), std::move(citation), std::move(summary), list_fields(P{}), false, {}};
  stage.steps = detail::can_step(S(P{}));
  stage.build = [](const std::vector<std::pair<std::string, std::string>>& args, Method& into,
                   std::vector<FieldInfo>& canonical) {
    P params;
    for (const auto& [key, value] : args) set_field(params, key, value);
    canonical = list_fields(params);
    detail::stage_slot(into, static_cast<const S*>(nullptr)) = std::make_shared<const S>(params);
  };
  stages_.push_back(std::move(stage));
}

}  // namespace precis
