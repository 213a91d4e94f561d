// The few SVG elements that charts are made of. `attributes` go into the element as they are.
#pragma once

#include <string>
#include <string_view>

namespace penstock::report {

// For text and for attribute values. What XML cannot hold at all (control characters, bytes that
// are no UTF-8) is replaced.
std::string xml_escape(std::string_view text);

std::string svg_pixels(double value);  // to a tenth

// The beginning of a picture on white, up to its first element; "</svg>" ends it.
std::string svg_opening(double width, double height, std::string_view title);

std::string svg_text(double x, double y, std::string_view attributes, std::string_view text);
std::string svg_rect(double x, double y, double width, double height, std::string_view fill);
std::string svg_line(double x1, double y1, double x2, double y2, std::string_view attributes);

// Attributes of a text: its colour, and which end of it stands at x.
std::string svg_ink(std::string_view colour, std::string_view anchor = "start");

}  // namespace penstock::report
