#include "model/weight_forms.h"

#include <algorithm>

#include "base/error.h"

namespace precis {
namespace {

constexpr int kMostPairs = 5;
// Ratios that more runs would not move across kLeastSpeedup. On a machine that is busy with other
// things a run may take a second instead of 10 ms.
constexpr double kClearLoss = 1.0;
constexpr double kClearGain = 1.25;

struct ModeName {
  WeightsMode mode;
  const char* name;
};
constexpr ModeName kModeNames[] = {
    {WeightsMode::kAuto, "auto"}, {WeightsMode::kFile, "file"}, {WeightsMode::kQ8_0, "q8_0"}};

}  // namespace

const char* weights_mode_name(WeightsMode mode) {
  for (const ModeName& m : kModeNames)
    if (m.mode == mode) return m.name;
  PRECIS_CHECK(false, static_cast<int>(mode));
}

WeightsMode parse_weights_mode(std::string_view name) {
  for (const ModeName& m : kModeNames)
    if (name == m.name) return m.mode;
  throw Error(ErrorCode::kInvalidArgument,
              concat("'", name, "' is no form of weights: auto, file or q8_0"));
}

std::size_t WeightsReport::added_bytes() const {
  std::size_t added = 0;
  for (const WeightForm& form : forms)
    if (form.is_converted) added += form.converted_bytes - form.file_bytes;
  return added;
}

double measure_speedup(const FormTimer& timer) {
  timer(FormWay::kFile);  // what was written last is still in the caches
  timer(FormWay::kConverted);
  double file = timer(FormWay::kFile);
  double converted = timer(FormWay::kConverted);
  for (int pair = 1; pair < kMostPairs; ++pair) {
    const double speedup = file / converted;
    if (pair > 1 && (speedup < kClearLoss || speedup > kClearGain)) break;
    file = std::min(file, timer(FormWay::kFile));
    converted = std::min(converted, timer(FormWay::kConverted));
  }
  return file / converted;
}

}  // namespace precis
