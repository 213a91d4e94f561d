#include "penstock/config/plain_toml.h"

#include <gtest/gtest.h>

#include "penstock/config/recipe.h"

#include "config/config_error.h"

namespace penstock::config {
namespace {

std::string rewritten(const std::string& toml) {
  return PlainToml(toml, "r.toml").rewrite();
}

TEST(PlainToml, KeepsWhatIsPlain) {
  const std::string toml = "[a]\r\nb = 1.5 \n\tc.d = [ \"x\\\"\\\\\", {} ]";
  EXPECT_EQ(rewritten(toml), toml);
  EXPECT_EQ(rewritten(""), "");
}

TEST(PlainToml, LeavesOutCommentsAndKeepsTheirLines) {
  EXPECT_EQ(rewritten("a = 1 # \"é\n#b\nc = \"#\" #"), "a = 1 \n\nc = \"#\" ");
}

TEST(PlainToml, WritesEveryStringInDoubleMarks) {
  EXPECT_EQ(rewritten("'a\\b\"c'"), "\"a\\\\b\\\"c\"");
  EXPECT_EQ(rewritten("'''a\n'b\"\\'''"), "\"\"\"a\n'b\\\"\\\\\"\"\"");
  EXPECT_EQ(rewritten("\"\"\"a\"\"b\\\"\"\"\""), "\"\"\"a\\\"\\\"b\\\"\"\"\"");
  EXPECT_EQ(rewritten("'' \"\" '''''' \"\"\"\"\"\""), "\"\" \"\" \"\"\"\"\"\" \"\"\"\"\"\"");
}

TEST(PlainToml, WritesOtherCharactersThanAsciiAsEscapes) {
  EXPECT_EQ(rewritten("\"é\""), "\"\\U000000E9\"");
  EXPECT_EQ(rewritten("'€😀'"), "\"\\U000020AC\\U0001F600\"");
  EXPECT_EQ(rewritten("\xEF\xBB\xBF'\xEF\xBB\xBF'"), "\"\\U0000FEFF\"");
}

TEST(PlainToml, UnclosedStringsStayOpen) {
  EXPECT_EQ(rewritten("a = 'b\nc = 1"), "a = \"b\nc = 1");
  EXPECT_EQ(rewritten("a = '''b\nc"), "a = \"\"\"b\nc");
  EXPECT_EQ(rewritten("a = \"b\\"), "a = \"b\\?");
}

std::string prompt(const std::string& value) {
  return parse_recipe("[run]\nsample_prompt = " + value + " # é\n", "r.toml").run.sample_prompt;
}

TEST(PlainToml, GivesTheParserTheSameStrings) {
  EXPECT_EQ(prompt("\"é\\u00e9\\\\é\\\"\""), "éé\\é\"");
  EXPECT_EQ(prompt("'é\\u00e9\"'"), "é\\u00e9\"");
  EXPECT_EQ(prompt("\"\"\"\n  a\n\n b\"\"\""), "  a\n\n b");
  EXPECT_EQ(prompt("'''\na\\\nb'''"), "a\\\nb");
  EXPECT_EQ(prompt("\"\"\"a\\\n   §b\"\"\""), "a§b");
  EXPECT_EQ(prompt("\"\"\"a \\  \n\n  b\"\"\""), "a b");
  EXPECT_EQ(prompt("\"\"\"\"a\"\"\"\"\""), "\"a\"\"");
  EXPECT_EQ(prompt("''''a'''''"), "'a''");
  EXPECT_EQ(prompt("\"\"\"\"\"\""), "");
  EXPECT_EQ(prompt("'''''''"), "'");
}

TEST(PlainToml, AnEscapeOfAnotherCharacterStaysAnError) {
  for (const char* value : {"\"\\é\"", "\"\"\"\\é\"\"\"", "\"\\x\"", "\"\\"}) {
    expect_parts(recipe_error(std::string("[run]\nsample_prompt = ") + value + "\n"),
                 {"r.toml:2: not valid TOML: "});
  }
}

}  // namespace
}  // namespace penstock::config
