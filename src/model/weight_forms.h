// In which form the quantised matrices of a model are multiplied: as the file stores them, or
// converted when the model is loaded to a type whose products are faster. Only conversions that
// lose nothing are made: the converted weights expand to the same numbers bit for bit.
//
// Which form is faster depends on the processor and the number of threads (a converted matrix has
// more bytes and less to unpack), so it is measured when a model is loaded. Converted matrices lie
// in private memory instead of the shared mapping of the file.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace precis {

// kAuto measures. kFile converts nothing. kQ8_0 converts whatever fits q8_0 exactly without
// measuring, e.g. to have the same form on every run.
enum class WeightsMode { kAuto, kFile, kQ8_0 };

const char* weights_mode_name(WeightsMode mode);
// "auto", "file" or "q8_0"; throws Error(kInvalidArgument) naming the three otherwise.
WeightsMode parse_weights_mode(std::string_view name);

// What was decided for the matrices of one type that has an exact faster form.
struct WeightForm {
  std::string type;       // ggml's name, e.g. "q5_0"
  std::string converted;  // the other form's
  std::size_t n_matrices = 0;
  std::size_t file_bytes = 0;
  std::size_t converted_bytes = 0;
  double speedup = 0;  // of a product with one token, by converting; 0: not measured
  bool is_converted = false;
};

struct WeightsReport {
  WeightsMode mode = WeightsMode::kAuto;
  std::vector<WeightForm> forms;  // of the types that could be converted
  double measuring_ms = 0;

  // By how much the matrices that a token reads are larger than in the file.
  std::size_t added_bytes() const;
};

enum class FormWay { kFile, kConverted };
// Multiplies one token by matrices in one form and returns the time in any unit.
using FormTimer = std::function<double(FormWay way)>;

// Below this a conversion is not worth its memory.
constexpr double kLeastSpeedup = 1.1;

// Time in the file's form over time converted: the best of a few runs of both, in turns; fewer if
// the ratio is clear after two.
double measure_speedup(const FormTimer& timer);

}  // namespace precis
