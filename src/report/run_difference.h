// How two runs differ, in words.
#pragma once

#include <optional>
#include <string>

#include "report/result_row.h"

namespace precis {

// The first field in which two runs differ: "field 'seed' is 1 and 2", "field 'settings.keep' is
// ["10%"] and ["25%"]". Nothing if they are the same.
std::optional<std::string> run_difference(const RunRow& a, const RunRow& b);

// The run as if it had not been dealt out: shard 1 of 1.
RunRow without_shard(RunRow run);

// The same but for their shards.
std::optional<std::string> run_difference_beside_shard(const RunRow& a, const RunRow& b);

}  // namespace precis
