#include "penstock/base/text.h"

#include <algorithm>

namespace penstock {

std::string join(const std::vector<std::string>& words, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) {
      out += separator;
    }
    out += words[i];
  }
  return out;
}

int edit_distance(std::string_view a, std::string_view b) {
  const size_t n = b.size();
  std::vector<int> before_previous(n + 1), previous(n + 1), current(n + 1);
  for (size_t j = 0; j <= n; ++j) {
    previous[j] = static_cast<int>(j);
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = static_cast<int>(i);
    for (size_t j = 1; j <= n; ++j) {
      const int substitution = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        current[j] = std::min(current[j], before_previous[j - 2] + 1);
      }
    }
    std::swap(before_previous, previous);
    std::swap(previous, current);
  }
  return previous[n];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  int best_distance = 0;
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(word, candidate);
    if (best.empty() || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  const size_t longer = std::max(word.size(), best.size());
  const bool is_plausible = 2 * static_cast<size_t>(best_distance) <= longer;
  return is_plausible ? best : "";
}

bool is_valid_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  for (size_t i = 0; i < text.size();) {
    const unsigned lead = byte(i);
    int following = 0;
    unsigned code = 0;
    unsigned least = 0;
    if (lead < 0x80) {
      ++i;
      continue;
    } else if (lead >= 0xC2 && lead < 0xE0) {
      following = 1, code = lead & 0x1F, least = 0x80;
    } else if (lead >= 0xE0 && lead < 0xF0) {
      following = 2, code = lead & 0x0F, least = 0x800;
    } else if (lead >= 0xF0 && lead < 0xF5) {
      following = 3, code = lead & 0x07, least = 0x10000;
    } else {
      return false;
    }
    if (i + static_cast<size_t>(following) >= text.size()) {
      return false;
    }
    for (int k = 1; k <= following; ++k) {
      const unsigned next = byte(i + static_cast<size_t>(k));
      if ((next & 0xC0) != 0x80) {
        return false;
      }
      code = (code << 6) | (next & 0x3F);
    }
    const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
    if (code < least || code > 0x10FFFF || is_surrogate) {
      return false;
    }
    i += static_cast<size_t>(following) + 1;
  }
  return true;
}

}  // namespace penstock
