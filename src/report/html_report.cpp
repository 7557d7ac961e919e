#include "report/html_report.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/error.h"
#include "report/content_hash.h"
#include "report/html_sections.h"
#include "report/html_style.h"
#include "report/number_text.h"

namespace precis {
namespace {

constexpr std::size_t kMostSections = 40;

int hex_digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

// Base 64 of the bytes that a hexadecimal text stands for.
std::string base64_of_hex(const std::string& hex) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < hex.size(); i += 6) {  // three bytes, four digits
    unsigned bits = 0;
    for (std::size_t j = i; j < i + 6; ++j)
      bits = bits << 4 | (j < hex.size() ? static_cast<unsigned>(hex_digit(hex[j])) : 0);
    const std::size_t n_bytes = std::min<std::size_t>(3, (hex.size() - i) / 2);
    for (std::size_t d = 0; d < 4; ++d)
      out += d <= n_bytes ? kDigits[bits >> (18 - 6 * d) & 63] : '=';
  }
  return out;
}

std::string hash_source(const std::string& text) {
  return "'sha256-" + base64_of_hex(sha256_of_bytes(text)) + "'";
}

std::string head(const std::string& title) {
  const std::string style = report_style();
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src " +
         hash_source(style) + "; script-src " + hash_source(kReportScript) +
         "; base-uri 'none'; form-action 'none'\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
         html_text(title) + "</title>\n<style>" + style + "</style>\n</head>\n";
}

std::string lead(const Summary& summary) {
  std::set<std::string> builds;
  std::string models;
  for (const Source& source : summary.sources) {
    if (models.size() < 300)
      models += (models.empty() ? "" : "; ") + shorten(source.name, 120) + " (" +
                shorten(source.model_type, 60) + ")";
    for (const RunRow* run : source.runs) builds.insert("Precis " + shorten(run->version, 30));
  }
  std::string out = models;
  for (const std::string& build : builds)
    if (out.size() < 500) out += ", " + build;
  return "<p class=\"lead\">" + html_text(out) + "</p>\n";
}

std::string reading_help() {
  return "<p>Scores are shown from 0 to 100. <strong>Intervals</strong> hold 95 %: samples are "
         "drawn "
         "10,000 times with replacement, all questions of a sample together, and the middle 95 % "
         "of "
         "the means are shown. Where all samples score 0, or all 100, the interval is Clopper and "
         "Pearson's.</p>\n<p><strong>Differences</strong> are paired: both methods answered the "
         "same "
         "samples, and are resampled alike. Two methods are called not distinguishable where the "
         "interval of the difference holds 0, or where fewer than six samples differ. With many "
         "comparisons on a page, one in twenty may be called distinguishable by chance.</p>\n"
         "<p><strong>Averages</strong> count every task alike, at every length; tasks are "
         "resampled "
         "one by one.</p>\n<p><strong>Kept</strong> is measured in bytes of the cache that is live "
         "after condensing, with everything that a method stores beside keys and values.</p>\n";
}

std::vector<HtmlSection> sections_of(const Summary& summary, const std::vector<ResultFile>& files,
                                     PageState& page) {
  std::vector<HtmlSection> out;
  const auto add = [&](HtmlSection section) {
    if (!section.body.empty()) out.push_back(std::move(section));
  };
  // The page's room is taken in this order: single answers are bounded, and long tables cannot
  // crowd them out.
  HtmlSection answers = answer_section(summary, page);
  HtmlSection unscored = unscored_section(summary, page);
  add(run_section(summary, files, page));
  for (const ScoreTable& table : summary.scores)
    if (out.size() < kMostSections) add(score_section(summary, table, page));
  for (const FidelityTable& table : summary.fidelity)
    if (out.size() < kMostSections) add(fidelity_section(summary, table, page));
  add(timing_section(summary, page));
  add(kept_section(summary, page));
  add(std::move(answers));
  add(std::move(unscored));
  add({"How to read this", reading_help()});
  return out;
}

}  // namespace

std::string html_report(const Summary& summary, const std::vector<ResultFile>& files,
                        const HtmlOptions& options) {
  PageState page;
  const std::string title = shorten(options.title, 300);
  const std::vector<HtmlSection> sections = sections_of(summary, files, page);
  std::string out = head(title);
  out += "<body>\n<a class=\"skip\" href=\"#main\">Skip to the results</a>\n<header>\n<div>\n<h1>" +
         html_text(title) + "</h1>\n" + lead(summary) +
         "</div>\n<button type=\"button\" id=\"theme\" hidden>Dark theme</button>\n</header>\n"
         "<main id=\"main\">\n";
  out += "<nav aria-label=\"Contents\"><ul>\n";
  for (std::size_t i = 0; i < sections.size(); ++i)
    out +=
        concat("<li><a href=\"#section", i + 1, "\">", html_text(sections[i].title), "</a></li>\n");
  out += "</ul></nav>\n";
  for (const std::string& note : summary.notes)
    out += "<p class=\"warning\">" + html_text(shorten(note, 600)) + "</p>\n";
  std::size_t n_skipped = 0;
  for (const ResultFile& file : files) n_skipped += file.n_skipped;
  if (n_skipped > 0)
    out +=
        concat("<p class=\"warning\">", n_skipped,
               " lines of the result files could not be read; see &quot;What was run&quot;.</p>\n");
  if (page.n_left_out > 0)
    out += concat("<p class=\"warning\">", page.n_left_out,
                  " charts and pictures are left out, so that the page stays small; "
                  "<code>--format csv</code> and <code>--format cells</code> have all numbers, and "
                  "fewer files at a time leave room for them.</p>\n");
  for (std::size_t i = 0; i < sections.size(); ++i)
    out += concat("<section aria-labelledby=\"section", i + 1, "\">\n<h2 id=\"section", i + 1,
                  "\">", html_text(sections[i].title), "</h2>\n") +
           sections[i].body + "</section>\n";
  out += "</main>\n<footer><p>Made by <code>precis report</code>; needs no network.</p></footer>\n";
  out += std::string("<script>") + kReportScript + "</script>\n</body>\n</html>\n";
  return out;
}

}  // namespace precis
