// Text measured as a terminal shows it: one column per UTF-8 code point. Wide and combining
// characters are not told apart; bytes that are no UTF-8 may be miscounted but never split wrongly.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace penstock::report {

size_t text_width(std::string_view text);

std::string pad_right(std::string_view text, size_t width);  // text, then spaces
std::string pad_left(std::string_view text, size_t width);   // spaces, then text

// The first `width` columns of `text`.
std::string cut_to_width(std::string_view text, size_t width);

}  // namespace penstock::report
