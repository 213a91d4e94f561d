// Chains of a user's own through train::Trainer: several tensors on the edges, what passes by unchanged;
// under limits, on ranks, killed and resumed. own_frozen_test.cpp has what is frozen, own_conv_test.cpp
// batch norm and dropout, own_errors_test.cpp what a user may get wrong.
#include <array>
#include <string>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "penstock/train/trainer.h"

#include "train/own_chains.h"

namespace penstock::train {
namespace {

void expect_predicted(const Summary& summary, const std::string& what) {
  ASSERT_FALSE(summary.predicted_rank_peak_bytes.empty()) << what;
  EXPECT_EQ(summary.rank_payload_bytes, summary.predicted_rank_payload_bytes) << what;
}

class OwnChains : public testing::TestWithParam<Chain (*)()> {};

TEST_P(OwnChains, HaveTheBitsOfOneDeviceInEveryPlan) {
  const data::DatasetPtr dataset = sequences();
  const Result plain = train(GetParam(), dataset, recipe_for("plain"));
  EXPECT_LT(plain.summary.losses.back(), plain.summary.losses.front());
  const auto expect_same = [&](const config::Recipe& recipe, const std::string& what) {
    const Result other = train(GetParam(), dataset, recipe);
    EXPECT_EQ(other.summary.losses, plain.summary.losses) << what;
    EXPECT_TRUE(other.weights == plain.weights) << what;
    expect_predicted(other.summary, what);
  };
  // Recomputation, from everything kept down to the least.
  const int64_t least = least_bytes(GetParam(), dataset, recipe_for("least"));
  const int64_t most = plain.summary.predicted_rank_peak_bytes.at(0);
  EXPECT_EQ(plain.summary.rank_peak_bytes, plain.summary.predicted_rank_peak_bytes);
  ASSERT_LT(least, most);
  for (int i = 0; i < 5; ++i) {
    config::Recipe recipe = recipe_for("limited");
    recipe.plan.memory = cat(least + (most - least) * i / 4);
    const Result limited = train(GetParam(), dataset, recipe);
    EXPECT_TRUE(limited.weights == plain.weights) << recipe.plan.memory;
    EXPECT_EQ(limited.summary.rank_peak_bytes, limited.summary.predicted_rank_peak_bytes)
        << recipe.plan.memory;
    EXPECT_LE(limited.summary.peak_bytes, least + (most - least) * i / 4);
  }
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"}) {
    for (const int64_t ranks : {2, 4}) {
      const int64_t stages = std::string(schedule) == "interleaved" ? 2 : 1;
      if (ranks * stages > 6 || (ranks == 4 && std::string(schedule) == "zb-v")) {
        continue;  // more stages than layers
      }
      config::Recipe recipe = recipe_for("ranks");
      recipe.plan.pipeline = ranks;
      recipe.plan.schedule = schedule;
      expect_same(recipe, cat(schedule, " on ", ranks));
    }
  }
}

TEST_P(OwnChains, MeasureThePeaksThatWerePredictedOnEveryRank) {
  const data::DatasetPtr dataset = sequences();
  for (const char* schedule : {"gpipe", "1f1b", "interleaved"}) {
    for (const int64_t ranks : {2, 3, 4}) {
      if (ranks == 4 && std::string(schedule) == "interleaved") {
        continue;  // more stages than layers
      }
      config::Recipe recipe = recipe_for("peaks");
      recipe.plan.pipeline = ranks;
      recipe.plan.schedule = schedule;
      const Summary summary = train(GetParam(), dataset, recipe).summary;
      EXPECT_EQ(summary.rank_peak_bytes, summary.predicted_rank_peak_bytes)
          << schedule << " on " << ranks;
    }
  }
}

TEST_P(OwnChains, PassTheCheckUnderALimit) {
  config::Recipe recipe = recipe_for("check");
  recipe.plan.memory = cat(least_bytes(GetParam(), sequences(), recipe));
  const CheckOutcome one = Trainer(GetParam(), sequences(), recipe).check();
  EXPECT_TRUE(one.is_equal()) << one.report.first_difference;
}

TEST_P(OwnChains, PassTheCheckOnRanks) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
    config::Recipe recipe = recipe_for("check");
    recipe.plan.pipeline = 2;
    recipe.plan.schedule = schedule;
    const CheckOutcome two = Trainer(GetParam(), sequences(), recipe).check();
    EXPECT_TRUE(two.is_equal()) << schedule << ": " << two.report.first_difference;
    expect_peaks(two.report.rank_peak_bytes, two.predicted_peaks, schedule, schedule);
  }
}

