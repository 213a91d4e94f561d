// --set key=value.
#include <gtest/gtest.h>

#include "config/config_error.h"

namespace penstock::config {
namespace {

Recipe with(const std::string& setting) {
  Recipe recipe;
  apply_setting(recipe, setting);
  return recipe;
}

TEST(Setting, SetsAValueOfEachType) {
  EXPECT_EQ(with("train.steps=50").train.steps, 50);
  EXPECT_EQ(with("train.lr=1e-3").train.lr, 1e-3);
  EXPECT_EQ(with("train.lr=2").train.lr, 2.0);
  EXPECT_TRUE(with("train.nesterov=true").train.nesterov);
  EXPECT_FALSE(with("train.nesterov=false").train.nesterov);
  EXPECT_EQ(with("data.path=a b,c").data.path, "a b,c");
  EXPECT_EQ(with("train.optimizer=sgd").train.optimizer, "sgd");
}

TEST(Setting, TextMayBeQuotedEmptyOrHoldEqualsSigns) {
  EXPECT_EQ(with("train.optimizer=\"sgd\"").train.optimizer, "sgd");
  EXPECT_EQ(with("run.sample_prompt=").run.sample_prompt, "");
  EXPECT_EQ(with("run.sample_prompt=\"\"").run.sample_prompt, "");
  EXPECT_EQ(with("run.sample_prompt=\"").run.sample_prompt, "\"");
  EXPECT_EQ(with("run.sample_prompt=a=b").run.sample_prompt, "a=b");
  EXPECT_EQ(with("run.sample_prompt=größer 😀\n").run.sample_prompt, "größer 😀\n");
}

TEST(Setting, TouchesNothingElse) {
  Recipe expected;
  expected.train.steps = 50;
  EXPECT_EQ(format_recipe(with("train.steps=50")), format_recipe(expected));
}

TEST(SettingError, WithoutEqualsSignShowsHowToWriteIt) {
  EXPECT_EQ(setting_error("train.steps"),
            "--set train.steps has no '='; write it as --set train.steps=50");
  EXPECT_EQ(setting_error("train.steps 50\n"),
            "--set \"train.steps 50\\n\" has no '='; write it as --set train.steps=50");
  expect_parts(setting_error(""), {"--set \"\" has no '='"});
}

TEST(SettingError, UnknownKeyComesWithTheNearestKey) {
  EXPECT_EQ(setting_error("train.stesp=5"),
            "--set: unknown key train.stesp; did you mean train.steps? (penstock options lists "
            "them all)");
  expect_parts(setting_error("steps=5"), {"unknown key steps", "train.steps?"});
  expect_parts(setting_error("model.lr=5"), {"unknown key model.lr", "train.lr?"});
  expect_parts(setting_error("trian.steps=5"), {"unknown key trian.steps", "train.steps?"});
  EXPECT_EQ(setting_error("=5"), "--set: unknown key \"\" (penstock options lists them all)");
  expect_parts(setting_error("train.steps =5"), {"unknown key \"train.steps \"", "train.steps?"});
}

TEST(SettingError, WrongTypeNamesValueAndWhatIsTaken) {
  EXPECT_EQ(setting_error("train.steps=many"),
            "--set: train.steps = \"many\" is text; it takes an integer, 0 or more");
  EXPECT_EQ(setting_error("train.lr=fast"),
            "--set: train.lr = \"fast\" is text; it takes a number, 0 or more");
  EXPECT_EQ(setting_error("train.nesterov=yes"),
            "--set: train.nesterov = \"yes\" is text; it takes true or false");
  for (const char* value :
       {"", "1.5", "15e-1", "1e30", "5 ", " 5", "5x", "0x5", "99999999999999999999"}) {
    expect_parts(setting_error(std::string("train.steps=") + value),
                 {"--set: train.steps = \"", value, "it takes an integer, 0 or more"});
  }
}

TEST(SettingError, TextThatIsNotUtf8NamesTheKey) {
  EXPECT_EQ(setting_error("data.path=a\xFF"),
            "--set: data.path is not valid UTF-8; it takes UTF-8 text");
}

}  // namespace
}  // namespace penstock::config
