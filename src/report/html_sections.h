// The parts of the HTML report; html_report.h puts them together.
#pragma once

#include <string>
#include <vector>

#include "report/html_text.h"
#include "report/summary.h"

namespace precis {

struct HtmlSection {
  std::string title;  // as text
  std::string body;   // as HTML
};

// What was run: settings, model, how to repeat it, what was left out or skipped.
HtmlSection run_section(const Summary& summary, const std::vector<ResultFile>& files,
                        PageState& page);
HtmlSection score_section(const Summary& summary, const ScoreTable& table, PageState& page);
HtmlSection fidelity_section(const Summary& summary, const FidelityTable& table, PageState& page);
// Of all suites; empty if there is nothing to tell.
HtmlSection timing_section(const Summary& summary, PageState& page);
// Pictures of what was kept; an empty body if there are none.
HtmlSection kept_section(const Summary& summary, PageState& page);
// At most 200 answers, the worst losses against the baseline first; empty if there are none.
HtmlSection answer_section(const Summary& summary, PageState& page);

// Answers to questions without a known answer, at most 200; empty if there are none.
HtmlSection unscored_section(const Summary& summary, PageState& page);

// "selkv @ 25%", for single rows.
std::string variant_name(const RowKey& key);
// "ruler, question unknown while condensing", with the model where there are several.
std::string section_title(const Summary& summary, std::size_t source, const std::string& text);

}  // namespace precis