// One device that adds gradients in the order of the replicas has the same bits.
TEST_P(OwnChains, PassTheCheckAsReplicasWithAnythingSharded) {
  for (const char* shard : {"none", "optimizer", "gradients", "parameters"}) {
    for (const auto& [pipeline, schedule] :
         {std::pair(1, "1f1b"), {2, "1f1b"}, {2, "zb-h1"}, {2, "interleaved"}}) {
      config::Recipe recipe = recipe_for("replicas");
      recipe.plan.data = 2;
      recipe.plan.shard = shard;
      recipe.plan.pipeline = pipeline;
      recipe.plan.schedule = schedule;
      recipe.plan.micro_batches = 2;
      const std::string what = cat(shard, ", ", schedule, " on 2 x ", pipeline);
      const CheckOutcome outcome = Trainer(GetParam(), sequences(), recipe).check();
      EXPECT_TRUE(outcome.is_equal()) << what << ": " << outcome.report.first_difference;
      EXPECT_EQ(outcome.report.reordered, "") << what;
      expect_peaks(outcome.report.rank_peak_bytes, outcome.predicted_peaks, schedule, what);
    }
  }
}

TEST_P(OwnChains, FitIntoAnyLimitWithShardedParameters) {
  config::Recipe recipe = recipe_for("sharded_limits");
  recipe.plan.data = 2;
  recipe.plan.shard = "parameters";
  recipe.plan.micro_batches = 2;
  const Result plain = train(GetParam(), sequences(), recipe);
  const int64_t least = least_bytes(GetParam(), sequences(), recipe);
  const int64_t most = plain.summary.predicted_rank_peak_bytes.at(0);
  ASSERT_LT(least, most);
  for (int i = 0; i < 5; ++i) {
    recipe.plan.memory = cat(least + (most - least) * i / 4);
    const Result limited = train(GetParam(), sequences(), recipe);
    EXPECT_TRUE(limited.weights == plain.weights) << recipe.plan.memory;
    EXPECT_EQ(limited.summary.rank_peak_bytes, limited.summary.predicted_rank_peak_bytes)
        << recipe.plan.memory;
  }
}

TEST_P(OwnChains, GoOnInAnotherLayout) {
  const Result whole = train(GetParam(), sequences(), recipe_for("whole", 6));
  config::Recipe recipe = recipe_for("parts");
  recipe.plan.pipeline = 2;
  train(GetParam(), sequences(), recipe);
  recipe.plan.pipeline = 1;
  recipe.train.steps = 6;
  const Result resumed = train(GetParam(), sequences(), recipe, recipe.run.out);
  EXPECT_EQ(resumed.summary.first_step, 3);
  EXPECT_TRUE(resumed.weights == whole.weights);
}

std::string chain_name(const testing::TestParamInfo<Chain (*)()>& info) {
  return std::array{"mask", "encoder", "frozen"}[info.index];
}

INSTANTIATE_TEST_SUITE_P(Trainer,
                         OwnChains,
                         testing::Values(&masked_chain, &encoder_chain, &frozen_chain),
                         chain_name);

TEST(OwnChain, TrainsWithABatchOfMoreSamplesThanThereAre) {
  config::Recipe recipe = recipe_for("epochs");
  recipe.train.batch = 96;  // of 64
  const Result result = train(&masked_chain, sequences(), recipe);
  EXPECT_EQ(result.summary.losses.size(), 3u);
}

}  // namespace
}  // namespace penstock::train
