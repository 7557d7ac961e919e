// What all pictures of a page have: a name, a description, a place to scroll in, their numbers.
#pragma once

#include <string>

#include "report/html_text.h"

namespace precis {

struct Figure {
  std::string title;
  std::string description;  // what is to be seen, for those who do not see it
  double width = 0;
  double height = 0;
  std::string drawing;  // elements inside of <svg>
  Table numbers;        // all that is drawn
  std::string below;    // HTML after the drawing
  bool small = false;
};

std::string html_figure(const Figure& figure, PageState& page);

// A coordinate: one digit after the point, as few characters as that needs.
std::string coordinate(double value);
// <text class="CLASS" x y>, escaped; `anchor` is start, middle or end.
std::string svg_text(double x, double y, const char* anchor, const std::string& text,
                     const char* css_class = "label");

}  // namespace precis
