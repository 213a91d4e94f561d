#include <gtest/gtest.h>

#include "config/config_error.h"

namespace penstock::config {
namespace {

TEST(RecipeError, UnknownKeyComesWithItsLineAndTheNearestKey) {
  EXPECT_EQ(recipe_error("[train]\n\nstesp = 5\n"),
            "r.toml:3: unknown key train.stesp; did you mean train.steps? (penstock options lists "
            "them all)");
  expect_parts(recipe_error("[model]\nlayer = 5\n"), {"r.toml:2", "model.layer;", "model.layers?"});
  expect_parts(recipe_error("[run]\nsave_evry = 5\n"), {"run.save_evry;", "run.save_every?"});
}

TEST(RecipeError, UnknownKeyLikeNoOtherComesWithoutASuggestion) {
  EXPECT_EQ(recipe_error("[train]\nhyperparameterisation_of_everything = 5\n"),
            "r.toml:2: unknown key train.hyperparameterisation_of_everything (penstock options "
            "lists them all)");
}

TEST(RecipeError, RightKeyInTheWrongSectionNamesTheRightSection) {
  expect_parts(recipe_error("[model]\nlr = 0.1\n"),
               {"r.toml:2", "unknown key model.lr", "train.lr?"});
  expect_parts(recipe_error("[train]\nmicro_batches = 2\n"), {"plan.micro_batches?"});
  expect_parts(recipe_error("[plan]\nvocabulary = 256\n"), {"model.vocabulary?"});
}

TEST(RecipeError, ListOfSectionsIsNamedAsSuch) {
  EXPECT_EQ(recipe_error("[[train]]\nsteps = 5\n"),
            "r.toml:1: [[train]] is a list of sections; write [train]");
}

TEST(RecipeError, UnknownSectionComesWithTheNearestAndAllKnown) {
  EXPECT_EQ(recipe_error("\n[trian]\nsteps = 5\n"),
            "r.toml:2: unknown section [trian]; did you mean [train]? (known: model, data, train, "
            "plan, run)");
  EXPECT_EQ(recipe_error("[miscellaneous]\n"),
            "r.toml:1: unknown section [miscellaneous] (known: model, data, train, plan, run)");
}

TEST(RecipeError, KeyOutsideOfASectionNamesTheSections) {
  EXPECT_EQ(recipe_error("steps = 5\n"),
            "r.toml:1: steps stands outside of any section; keys belong under [model], [data], "
            "[train], [plan], [run]");
}

TEST(RecipeError, WrongTypeNamesValueTypeAndWhatIsTaken) {
  EXPECT_EQ(recipe_error("[train]\nsteps = \"many\"\n"),
            "r.toml:2: train.steps = \"many\" is text; it takes an integer, 0 or more");
  EXPECT_EQ(recipe_error("[train]\nsteps = 1.5\n"),
            "r.toml:2: train.steps = 1.5 is a number; it takes an integer, 0 or more");
  EXPECT_EQ(recipe_error("[train]\nsteps = 2.0\n"),
            "r.toml:2: train.steps = 2.0 is a number; it takes an integer, 0 or more");
  EXPECT_EQ(recipe_error("[train]\nlr = true\n"),
            "r.toml:2: train.lr = true is true or false; it takes a number, 0 or more");
  EXPECT_EQ(recipe_error("[train]\nnesterov = 1\n"),
            "r.toml:2: train.nesterov = 1 is an integer; it takes true or false");
  EXPECT_EQ(recipe_error("[data]\npath = 7\n"),
            "r.toml:2: data.path = 7 is an integer; it takes text");
  EXPECT_EQ(recipe_error("[train]\noptimizer = 3\n"),
            "r.toml:2: train.optimizer = 3 is an integer; it takes text, \"adamw\", \"sgd\", "
            "\"lamb\", \"onebit-adam\", \"zeroone-adam\" or \"onebit-lamb\"");
}

TEST(RecipeError, ListsTablesAndDatesAreNoValues) {
  for (const char* value : {"[1, 2]", "[]", "{ a = 1 }", "1979-05-27", "07:32:00"}) {
    EXPECT_EQ(recipe_error(std::string("[train]\nsteps = ") + value + "\n"),
              "r.toml:2: train.steps is a list, a table or a date; it takes an integer, 0 or more");
  }
  expect_parts(recipe_error("[data]\npath = [\"a\", \"b\"]\n"), {"data.path is a list", "text"});
  expect_parts(recipe_error("[train.steps]\nx = 1\n"), {"r.toml:1", "train.steps is a list"});
}

TEST(RecipeError, BadTomlComesWithItsLine) {
  expect_parts(recipe_error("[train]\nsteps = 5\nbatch 8\n"), {"r.toml:3: not valid TOML: "});
  expect_parts(recipe_error("[train\n"), {"r.toml:1: not valid TOML: "});
  expect_parts(recipe_error("[train]\nsteps = 1\nsteps = 2\n"), {"r.toml:3: not valid TOML: "});
  expect_parts(recipe_error("[train]\nsteps = 99999999999999999999\n"),
               {"r.toml:2: not valid TOML"});
}

TEST(RecipeError, ALineBreakThatTheParserQuotesLeavesOneLine) {
  expect_parts(recipe_error("ain=[t\n"), {"r.toml:1: not valid TOML: ", "'t '"});
}

TEST(RecipeError, NoSectionNameFailsAnAssertionOfTheParser) {
  for (const char* toml : {"[~train]\n", "[[[train]]]\n", "[[=\n", "[.train]\n", "[train.]\n"}) {
    expect_parts(recipe_error(toml), {"r.toml:1: not valid TOML: "});
  }
}

TEST(RecipeError, OddKeysAreQuotedSoThatTheMessageIsOneLine) {
  expect_parts(recipe_error("[train]\n\"a\\nb\" = 1\n"), {"unknown key \"train.a\\nb\""});
  expect_parts(recipe_error("[\"a\\nb\"]\n"), {"unknown section [\"a\\nb\"]"});
  expect_parts(recipe_error("\"\" = 1\n"), {"\"\" stands outside"});
}

TEST(RecipeError, OnlyTomlsOwnWayOfWritingCounts) {
  // A dot inside of quotation marks makes no section.
  expect_parts(recipe_error("\"train.steps\" = 5\n"),
               {"train.steps stands outside of any section"});
  expect_parts(recipe_error("[[train]]\nsteps = 5\n"), {"r.toml:1", "train"});
}

TEST(RecipeError, BytesThatAreNotUtf8ComeWithTheirLine) {
  for (const char* value : {"\"a\xFF\"", "'\xC3'", "'''\x80'''", "\"\xED\xA0\x80\"", "\"\xC3"}) {
    EXPECT_EQ(recipe_error(std::string("[data]\npath = ") + value + "\n"),
              "r.toml:2: not valid in a recipe: bytes that are not UTF-8");
  }
}

TEST(RecipeError, CharactersOutsideOfAsciiStandInQuotationMarks) {
  EXPECT_EQ(recipe_error("[data]\npath = \u201Ca.txt\u201D\n"),
            "r.toml:2: not valid in a recipe: a character outside of ASCII stands outside of "
            "quotation marks");
  for (const char* toml : {"\xCC\xAA", "[d\xC3\xA4ta]\n", "[data]\xC2\xA0\n", "a = 1\xC2\xA7\n"}) {
    expect_parts(recipe_error(toml), {"r.toml:1: ", "a character outside of ASCII"});
  }
}

struct NestingCase {
  std::string before;
  std::string after = "]\nx = 1\n";
};

class DeepNesting : public testing::TestWithParam<NestingCase> {};

TEST_P(DeepNesting, IsAnErrorInsteadOfAnOverflow) {
  std::string key = "a";
  for (int i = 0; i < 500'000; ++i) {
    key += ".a";
  }
  const std::string toml = GetParam().before + key + GetParam().after;
  expect_parts(recipe_error(toml), {"r.toml:"});
  expect_parts(recipe_error(toml + "not TOML"), {"r.toml:"});
}

// What stands before must not hide the dots.
INSTANTIATE_TEST_SUITE_P(Forms,
                         DeepNesting,
                         testing::Values(NestingCase{"["},
                                         NestingCase{"[["},
                                         NestingCase{"", " = 1\n"},
                                         NestingCase{"a = [ { ", " = 1 } ]\n"},
                                         NestingCase{"# \"\n["},
                                         NestingCase{"# '''\n["},
                                         NestingCase{"a = \"#\\\"\" #\n["},
                                         NestingCase{"a = '\\' # '\n["},
                                         NestingCase{"a = \"\"\"\n\"\" \\\"\"\"\"\"\"\n["},
                                         NestingCase{"a = ''''''\n["},
                                         NestingCase{"a = \"\"\n["},
                                         NestingCase{"a = [\"\"\"x\"\"\"\", { ", " = 1 } ]\n"},
                                         NestingCase{"a = ['''x'''', { ", " = 1 } ]\n"},
                                         NestingCase{"a = ['''x''''', { ", " = 1 } ]\n"},
                                         NestingCase{"\"\".'' = 1\n["},
                                         NestingCase{"# \r\n["},
                                         NestingCase{"# \xE2\x80\xA8["},
                                         NestingCase{"# \xC2\x85["},
                                         NestingCase{"# \r["},
                                         NestingCase{"# \v["},
                                         NestingCase{"a = 'x\r["}));

TEST(RecipeText, MayBeFullOfDots) {
  const std::string dots(5000, '.');
  const std::string toml = "# " + dots + "\n[run]\nsample_prompt = \"\\\"" + dots + "\"\n" +
                           "[data]\npath = '''" + dots + "''' # " + dots + "\n";
  const Recipe recipe = parse_recipe(toml, "r.toml");
  EXPECT_EQ(recipe.run.sample_prompt, "\"" + dots);
  EXPECT_EQ(recipe.data.path, dots);
}

}  // namespace
}  // namespace penstock::config
