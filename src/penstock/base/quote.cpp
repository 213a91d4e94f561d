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

}  // namespace penstock
