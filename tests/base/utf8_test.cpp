#include <string>

#include <gtest/gtest.h>

#include "penstock/base/text.h"

namespace penstock {
namespace {

// The bytes of `code` by the general scheme, in `length` bytes: also where that is not allowed.
std::string encode(unsigned code, int length) {
  if (length == 1) {
    return {static_cast<char>(code)};
  }
  std::string bytes;
  for (int i = 0; i < length - 1; ++i) {
    bytes.insert(bytes.begin(), static_cast<char>(0x80 | (code & 0x3F)));
    code >>= 6;
  }
  const unsigned lead = 0xF00u >> length & 0xFF;  // 110..., 1110..., 11110...
  bytes.insert(bytes.begin(), static_cast<char>(lead | code));
  return bytes;
}

int shortest(unsigned code) {
  return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
}

TEST(Utf8, EveryCodePointButSurrogatesIsValid) {
  for (unsigned code = 0; code <= 0x10FFFF; ++code) {
    const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
    ASSERT_EQ(is_valid_utf8(encode(code, shortest(code))), !is_surrogate) << std::hex << code;
  }
}

TEST(Utf8, OverlongFormsAreInvalid) {
  for (const unsigned code : {0x0u, 0x2Fu, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xFFFFu}) {
    for (int length = shortest(code) + 1; length <= 4; ++length) {
      EXPECT_FALSE(is_valid_utf8(encode(code, length))) << std::hex << code << " in " << length;
    }
  }
}

TEST(Utf8, NothingAboveTheLastCodePointIsValid) {
  EXPECT_TRUE(is_valid_utf8(encode(0x10FFFF, 4)));
  EXPECT_FALSE(is_valid_utf8(encode(0x110000, 4)));
  EXPECT_FALSE(is_valid_utf8(encode(0x1FFFFF, 4)));
  EXPECT_FALSE(is_valid_utf8("\xF8\x88\x80\x80\x80"));  // five bytes
  EXPECT_FALSE(is_valid_utf8("\xFE"));
  EXPECT_FALSE(is_valid_utf8("\xFF"));
}

TEST(Utf8, TruncatedSequencesAreInvalid) {
  for (const unsigned code : {0xE9u, 0x20ACu, 0x1F600u}) {
    const std::string bytes = encode(code, shortest(code));
    for (size_t length = 1; length < bytes.size(); ++length) {
      EXPECT_FALSE(is_valid_utf8("a" + bytes.substr(0, length)));
      EXPECT_FALSE(is_valid_utf8(bytes.substr(0, length) + "a"));
      EXPECT_FALSE(is_valid_utf8(bytes.substr(0, length) + bytes));
    }
  }
}

TEST(Utf8, ASequenceEndsWithTheView) {
  const std::string_view text = "\u00E9\u20AC";
  EXPECT_FALSE(is_valid_utf8(text.substr(0, 1)));
  EXPECT_TRUE(is_valid_utf8(text.substr(0, 2)));
  EXPECT_FALSE(is_valid_utf8(text.substr(0, 3)));
  EXPECT_FALSE(is_valid_utf8(text.substr(0, 4)));
}

TEST(Utf8, ALoneFollowingByteIsInvalid) {
  EXPECT_FALSE(is_valid_utf8("\x80"));
  EXPECT_FALSE(is_valid_utf8("abc\xBF"));
  EXPECT_FALSE(is_valid_utf8("\xC3\xA9\xA9"));
}

TEST(Utf8, WholeTextsAreChecked) {
  EXPECT_TRUE(is_valid_utf8(""));
  EXPECT_TRUE(is_valid_utf8(std::string("a\0b", 3)));
  EXPECT_TRUE(is_valid_utf8("Größe: 5 €, 😀"));
  EXPECT_FALSE(is_valid_utf8("Größe: 5 \xE2\x82, 😀"));
}

}  // namespace
}  // namespace penstock
