#include <gtest/gtest.h>

#include "penstock/base/file.h"

#include "config/config_error.h"
#include "support/temp_folder.h"

namespace penstock::config {
namespace {

using test::error_text;
using test::TempFolder;

class LoadRecipe : public testing::Test {
 protected:
  std::string save(const std::string& name, const std::string& toml) const {
    write_text_file(folder_.path() / name, toml);
    return (folder_.path() / name).string();
  }

  TempFolder folder_;
};

TEST_F(LoadRecipe, SettingsGoOverTheFileInTheirOrder) {
  const std::string path = save("r.toml", "[train]\nsteps = 5\nbatch = 4\n");
  const Recipe recipe = load_recipe(path, {"train.steps=6", "train.steps=7"});
  EXPECT_EQ(recipe.train.steps, 7);
  EXPECT_EQ(recipe.train.batch, 4);
}

TEST_F(LoadRecipe, OutDefaultsToRunsAndTheFilesName) {
  EXPECT_EQ(load_recipe(save("small.toml", ""), {}).run.out, "runs/small");
  EXPECT_EQ(load_recipe(save("v1.2.toml", ""), {}).run.out, "runs/v1.2");
  EXPECT_EQ(load_recipe(save("bare", ""), {}).run.out, "runs/bare");
}

TEST_F(LoadRecipe, AGivenOutStays) {
  const std::string path = save("small.toml", "[run]\nout = \"elsewhere\"\n");
  EXPECT_EQ(load_recipe(path, {}).run.out, "elsewhere");
  EXPECT_EQ(load_recipe(path, {"run.out=there"}).run.out, "there");
  EXPECT_EQ(load_recipe(path, {"run.out="}).run.out, "runs/small");
}

TEST_F(LoadRecipe, BytesWithoutAUnitAreASlip) {
  const std::string path = save("r.toml", "");
  EXPECT_EQ(error_text<ConfigError>([&] { load_recipe(path, {"plan.memory=60"}); }),
            "plan.memory = \"60\" is 60 bytes; write a unit, as in \"60MiB\" or \"60GB\"");
  expect_parts(error_text<ConfigError>([&] { load_recipe(path, {"run.process_memory=999"}); }),
               {"run.process_memory = \"999\" is 999 bytes"});
  EXPECT_EQ(load_recipe(path, {"plan.memory=60mib"}).plan.memory_bytes(), int64_t{60} << 20);
  EXPECT_EQ(load_recipe(path, {"plan.memory=60000000"}).plan.memory_bytes(), 60'000'000);
}

TEST_F(LoadRecipe, LargeIntegersMayHaveAnExponent) {
  const std::string path = save("r.toml", "");
  EXPECT_EQ(load_recipe(path, {"train.steps=1e3"}).train.steps, 1000);
  EXPECT_EQ(load_recipe(path, {"train.steps=2.5E4"}).train.steps, 25000);
}

TEST_F(LoadRecipe, AMissingFileSaysWhereExamplesAre) {
  const std::string path = (folder_.path() / "missing.toml").string();
  EXPECT_EQ(error_text<ConfigError>([&] { load_recipe(path, {}); }),
            "recipe " + path + " does not exist; recipes/ has examples");
  const std::string below = save("file", "") + "/below.toml";
  expect_parts(error_text<ConfigError>([&] { load_recipe(below, {}); }), {below, "does not exist"});
}

TEST_F(LoadRecipe, WhatIsNoFileIsAFileError) {
  const std::string path = folder_.path().string();
  EXPECT_EQ(error_text<FileError>([&] { load_recipe(path, {}); }),
            "cannot read " + path + ": not a regular file");
  const std::string too_long(5000, 'x');
  EXPECT_EQ(error_text<FileError>([&] { load_recipe(too_long, {}); }),
            "cannot read " + too_long + ": File name too long");
}

TEST_F(LoadRecipe, ErrorsInTheFileNameItsPath) {
  const std::string path = save("r.toml", "[train]\nsteps = -1\n");
  expect_parts(error_text<ConfigError>([&] { load_recipe(path, {}); }),
               {path + ":2: train.steps = -1"});
}

TEST_F(LoadRecipe, CombinationsAreCheckedAfterTheSettings) {
  const std::string path = save("r.toml", "[model]\nwidth = 100\nheads = 3\n");
  EXPECT_THROW(load_recipe(path, {}), ConfigError);
  EXPECT_NO_THROW(load_recipe(path, {"model.heads=4"}));
}

TEST_F(LoadRecipe, TheRecipesOfTheRepositoryAreValid) {
  int num_recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(PENSTOCK_SOURCE_DIR "/recipes")) {
    if (entry.path().extension() == ".toml") {
      EXPECT_NO_THROW(load_recipe(entry.path().string(), {})) << entry.path();
      ++num_recipes;
    }
  }
  EXPECT_GT(num_recipes, 0);
}

}  // namespace
}  // namespace penstock::config
