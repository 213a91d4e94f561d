#include "penstock/data/tokenizer.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace penstock::data {
namespace {

using Tokens = std::vector<int64_t>;

TEST(Tokenizer, TokenIsTheValueOfTheByte) {
  EXPECT_EQ(encode("aZ\n"), (Tokens{97, 90, 10}));
  EXPECT_EQ(encode("\xC3\xA9"), (Tokens{0xC3, 0xA9}));
  EXPECT_TRUE(encode("").empty());
}

TEST(Tokenizer, DecodeGivesBackAllBytes) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) {
    text += static_cast<char>(byte);
  }
  const Tokens tokens = encode(text);
  EXPECT_EQ(tokens.front(), kEndOfDocument);
  EXPECT_EQ(tokens.back(), kByteVocabulary - 1);
  EXPECT_EQ(decode(tokens), text);
}

TEST(Tokenizer, IdThatIsNoByteDecodesToTheReplacementCharacter) {
  EXPECT_EQ(decode(Tokens{'a', 256, 'b', -1}),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD");
}

}  // namespace
}  // namespace penstock::data
