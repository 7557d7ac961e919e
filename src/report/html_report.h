// The report as one HTML file that needs nothing else: no network, no fonts, no files beside it.
#pragma once

#include <string>
#include <vector>

#include "report/summary.h"

namespace precis {

struct HtmlOptions {
  std::string title = "Precis evaluation";
};

// `files` are those that the summary was made of. Everything in them is shown as text. The page
// forbids itself, by a content security policy with hashes, any script and style but its own and
// any request. Stays below 5 MB whatever the files hold: of long tables, pictures and answers the
// first ones are shown, and the page says so.
std::string html_report(const Summary& summary, const std::vector<ResultFile>& files,
                        const HtmlOptions& options = {});

}  // namespace precis
