// TOML rewritten so that toml++ is safe with it: the same document in ASCII, line by line, without
// comments, each string in double quotation marks.
//
// toml++ 3.3 takes two kinds of text badly. A character outside of ASCII where it looks for
// whitespace reaches __builtin_unreachable (its issues 190 and 295). And it makes a table of each
// part of "a.b.c" and takes them down by recursion, so a long key overflows the stack; since each
// part has a dot, few dots are few tables.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/text.h"

namespace penstock::config {

class PlainToml {
 public:
  PlainToml(std::string_view toml, const std::string& origin) : toml_(toml), origin_(origin) {}

  // Throws ConfigError for what is not UTF-8, for other characters than ASCII outside of strings
  // and comments (TOML has none there), and for more dots than any recipe has.
  std::string rewrite() {
    at_ = toml_.starts_with("\xEF\xBB\xBF") ? 3 : 0;
    while (at_ < toml_.size()) {
      const char letter = toml_[at_];
      if (letter == '"' || letter == '\'') {
        copy_string(letter);
      } else if (letter == '#') {
        at_ = std::min(toml_.find('\n', at_), toml_.size());
      } else {
        copy_bare(letter);
      }
    }
    return std::move(out_);
  }

 private:
  static constexpr int kMostDots = 1000;

  bool is_ascii() const { return static_cast<unsigned char>(toml_[at_]) < 0x80; }

  void copy_bare(char letter) {
    if (!is_ascii()) {
      fail("a character outside of ASCII stands outside of quotation marks");
    }
    dots_ += letter == '.' ? 1 : 0;
    if (dots_ > kMostDots) {
      fail(cat("more than ", kMostDots, " dots in keys and numbers"));
    }
    out_ += letter;
    ++at_;
  }

  // A string that is not closed is left open, for the parser to complain of.
  void copy_string(char mark) {
    const std::string fence(3, mark);
    const bool is_long = toml_.substr(at_, 3) == fence;
    const std::string_view double_marks = is_long ? "\"\"\"" : "\"";
    out_ += double_marks;
    at_ += double_marks.size();
    while (at_ < toml_.size()) {
      const bool is_end = is_long ? toml_.substr(at_, 3) == fence : toml_[at_] == mark;
      if (is_end) {
        // Up to two marks may stand before the closing three.
        for (int extra = 0; is_long && extra < 2 && toml_.substr(at_ + 1, 3) == fence; ++extra) {
          copy_content(mark);
        }
        out_ += double_marks;
        at_ += double_marks.size();
        return;
      }
      copy_content(mark);
    }
  }

  void copy_content(char mark) {
    const char letter = toml_[at_];
    if (!is_ascii()) {
      copy_as_escape();
    } else if (letter == '\\' && mark == '"') {
      // With the character it stands before, so that a quotation mark there ends nothing.
      out_ += letter;
      ++at_;
      if (at_ < toml_.size() && is_ascii()) {
        out_ += toml_[at_++];
      } else {
        out_ += '?';  // no escape, and must not become one
      }
    } else {
      out_ += letter == '\\' ? "\\\\" : letter == '"' ? "\\\"" : std::string(1, letter);
      ++at_;
    }
  }

  void copy_as_escape() {
    const unsigned lead = static_cast<unsigned char>(toml_[at_]);
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    const std::string_view bytes = toml_.substr(at_, length);
    if (!is_valid_utf8(bytes)) {
      fail("bytes that are not UTF-8");
    }
    unsigned code = lead & (0xFFu >> (length + 1));
    for (const char byte : bytes.substr(1)) {
      code = code << 6 | (static_cast<unsigned char>(byte) & 0x3Fu);
    }
    std::array<char, 16> escape;
    std::snprintf(escape.data(), escape.size(), "\\U%08X", code);
    out_ += escape.data();
    at_ += length;
  }

  [[noreturn]] void fail(const std::string& reason) const {
    const auto line =
        1 + std::count(toml_.begin(), toml_.begin() + static_cast<int64_t>(at_), '\n');
    throw ConfigError(cat(origin_, ":", line, ": not valid in a recipe: ", reason));
  }

  std::string_view toml_;
  const std::string& origin_;
  size_t at_ = 0;
  int dots_ = 0;
  std::string out_;
};

}  // namespace penstock::config
