#include <cstdio>
#include <string>

#include "app/commands.h"
#include "methods/registry.h"

namespace precis::app {
namespace {

void print_methods() {
  const Registry registry = builtin_methods();
  std::printf("Presets (--method NAME):\n");
  for (const Registry::Preset& preset : registry.presets()) {
    std::printf("  %-12s %s", preset.name.c_str(), preset.summary.c_str());
    if (!preset.citation.empty()) std::printf(" (%s)", preset.citation.c_str());
    std::printf("\n               = %s\n", registry.parse(preset.name).spec.c_str());
  }
  std::printf(
      "\nStages (--method 'KIND=NAME(PARAMETER=VALUE,...) ...', or after a preset to change "
      "it):\n");
  for (const Registry::Stage& stage : registry.stages()) {
    std::printf("  %s=%s  %s", stage_kind_name(stage.kind), stage.name.c_str(),
                stage.summary.c_str());
    if (!stage.citation.empty()) std::printf(" (%s)", stage.citation.c_str());
    std::printf("\n");
    for (const FieldInfo& field : stage.fields)
      std::printf("      %s=%s  (%s) %s\n", field.name.c_str(), field.value.c_str(),
                  field.domain.c_str(), field.help.c_str());
  }
}

}  // namespace

Command add_methods(CLI::App& parent) {
  parent.add_subcommand("methods", "List the compression methods, their stages and parameters");
  return print_methods;
}

}  // namespace precis::app
