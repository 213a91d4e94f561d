#include "penstock/config/options.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace penstock::config {
namespace {

TEST(Options, KeysAreASectionAndANameAndDiffer) {
  std::set<std::string> keys;
  for (const Option& option : option_table()) {
    EXPECT_TRUE(keys.insert(option.key).second) << option.key;
    EXPECT_EQ(std::count(option.key.begin(), option.key.end(), '.'), 1) << option.key;
    EXPECT_EQ(option.section() + "." + option.name(), option.key);
    EXPECT_EQ(&find_option(option.key, ""), &option);
  }
}

TEST(Options, SectionsStandTogether) {
  const std::vector<std::string> sections = section_names();
  EXPECT_EQ(std::set<std::string>(sections.begin(), sections.end()).size(), sections.size());
  EXPECT_EQ(sections, (std::vector<std::string>{"model", "data", "train", "plan", "run"}));
}

TEST(Options, EachDefaultIsOfItsTypeAndAllowed) {
  const std::vector<std::string> types = {"true or false", "integer", "number", "text"};
  for (const Option& option : option_table()) {
    const OptionValue value = option.get(Recipe());
    EXPECT_EQ(option.type, types[value.index()]) << option.key;
    EXPECT_TRUE(option.is_allowed(value)) << option.key;
  }
}

TEST(Options, EachHasAFieldOfItsOwn) {
  for (const Option& option : option_table()) {
    Recipe recipe;
    OptionValue other = option.get(recipe);
    std::visit(
        [](auto& value) {
          using Value = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<Value, bool>) {
            value = !value;
          } else if constexpr (std::is_same_v<Value, std::string>) {
            value += "x";
          } else {
            value += 1;
          }
        },
        other);
    option.assign(recipe, other);
    for (const Option& each : option_table()) {
      EXPECT_EQ(each.get(recipe) == each.get(Recipe()), each.key != option.key)
          << option.key << " " << each.key;
    }
  }
}

TEST(Options, EachHasHelpOnOneLine) {
  for (const Option& option : option_table()) {
    EXPECT_GE(option.help.size(), 10u) << option.key;
    EXPECT_EQ(option.help.find_first_of("\n|"), std::string::npos) << option.key;
    EXPECT_NE(option.help.back(), '.') << option.key;
  }
}

TEST(Options, TheHelpShowsEachWithItsDefaultAndRange) {
  const std::string help = options_help();
  for (const Option& option : option_table()) {
    const std::string default_value = format_value(option.get(Recipe()));
    const std::string range = option.allowed.empty() ? "" : " (" + option.allowed + ")";
    const std::string entry =
        "\n  " + option.key + " = " + default_value + "\n      " + option.help + range + "\n";
    EXPECT_NE(help.find(entry), std::string::npos) << entry;
  }
}

TEST(Options, TheMarkdownHasARowForEach) {
  const std::string markdown = options_markdown();
  for (const Option& option : option_table()) {
    const std::string row = "\n| `" + option.name() + "` | " + option.type + " | `" +
                            format_value(option.get(Recipe())) + "` | " + option.allowed + " | " +
                            option.help + " |\n";
    EXPECT_NE(markdown.find(row), std::string::npos) << row;
  }
  for (const std::string& section : section_names()) {
    EXPECT_NE(markdown.find("### [" + section + "]\n"), std::string::npos) << section;
  }
}

TEST(FormatValue, TellsIntegersAndNumbersApart) {
  EXPECT_EQ(format_value(int64_t{5}), "5");
  EXPECT_EQ(format_value(5.0), "5.0");
  EXPECT_EQ(format_value(-0.0), "-0.0");
  EXPECT_EQ(format_value(0.5), "0.5");
  EXPECT_EQ(format_value(1e21), "1e+21");
  EXPECT_EQ(format_value(true), "true");
  EXPECT_EQ(format_value(std::string("a\"b\\\n\x01")), "\"a\\\"b\\\\\\n\\u0001\"");
}

}  // namespace
}  // namespace penstock::config
