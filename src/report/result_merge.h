// Shards of one run become the file that the run would have written by itself.
#pragma once

#include <string>
#include <vector>

#include "report/result_file.h"

namespace precis {

// A run deals its samples out in turn: of n shards, number s gets the samples s - 1, s - 1 + n, ...
// of the run's order, with all their rows together. So the samples are taken back in turn, from
// shard 1 on. A sample is a sequence of rows with equal suite, task, length and index. The run row
// becomes that of shard 1 of 1. Works for files of times alike.
//
// Throws Error(kFormat) that names files and values: when runs differ, a shard is there twice or
// not at all, a shard has fewer samples than its turn asks for (it was not finished), two rows with
// the same key are not identical (identical ones are taken once), or a sample is in two places.
// `allow_partial`: missing shards and samples are left out; the run row's left_out says how many.
ResultFile merge_results(std::vector<ResultFile> shards, bool allow_partial = false);

}  // namespace precis
