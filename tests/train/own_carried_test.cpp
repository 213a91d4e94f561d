// What passes by layers unchanged: how often it is sent and held, in bytes that nobody predicted; of any
// type; in validation; under limits on ranks.
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/text.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/module_layer.h"
#include "penstock/train/trainer.h"

#include "train/own_chains.h"

namespace penstock::train {
namespace {

constexpr int64_t kMicroBatches = 4, kRows = 4;  // of recipe_for: 16 samples
constexpr int64_t kActivationBytes = kRows * kLength * kWidth * 4;
constexpr int64_t kMaskBytes = kRows * kLength * 4;

at::Tensor mask_of(const at::Tensor& lengths) {
  return at::arange(kLength).unsqueeze(0).lt(lengths.unsqueeze(1)).unsqueeze(2);
}

// In an account of its own: it is no value of any run.
const at::Tensor& constant_mask() {
  static const at::Tensor mask = [] {
    const memory::AccountScope aside(memory::make_account());
    return at::ones({1, kLength, 1});
  }();
  return mask;
}

// The mask of masked_chain() travels, or every layer has one of its own that is no value.
Chain blocks(int64_t count, bool has_mask) {
  Chain chain;
  chain.add(
      model::function_layer("mask",
                            [has_mask](const Tensors& in) -> Tensors {
                              Tensors made{in[0] * 0.5};
                              if (has_mask) {
                                made.push_back(mask_of(in[1]).to(at::kFloat));
                              }
                              return made;
                            }),
      {.reads = {"features", "length"},
       .writes = has_mask ? std::vector<std::string>{"x", "mask"} : std::vector<std::string>{"x"}});
  for (int64_t i = 0; i < count; ++i) {
    Masked block;
    if (has_mask) {
      chain.add(model::module_layer(cat("block ", i), block), {.reads = {"x", "mask"}});
    } else {
      chain.add(model::make_module_layer(
          cat("block ", i), block.ptr(), [block](const Tensors& in) -> Tensors {
            return {block.ptr()->forward(in[0], constant_mask())};
          }));
    }
  }
  return std::move(chain.end_with(label_loss(), {.targets = {"label"}}));
}

std::vector<int64_t> payloads(const MakeChain& make, const std::string& cuts, int64_t ranks) {
  config::Recipe recipe = sgd_recipe("payload", /*steps=*/2);
  recipe.plan.pipeline = ranks;
  recipe.plan.cuts = cuts;
  recipe.plan.schedule = "1f1b";
  return train(make, sequences(), recipe).summary.rank_payload_bytes;
}

// A mask has no gradient: it goes ahead once over each cut, for each micro-batch.
TEST(OwnCarried, AMaskIsSentOnceOverEachCut) {
  for (const auto& [ranks, cuts] : {std::pair(2, "4"), {2, "1"}, {4, "2,4,6"}, {4, "1,2,6"}}) {
    const std::vector<int64_t> with = payloads([] { return blocks(6, true); }, cuts, ranks);
    const std::vector<int64_t> without = payloads([] { return blocks(6, false); }, cuts, ranks);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto at = static_cast<size_t>(rank);
      EXPECT_EQ(with[at] - without[at], rank + 1 < ranks ? kMicroBatches * kMaskBytes : 0)
          << "rank " << rank << " of " << ranks << ", cuts " << cuts;
    }
  }
}

// An encoder's output goes ahead once to each rank that reads it, and its gradient comes back once from
// each; ranks between readers are passed by.
TEST(OwnCarried, AnEncodersOutputIsSentOnceToEachReader) {
  struct Case {
    int64_t ranks;
    const char* cuts;
    int64_t readers;  // ranks that read it and do not make it
  };
  // Read by layers 2, 3, 5 and 7; made by 1.
  for (const auto& [ranks, cuts, readers] : {Case{2, "4", 1},
                                             {2, "2", 1},
                                             {2, "6", 1},
                                             {4, "3,5,7", 3},
                                             {4, "4,5,6", 2},
                                             {4, "2,4,5", 2},
                                             {4, "5,6,7", 2}}) {
    int64_t sum = 0;
    for (const int64_t bytes : payloads(&encoder_chain, cuts, ranks)) {
      sum += bytes;
    }
    // The cut right behind the encoder has no other activation.
    const int64_t cuts_with_x = ranks - 1 - (std::string(cuts).starts_with("2") ? 1 : 0);
    // For the norm each rank gives each other its sums of squares: two numbers a parameter.
    const int64_t squares = ranks * (ranks - 1) * 16 * 2 * 8;
    EXPECT_EQ(sum, kMicroBatches * 2 * kActivationBytes * (cuts_with_x + readers) + squares)
        << ranks << " ranks, cuts " << cuts;
  }
}

TEST(OwnCarried, AMaskOfManyLayersIsHeldOnce) {
  const auto peak = [](bool has_mask, const char* memory, int64_t micro_batches) {
    config::Recipe recipe = recipe_for("held", /*steps=*/2);
    recipe.plan.micro_batches = micro_batches;
    recipe.plan.memory = memory;
    const Summary summary =
        train([&] { return blocks(24, has_mask); }, sequences(), recipe).summary;
    EXPECT_EQ(summary.rank_peak_bytes, summary.predicted_rank_peak_bytes);
    return summary.peak_bytes;
  };
  for (const int64_t micro_batches : {1, 4}) {
    EXPECT_EQ(peak(true, "", micro_batches) - peak(false, "", micro_batches),
              16 / micro_batches * kLength * 4)
        << micro_batches;
  }
}

// Of both types that have no gradient, to the loss.
Chain typed_chain() {
  Chain chain;
  chain.add(model::function_layer("types",
                                  [](const Tensors& in) -> Tensors {
                                    return {in[0] * 0.5, mask_of(in[1]), in[1] * 2};
                                  }),
            {.reads = {"features", "length"}, .writes = {"x", "mask", "twice"}});
  for (int64_t i = 0; i < 6; ++i) {
    Masked block;
    chain.add(
        model::make_module_layer(
            cat("block ", i),
            block.ptr(),
            [block](const Tensors& in) -> Tensors {
              return {block.ptr()->forward(in[0], in[1].to(at::kFloat)) / in[2].view({-1, 1, 1})};
            }),
        {.reads = {"x", "mask", "twice"}});
  }
  const auto loss = [](const Tensors& in, const Tensors& label) {
    const at::Tensor mean = (in[0] * in[1]).sum(1) / in[2].unsqueeze(1);
    return at::cross_entropy_loss(mean.narrow(1, 0, 3), label[0], {}, at::Reduction::Sum);
  };
  return std::move(chain.end_with(model::function_loss_of_many("loss", loss),
                                  {.reads = {"x", "mask", "twice"}, .targets = {"label"}}));
}

TEST(OwnCarried, TensorsOfAnyTypeGoToTheLoss) {
  const Result plain = train(&typed_chain, sequences(), recipe_for("typed"));
  for (const int64_t ranks : {2, 4}) {
    for (const char* schedule : {"1f1b", "gpipe", "zb-h1"}) {
      config::Recipe recipe = recipe_for("typed_ranks");
      recipe.plan.pipeline = ranks;
      recipe.plan.schedule = schedule;
      const Result other = train(&typed_chain, sequences(), recipe);
      EXPECT_EQ(other.summary.losses, plain.summary.losses) << schedule << " on " << ranks;
      EXPECT_TRUE(other.weights == plain.weights) << schedule << " on " << ranks;
    }
  }
}

class OwnCarriedChains : public testing::TestWithParam<Chain (*)()> {};

// 21 samples, so that the last batch is a short one.
TEST_P(OwnCarriedChains, HaveOneValidationLossOnAnyRanks) {
  const auto loss_on = [](int64_t pipeline, int64_t data) {
    config::Recipe recipe = recipe_for("validated");
    recipe.data.split = 21.0 / 64;
    recipe.plan.pipeline = pipeline;
    recipe.plan.data = data;
    recipe.plan.micro_batches = 4 / data;
    return train(GetParam(), sequences(), recipe).summary.validation_loss.value();
  };
  const double one = loss_on(1, 1);
  EXPECT_GT(one, 0);
  EXPECT_EQ(loss_on(2, 1), one);
  EXPECT_EQ(loss_on(4, 1), one);
  EXPECT_NEAR(loss_on(2, 2), one, 1e-5 * one) << "replicas add gradients in another order";
}

TEST_P(OwnCarriedChains, HaveTheBitsOfOneDeviceUnderLimitsOnRanks) {
  const Result plain = train(GetParam(), sequences(), recipe_for("unlimited"));
  for (const int64_t ranks : {2, 4}) {
    for (const char* schedule : {"1f1b", "gpipe"}) {
      config::Recipe recipe = recipe_for("limited_ranks");
      recipe.plan.pipeline = ranks;
      recipe.plan.schedule = schedule;
      const int64_t most = train(GetParam(), sequences(), recipe).summary.peak_bytes;
      const int64_t least = least_bytes(GetParam(), sequences(), recipe);
      ASSERT_LT(least, most) << schedule << " on " << ranks;
      for (int i = 0; i < 3; ++i) {
        recipe.plan.memory = cat(least + (most - least) * i / 3);
        const Result limited = train(GetParam(), sequences(), recipe);
        const std::string what = cat(schedule, " on ", ranks, " in ", recipe.plan.memory);
        EXPECT_EQ(limited.summary.losses, plain.summary.losses) << what;
        EXPECT_TRUE(limited.weights == plain.weights) << what;
        EXPECT_EQ(limited.summary.rank_peak_bytes, limited.summary.predicted_rank_peak_bytes)
            << what;
        EXPECT_LE(limited.summary.peak_bytes, least + (most - least) * i / 3) << what;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Trainer,
                         OwnCarriedChains,
                         testing::Values(&masked_chain, &encoder_chain),
                         [](const testing::TestParamInfo<Chain (*)()>& info) {
                           return std::string(info.index == 0 ? "mask" : "encoder");
                         });

}  // namespace
}  // namespace penstock::train
