// Small helpers for text: joining values into a message, and finding the nearest known word.
#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// cat("layer ", 3, " of ", 12) == "layer 3 of 12".
template <typename... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

std::string join(const std::vector<std::string>& words, std::string_view separator);

// Number of single-character insertions, deletions, replacements and swaps of neighbours between
// two words.
int edit_distance(std::string_view a, std::string_view b);

// The candidate closest to `word`, or "" when none is close enough to be a plausible slip.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

bool is_valid_utf8(std::string_view text);

}  // namespace penstock
