#include <gtest/gtest.h>

#include "config/config_error.h"

namespace penstock::config {
namespace {

std::string validation_error(const Recipe& recipe) {
  return test::error_text<ConfigError>([&] { validate(recipe); });
}

TEST(Validate, TheDefaultsPass) {
  EXPECT_NO_THROW(validate(Recipe()));
}

TEST(Validate, WidthMustBeDivisibleByHeads) {
  Recipe recipe;
  recipe.model.width = 100;
  recipe.model.heads = 12;
  EXPECT_EQ(validation_error(recipe),
            "model.width = 100 is not divisible by model.heads = 12; try model.width = 108");
  recipe.model.width = 108;
  EXPECT_NO_THROW(validate(recipe));
  recipe.model.width = 4;
  expect_parts(validation_error(recipe), {"try model.width = 12"});
}

TEST(Validate, BatchMustBeDivisibleByMicroBatches) {
  Recipe recipe;
  recipe.train.batch = 12;
  recipe.plan.micro_batches = 8;
  EXPECT_EQ(validation_error(recipe),
            "train.batch = 12 is not divisible by plan.micro_batches = 8; try plan.micro_batches "
            "= 6");
  recipe.plan.micro_batches = 6;
  EXPECT_NO_THROW(validate(recipe));
  recipe.plan.micro_batches = 24;
  expect_parts(validation_error(recipe), {"try plan.micro_batches = 12"});
  recipe.train.batch = 7;
  recipe.plan.micro_batches = 6;
  expect_parts(validation_error(recipe), {"try plan.micro_batches = 1"});
}

TEST(Validate, TheSuggestionForTheLargestBatchTakesNoTime) {
  Recipe recipe;
  apply_setting(recipe, "train.batch=9999991");  // prime
  apply_setting(recipe, "plan.micro_batches=9999990");
  expect_parts(validation_error(recipe), {"try plan.micro_batches = 1"});
}

TEST(Validate, BytesNeedAVocabularyOf256) {
  Recipe recipe;
  recipe.model.vocabulary = 255;
  EXPECT_EQ(validation_error(recipe),
            "model.vocabulary = 255 is too small for data.tokenizer = \"bytes\"; it needs 256");
  recipe.model.vocabulary = 256;
  EXPECT_NO_THROW(validate(recipe));
  recipe.model.vocabulary = 255;
  recipe.data.tokenizer = "tokens";
  EXPECT_NO_THROW(validate(recipe));
}

TEST(Validate, NesterovGoesWithSgd) {
  Recipe recipe;
  recipe.train.nesterov = true;
  EXPECT_EQ(validation_error(recipe),
            "train.nesterov = true goes with train.optimizer = \"sgd\", not \"adamw\"");
}

TEST(Validate, NesterovNeedsMomentum) {
  Recipe recipe;
  recipe.train.nesterov = true;
  recipe.train.optimizer = "sgd";
  EXPECT_NO_THROW(validate(recipe));
  recipe.train.momentum = 0;
  EXPECT_EQ(validation_error(recipe),
            "train.nesterov = true needs train.momentum above 0; try train.momentum = 0.9");
  recipe.train.nesterov = false;
  EXPECT_NO_THROW(validate(recipe));
}

TEST(Validate, Tf32AndFloat16GoWithCuda) {
  Recipe recipe;
  recipe.train.precision = "tf32";
  EXPECT_EQ(validation_error(recipe),
            "train.precision = \"tf32\" goes with run.device = \"cuda\"; \"cpu\" takes \"float32\" "
            "or \"bfloat16\"; try train.precision = \"float32\"");
  recipe.train.precision = "float16";
  EXPECT_EQ(validation_error(recipe),
            "train.precision = \"float16\" goes with run.device = \"cuda\"; \"cpu\" takes "
            "\"float32\" or \"bfloat16\"; try train.precision = \"bfloat16\"");
}

TEST(Validate, EveryPrecisionOfADevicePasses) {
  Recipe recipe;
  for (const char* precision : {"float32", "bfloat16"}) {
    recipe.train.precision = precision;
    EXPECT_NO_THROW(validate(recipe)) << precision;
  }
  recipe.run.device = "cuda";
  for (const char* precision : {"float32", "tf32", "bfloat16", "float16"}) {
    recipe.train.precision = precision;
    EXPECT_NO_THROW(validate(recipe)) << precision;
  }
}

TEST(Validate, TheLossScaleBeginsAtItsLeastOrAbove) {
  Recipe recipe;
  recipe.train.loss_scale = 128;
  recipe.train.loss_scale_least = 128;
  EXPECT_NO_THROW(validate(recipe));
  recipe.train.loss_scale_least = 256;
  EXPECT_EQ(validation_error(recipe),
            "train.loss_scale_least = 256 is above train.loss_scale = 128; try "
            "train.loss_scale_least = 1");
  recipe.train.loss_scale = 0.5;
  expect_parts(validation_error(recipe), {"try train.loss_scale_least = 0.5"});
}

TEST(Validate, GraphsGoWithCuda) {
  Recipe recipe;
  recipe.run.graphs = "on";
  EXPECT_EQ(validation_error(recipe),
            "run.graphs = \"on\" goes with run.device = \"cuda\", not \"cpu\"; try run.graphs = "
            "\"auto\"");
  recipe.run.device = "cuda";
  EXPECT_NO_THROW(validate(recipe));
}

TEST(Validate, GraphsGoWithoutDropoutAndWithoutALimit) {
  Recipe recipe;
  recipe.run.device = "cuda";
  recipe.run.graphs = "on";
  recipe.model.dropout = 0.1;
  expect_parts(validation_error(recipe), {"model.dropout = 0, not 0.1", "run.graphs = \"auto\""});
  recipe.model.dropout = 0;
  recipe.plan.memory = "8GiB";
  expect_parts(validation_error(recipe), {"plan.memory", "run.graphs = \"auto\""});
  recipe.run.graphs = "auto";
  EXPECT_NO_THROW(validate(recipe));
}

TEST(Validate, NcclGoesWithCuda) {
  Recipe recipe;
  recipe.run.links = "nccl";
  EXPECT_EQ(validation_error(recipe),
            "run.links = \"nccl\" goes with run.device = \"cuda\", not \"cpu\"; try run.links = "
            "\"auto\"");
  recipe.run.device = "cuda";
  EXPECT_NO_THROW(validate(recipe));
  recipe.run.device = "cpu";
  recipe.run.links = "pinned";
  EXPECT_NO_THROW(validate(recipe));
}

TEST(Validate, GraphsGoWithOneRank) {
  Recipe recipe;
  recipe.run.device = "cuda";
  recipe.plan.pipeline = 4;
  EXPECT_NO_THROW(validate(recipe));
  recipe.run.graphs = "on";
  EXPECT_EQ(validation_error(recipe),
            "run.graphs = \"on\" records the step of one rank, and plan.pipeline is 4: a recorded "
            "step cannot wait for a peer; try run.graphs = \"auto\"");
}

namespace {

Recipe asynchronous(const std::string& schedule) {
  Recipe recipe;
  recipe.model.tied = false;
  recipe.train.batch = 8;
  recipe.train.clip = 0;
  recipe.plan.pipeline = 4;
  recipe.plan.micro_batches = 4;
  recipe.plan.schedule = schedule;
  return recipe;
}

}  // namespace

TEST(Validate, AsynchronousSchedulesMoveEachRankByItself) {
  for (const std::string schedule : {"pipedream", "2bw", "pipemare"}) {
    const std::string begin = "plan.schedule = \"" + schedule + "\" ";
    Recipe recipe = asynchronous(schedule);
    EXPECT_NO_THROW(validate(recipe));
    recipe.train.precision = "bfloat16";
    EXPECT_NO_THROW(validate(recipe));
    recipe.plan.pipeline = 1;
    EXPECT_EQ(validation_error(recipe),
              begin + "is for pipelines, and plan.pipeline is 1; set it to the number of ranks");
    recipe = asynchronous(schedule);
    recipe.train.clip = 0.5;
    EXPECT_EQ(
        validation_error(recipe),
        begin +
            "moves each rank's weights by itself, and train.clip = 0.5 needs the gradients of "
            "all ranks at once; set train.clip = 0, or try \"1f1b\"");
    recipe = asynchronous(schedule);
    recipe.model.tied = true;
    EXPECT_EQ(validation_error(recipe),
              begin +
                  "moves each rank's weights by itself, and with model.tied the first and the last "
                  "rank share some; set model.tied = false, or try \"1f1b\"");
    recipe = asynchronous(schedule);
    recipe.run.device = "cuda";
    recipe.train.precision = "float16";
    EXPECT_EQ(validation_error(recipe),
              begin +
                  "moves each rank's weights by itself, and train.precision = \"float16\" skips a "
                  "step on all ranks at once; try \"bfloat16\"");
  }
}

TEST(Validate, TwoVersionsTakeAMicroBatchForEachRank) {
  Recipe recipe = asynchronous("2bw");
  recipe.plan.micro_batches = 2;
  EXPECT_EQ(
      validation_error(recipe),
      "plan.schedule = \"2bw\" has two versions of the weights, which takes a micro-batch for "
      "each of 4 ranks; set plan.micro_batches to 4 or more, or try \"pipedream\"");
  recipe.plan.schedule = "pipedream";
  EXPECT_NO_THROW(validate(recipe));
}

TEST(Validate, AGpuTakesSoManyMicroBatches) {
  Recipe recipe;
  recipe.train.batch = 20000;
  recipe.plan.micro_batches = 20000;
  EXPECT_NO_THROW(validate(recipe));
  recipe.run.device = "cuda";
  expect_parts(validation_error(recipe), {"plan.micro_batches = 20000", "up to 16384"});
}

TEST(Validate, OneBitOptimizersAreForTheCpu) {
  for (const auto& [optimizer, other] : {std::pair{"onebit-adam", "adamw"},
                                         std::pair{"zeroone-adam", "adamw"},
                                         std::pair{"onebit-lamb", "lamb"}}) {
    Recipe recipe;
    recipe.train.optimizer = optimizer;
    EXPECT_NO_THROW(validate(recipe));
    recipe.run.device = "cuda";
    EXPECT_EQ(validation_error(recipe),
              cat("train.optimizer = \"",
                  optimizer,
                  "\" is for run.device = \"cpu\"; on a GPU try train.optimizer = \"",
                  other,
                  "\""));
  }
}

TEST(Validate, OneBitOptimizersNeedWholeGradients) {
  Recipe recipe;
  recipe.plan.data = 4;
  recipe.train.optimizer = "onebit-lamb";
  EXPECT_NO_THROW(validate(recipe));
  recipe.plan.shard = "optimizer";
  EXPECT_NO_THROW(validate(recipe));
  for (const std::string shard : {"gradients", "parameters"}) {
    recipe.plan.shard = shard;
    EXPECT_EQ(validation_error(recipe),
              "train.optimizer = \"onebit-lamb\" compresses to 1 bit what every replica makes of "
              "its whole gradient, and plan.shard = \"" +
                  shard + "\" leaves it only a shard; try plan.shard = \"optimizer\"");
  }
}

TEST(Validate, LocalStepsNeedWholeWeights) {
  Recipe recipe;
  recipe.plan.data = 4;
  recipe.plan.shard = "optimizer";
  recipe.train.optimizer = "zeroone-adam";
  EXPECT_EQ(validation_error(recipe),
            "train.optimizer = \"zeroone-adam\" with train.local_step_clipper = 16 lets every "
            "replica move all weights by itself, and with plan.shard = \"optimizer\" it moves a "
            "shard; set train.local_step_clipper = 1, or plan.shard = \"none\"");
  recipe.train.local_step_clipper = 1;
  EXPECT_NO_THROW(validate(recipe));
}

TEST(Validate, TheCpuIsDeterministicWhetherAskedOrNot) {
  Recipe recipe;
  recipe.run.deterministic = true;
  EXPECT_NO_THROW(validate(recipe));
}

}  // namespace
}  // namespace penstock::config
