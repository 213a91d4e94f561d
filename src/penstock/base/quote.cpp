#include "penstock/base/quote.h"

namespace penstock {

namespace {

constexpr size_t kMaxBytes = 100;

}  // namespace

std::string in_quotes(std::string_view text) {
  const bool is_cut = text.size() > kMaxBytes;
  if (is_cut) {
    size_t end = kMaxBytes;
    // Not inside a UTF-8 sequence.
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
      --end;
    }
    text = text.substr(0, end);
  }
  std::string out = "\"";
  for (const char letter : text) {
    const bool is_control = static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F;
    out += is_control ? '?' : letter;
  }
  out += is_cut ? "...\"" : "\"";
  return out;
}

std::string shell_word(std::string_view word) {
  const bool is_plain = word.find_first_not_of(
                            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                            "0123456789_./=:,+-") == std::string_view::npos;
  if (is_plain && !word.empty()) {
    return std::string(word);
  }
  std::string quoted = "'";
  for (const char letter : word) {
    quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  }
  return quoted + "'";
}

}  // namespace penstock
