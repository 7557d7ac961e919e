#include "report/svg_figure.h"

#include <cmath>

#include "base/fields.h"
#include "report/number_text.h"

namespace precis {
namespace {

constexpr std::size_t kLongestTitle = 200;
constexpr std::size_t kLongestDescription = 2000;

}  // namespace

std::string coordinate(double value) {
  return print_number(std::isfinite(value) ? std::round(value * 10) / 10 : 0);
}

std::string svg_text(double x, double y, const char* anchor, const std::string& text,
                     const char* css_class) {
  return std::string("<text class=\"") + css_class + "\" x=\"" + coordinate(x) + "\" y=\"" +
         coordinate(y) + "\" text-anchor=\"" + anchor + "\">" + html_text(text) + "</text>\n";
}

std::string html_figure(const Figure& figure, PageState& page) {
  if (figure.drawing.size() > page.drawing_bytes_left) {
    ++page.n_left_out;
    return {};
  }
  page.drawing_bytes_left -= figure.drawing.size();
  const std::string id = page.next_id();
  const std::string title = shorten(figure.title, kLongestTitle);
  const std::string width = coordinate(figure.width);
  const std::string height = coordinate(figure.height);
  std::string out = figure.small ? "<figure class=\"small\">\n" : "<figure>\n";
  out += "<figcaption id=\"" + id + "c\">" + html_text(title) + "</figcaption>\n";
  out += "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-labelledby=\"" + id + "c\">\n";
  out += "<svg role=\"img\" aria-labelledby=\"" + id + "t " + id + "d\" viewBox=\"0 0 " + width +
         " " + height + "\" width=\"" + width + "\" height=\"" + height + "\">\n";
  out += "<title id=\"" + id + "t\">" + html_text(title) + "</title>\n";
  out += "<desc id=\"" + id + "d\">" + html_text(shorten(figure.description, kLongestDescription)) +
         "</desc>\n";
  out += figure.drawing + "</svg>\n</div>\n" + figure.below;
  out += html_details("Numbers", figure.numbers, page);
  return out + "</figure>\n";
}

}  // namespace precis
