#include <gtest/gtest.h>

#include "config/config_error.h"

namespace penstock::config {
namespace {

struct RangeCase {
  std::string key;
  std::string allowed;
  std::vector<std::string> inside;
  std::vector<std::string> outside;
};

std::string as_toml(const std::string& key, const std::string& value) {
  const size_t dot = key.find('.');
  return "[" + key.substr(0, dot) + "]\n" + key.substr(dot + 1) + " = " + value + "\n";
}

class OptionRange : public testing::TestWithParam<RangeCase> {};

TEST_P(OptionRange, TakesWhatIsInside) {
  for (const std::string& value : GetParam().inside) {
    EXPECT_NO_THROW(parse_recipe(as_toml(GetParam().key, value), "r.toml")) << value;
    Recipe recipe;
    EXPECT_NO_THROW(apply_setting(recipe, GetParam().key + "=" + value)) << value;
  }
}

TEST_P(OptionRange, NamesKeyValueAndRangeForWhatIsOutside) {
  for (const std::string& value : GetParam().outside) {
    expect_parts(
        recipe_error(as_toml(GetParam().key, value)),
        {"r.toml:2: " + GetParam().key + " = ", "is not allowed; it takes " + GetParam().allowed});
    expect_parts(
        setting_error(GetParam().key + "=" + value),
        {"--set: " + GetParam().key + " = ", "is not allowed; it takes " + GetParam().allowed});
  }
}

// One option of each kind of range.
INSTANTIATE_TEST_SUITE_P(
    Kinds,
    OptionRange,
    testing::Values(
        RangeCase{"train.steps", "0 or more", {"0", "9223372036854775807"}, {"-1"}},
        RangeCase{"run.log_every", "1 or more", {"1"}, {"0", "-9223372036854775808"}},
        RangeCase{"model.layers", "1 to 100000", {"1", "100000"}, {"0", "100001", "-1"}},
        RangeCase{
            "train.lr", "0 or more", {"0", "0.0", "1", "1e300"}, {"-1e-9", "inf", "nan", "-inf"}},
        RangeCase{"train.epsilon", "above 0", {"1e-300", "1"}, {"0", "0.0", "-0.0", "-1", "nan"}},
        RangeCase{"train.final_lr", "0 to 1", {"0", "1", "0.5"}, {"1.0000001", "-0.1", "2"}},
        RangeCase{"model.dropout", "0 to below 1", {"0", "0.999"}, {"1", "1.0", "-0.1", "nan"}},
        RangeCase{"train.schedule",
                  "\"constant\", \"linear\", \"cosine\", \"wsd\" or \"onecycle\"",
                  {"\"constant\"", "\"onecycle\""},
                  {"\"step\"", "\"\"", "\"Cosine\"", "\"a\\nb\""}},
        RangeCase{"train.loss_scale",
                  "above 0 to 16777216",
                  {"1", "0.5", "65536", "16777216"},
                  {"0", "-1", "16777217", "inf", "nan"}},
        RangeCase{"train.precision",
                  "\"float32\", \"tf32\", \"bfloat16\" or \"float16\"",
                  {"\"tf32\"", "\"float16\""},
                  {"\"fp16\"", "\"half\"", "\"\""}},
        RangeCase{"run.device",
                  "\"cpu\" or \"cuda\"",
                  {"\"cpu\"", "\"cuda\""},
                  {"\"gpu\"", "\"cuda:0\"", "\"\""}}));

TEST(OptionRange, AValueOutsideLeavesTheRecipeAsItWas) {
  Recipe recipe;
  EXPECT_THROW(apply_setting(recipe, "model.layers=0"), ConfigError);
  EXPECT_EQ(recipe.model.layers, Recipe().model.layers);
}

}  // namespace
}  // namespace penstock::config
