#include "penstock/report/svg.h"

#include <array>
#include <cstdio>

#include "penstock/base/text.h"

namespace penstock::report {

namespace {

std::string position(std::string_view name, double value) {
  return cat(" ", name, "=\"", svg_pixels(value), "\"");
}

}  // namespace

std::string xml_escape(std::string_view text) {
  const bool is_utf8 = is_valid_utf8(text);
  std::string out;
  for (const char letter : text) {
    const unsigned char byte = static_cast<unsigned char>(letter);
    switch (letter) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (byte < 0x20) {
          out += ' ';
        } else {
          out += byte >= 0x80 && !is_utf8 ? '?' : letter;
        }
    }
  }
  return out;
}

std::string svg_pixels(double value) {
  std::array<char, 32> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%.1f", value);
  return buffer.data();
}

std::string svg_opening(double width, double height, std::string_view title) {
  const std::string wide = svg_pixels(width), high = svg_pixels(height);
  return cat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"",
             wide,
             "\" height=\"",
             high,
             "\" viewBox=\"0 0 ",
             wide,
             " ",
             high,
             "\" font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\" "
             "font-size=\"12\" role=\"img\">\n<title>",
             xml_escape(title),
             "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
}

std::string svg_text(double x, double y, std::string_view attributes, std::string_view text) {
  return cat("<text",
             position("x", x),
             position("y", y),
             " ",
             attributes,
             ">",
             xml_escape(text),
             "</text>\n");
}

std::string svg_line(double x1, double y1, double x2, double y2, std::string_view attributes) {
  return cat("<line",
             position("x1", x1),
             position("y1", y1),
             position("x2", x2),
             position("y2", y2),
             " ",
             attributes,
             "/>\n");
}

std::string svg_rect(double x, double y, double width, double height, std::string_view fill) {
  return cat("<rect x=\"",
             svg_pixels(x),
             "\" y=\"",
             svg_pixels(y),
             "\" width=\"",
             svg_pixels(width),
             "\" height=\"",
             svg_pixels(height),
             "\" fill=\"",
             fill,
             "\"/>\n");
}

std::string svg_ink(std::string_view colour, std::string_view anchor) {
  return cat("text-anchor=\"", anchor, "\" fill=\"", colour, "\"");
}

}  // namespace penstock::report
