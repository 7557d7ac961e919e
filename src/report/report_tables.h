// A summary as tables for people. Scores are shown from 0 to 100.
#pragma once

#include <string>
#include <vector>

#include "report/summary.h"
#include "report/table.h"

namespace precis {

// One line for each variant: the average over tasks, how sure it is, how it differs from the
// baseline. One table for each line of `averages`.
std::vector<Table> average_tables(const ScoreTable& table);
// Tasks down, variants across: means, marked where they differ from the baseline.
Table task_table(const ScoreTable& table);
// Every task and variant with all figures.
Table detail_table(const ScoreTable& table);
Table fidelity_table(const FidelityTable& table);
Table timing_table(const TimingTable& table);

// "better than full", "worse than full", "not distinguishable from full", with "(only 3 samples
// differ)" where an interval without 0 rests on too few. `smaller_is_better`: for divergences.
std::string verdict_text(const Comparison& comparison, const std::string& baseline,
                         bool smaller_is_better = false);
// "question unknown while condensing" and its opposite; other texts as they are.
std::string query_text(const std::string& query);
// "ruler, question unknown while condensing".
std::string setting_text(const std::string& suite, const std::string& query);
// "niah_single_1, 4096 tokens".
std::string task_text(const std::string& task, std::size_t length);

// The document of `precis report --format md`.
std::string print_markdown(const Summary& summary, const std::string& title);

}  // namespace precis
