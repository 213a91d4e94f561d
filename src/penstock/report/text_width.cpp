#include "penstock/report/text_width.h"

#include <algorithm>

namespace penstock::report {

namespace {

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

std::string missing_spaces(std::string_view text, size_t width) {
  const size_t present = text_width(text);
  return std::string(width > present ? width - present : 0, ' ');
}

}  // namespace

size_t text_width(std::string_view text) {
  return text.size() -
         static_cast<size_t>(std::count_if(text.begin(), text.end(), is_continuation));
}

std::string pad_right(std::string_view text, size_t width) {
  return std::string(text) + missing_spaces(text, width);
}

std::string pad_left(std::string_view text, size_t width) {
  return missing_spaces(text, width) + std::string(text);
}

std::string cut_to_width(std::string_view text, size_t width) {
  size_t columns = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_continuation(text[i]) && ++columns > width) {
      return std::string(text.substr(0, i));
    }
  }
  return std::string(text);
}

}  // namespace penstock::report
