#include "penstock/config/recipe.h"

#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "penstock/config/options.h"

namespace penstock::config {
namespace {

void expect_same(const Recipe& a, const Recipe& b) {
  for (const Option& option : option_table()) {
    EXPECT_EQ(option.get(a), option.get(b)) << option.key;
  }
}

TEST(Recipe, EmptyTextGivesTheDefaults) {
  expect_same(parse_recipe("", "r.toml"), Recipe());
  expect_same(parse_recipe("# only a comment\n[train]\n", "r.toml"), Recipe());
}

TEST(Recipe, GivenKeysReplaceTheirDefaultsOnly) {
  const Recipe recipe = parse_recipe(
      "[train]\nsteps = 1_000\nlr = 2e-3\nnesterov = true\n[data]\npath = 'a\\b'\n", "r.toml");
  Recipe expected;
  expected.train.steps = 1000;
  expected.train.lr = 2e-3;
  expected.train.nesterov = true;
  expected.data.path = "a\\b";
  expect_same(recipe, expected);
}

// Checkpoints from before the key was there keep a recipe without it.
TEST(Recipe, WithoutTheKeyAModelIsTied) {
  EXPECT_TRUE(parse_recipe("[model]\nlayers = 2\n", "r.toml").model.tied);
  EXPECT_FALSE(parse_recipe("[model]\ntied = false\n", "r.toml").model.tied);
}

TEST(Recipe, TakesEveryWayTomlWritesSections) {
  Recipe expected;
  expected.train.steps = 7;
  expected.run.keep = 2;
  for (const char* toml : {"[train]\nsteps = 7\n[run]\nkeep = 2\n",
                           "train.steps = 7\nrun.keep = 2\n",
                           "train = { steps = 7 }\nrun = { keep = 2 }\n",
                           "\xEF\xBB\xBF[\"train\"]\r\n\"steps\" = 0x7\r\n[ run ]\r\nkeep=+2"}) {
    expect_same(parse_recipe(toml, "r.toml"), expected);
  }
}

TEST(Recipe, AnIntegerStandsForANumber) {
  EXPECT_EQ(parse_recipe("[train]\nlr = 1\nclip = 0\n", "r.toml").train.lr, 1.0);
  EXPECT_EQ(parse_recipe("[train]\nclip = 0\n", "r.toml").train.clip, 0.0);
}

class RandomRecipe {
 public:
  explicit RandomRecipe(uint32_t seed) : random_(seed) {}

  Recipe make() {
    Recipe recipe;
    for (const Option& option : option_table()) {
      OptionValue value;
      do {
        value = draw(option, option.get(recipe));
      } while (!option.is_allowed(value));
      option.assign(recipe, value);
    }
    return recipe;
  }

 private:
  OptionValue draw(const Option& option, const OptionValue& example) {
    if (std::holds_alternative<bool>(example)) {
      return random_() % 2 == 0;
    }
    if (std::holds_alternative<int64_t>(example)) {
      const int64_t values[] = {0,
                                1,
                                2,
                                1000,
                                int64_t(random_()),
                                int64_t(random_() >> 20),
                                std::numeric_limits<int64_t>::max()};
      return values[random_() % std::size(values)];
    }
    if (std::holds_alternative<double>(example)) {
      const double uniform = std::uniform_real_distribution<double>()(random_);
      const double values[] = {0, 0.5, 1, 1e21, 123456, 5e-324, 1e-5, uniform, 1 / uniform};
      return values[random_() % std::size(values)];
    }
    return option.allowed.empty() ? text() : one_of(option.allowed);
  }

  // A word in quotation marks.
  std::string one_of(const std::string& allowed) {
    std::vector<std::string> words;
    for (size_t at = 0; (at = allowed.find('"', at)) != std::string::npos;) {
      const size_t end = allowed.find('"', at + 1);
      words.push_back(allowed.substr(at + 1, end - at - 1));
      at = end + 1;
    }
    return words[random_() % words.size()];
  }

  std::string text() {
    static const std::vector<std::string> pieces = {"a",
                                                    " ",
                                                    "\"",
                                                    "\\",
                                                    "'",
                                                    "\"\"\"",
                                                    "'''",
                                                    "\n",
                                                    "\r",
                                                    "\r\n",
                                                    "\t",
                                                    "\b",
                                                    "\f",
                                                    "\v",
                                                    "\x01",
                                                    "\x1B",
                                                    "\x1F",
                                                    "\x7F",
                                                    std::string(1, '\0'),
                                                    "#",
                                                    "=",
                                                    "[x]",
                                                    ".",
                                                    "\\n",
                                                    "\\u0041",
                                                    "é",
                                                    "\xC2\x80",
                                                    "\xC2\x85",
                                                    "\xE2\x80\xA8",
                                                    "\xEF\xBB\xBF",
                                                    "\xEF\xBF\xBF",
                                                    "€",
                                                    "😀",
                                                    "漢"};
    std::string out;
    for (uint32_t left = random_() % 12; left > 0; --left) {
      out += pieces[random_() % pieces.size()];
    }
    return out;
  }

  std::mt19937 random_;
};

TEST(Recipe, PrintedAndReadAgainIsTheSame) {
  RandomRecipe random(1);
  for (int round = 0; round < 300; ++round) {
    const Recipe recipe = random.make();
    const std::string toml = format_recipe(recipe);
    SCOPED_TRACE(toml);
    expect_same(parse_recipe(toml, "r.toml"), recipe);
    ASSERT_FALSE(HasFailure());
  }
}

TEST(Recipe, EveryCharacterOfAsciiSurvivesPrinting) {
  Recipe recipe;
  recipe.data.path.clear();
  for (char letter = 0; letter < 127; ++letter) {
    recipe.data.path += letter;
  }
  recipe.data.path += '\x7F';
  EXPECT_EQ(parse_recipe(format_recipe(recipe), "r.toml").data.path, recipe.data.path);
}

TEST(Recipe, PrintsEveryKeyOnceUnderItsSection) {
  const std::string toml = format_recipe(Recipe());
  EXPECT_EQ(toml.rfind("[model]\nfamily = \"gpt2\"\nlayers = 12\n", 0), 0u) << toml;
  EXPECT_NE(toml.find("\n\n[run]\ndevice = \"cpu\"\n"), std::string::npos) << toml;
  EXPECT_NE(toml.find("\nclip = 1.0\n"), std::string::npos) << toml;
  EXPECT_NE(toml.find("\nlr = 3e-04\n"), std::string::npos) << toml;
  EXPECT_NE(toml.find("\nsample_prompt = \"\\n\"\n"), std::string::npos) << toml;
}

}  // namespace
}  // namespace penstock::config
