// A pipeline of ranks that share a GPU, under a limit of each: planned, kept, and changing no bit;
// and what is said where a step breaks it.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/text.h"
#include "penstock/comm/local.h"
#include "penstock/memory/account.h"
#include "penstock/model/family.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/pipeline_solver.h"
#include "penstock/run/executor.h"
#include "penstock/run/stages.h"
#include "penstock/train/machine.h"
#include "penstock/train/rank_model.h"
#include "penstock/train/setup.h"

#include "gpu/gpu_ranks.h"

namespace penstock::train {

namespace {

constexpr int32_t kRanks = 2;
constexpr int64_t kSteps = 3;

// Some hundred MiB of activations at each rank: several times what the allocator's pages are.
config::Recipe recipe_with(const std::string& memory) {
  config::Recipe recipe;
  recipe.model.layers = 8;
  recipe.model.width = 512;
  recipe.model.heads = 8;
  recipe.model.context = 256;
  recipe.model.vocabulary = 1024;
  recipe.model.dropout = 0;
  recipe.model.tied = false;
  recipe.train.batch = 64;
  recipe.train.precision = "bfloat16";
  recipe.plan.pipeline = kRanks;
  recipe.plan.micro_batches = 4;
  recipe.plan.schedule = "gpipe";
  recipe.plan.memory = memory;
  recipe.run.device = "cuda";
  recipe.run.deterministic = true;
  return recipe;
}

plan::CostTable measure() {
  plan::CostTable table;
  test::run_gpu_ranks(1, [&](comm::Group&, const device::Device& device) {
    const config::Recipe recipe = recipe_with("");
    const model::Chain chain = model::make_chain(recipe.model, device);
    table = measure_costs(recipe, chain, device, {.measures_split = true});
  });
  return table;
}

plan::Outcome plan_with(const config::Recipe& recipe, const plan::CostTable& costs) {
  plan::Outcome result;
  test::run_gpu_ranks(1, [&](comm::Group&, const device::Device& device) {
    const model::Chain chain = model::make_chain(recipe.model, device);
    result = plan::make_plan(plan_request(recipe, chain), costs, find_machine(recipe));
  });
  return result;
}

struct Trained {
  std::vector<double> losses;
  std::vector<int64_t> peaks = std::vector<int64_t>(kRanks);
};

// The ranks' limit is that of the recipe, whatever the plan was made for.
Trained train(const config::Recipe& recipe, const plan::Outcome& planned) {
  Trained result;
  const run::Stages stages{planned.schedule().rank_of, planned.cuts()};
  const std::vector<model::Part> parts = run::parts_of(stages, kRanks);
  test::run_gpu_ranks(kRanks, [&](comm::Group& group, const device::Device& device) {
    const size_t number = static_cast<size_t>(group.rank());
    const memory::LimitScope limit(device.account(), recipe.plan.memory_bytes());
    const model::Chain chain = model::make_chain(recipe.model, device);
    model::Parameters parameters(chain, parts[number], at::kBFloat16, /*seed=*/3, device);
    const auto optimizer = optim::make_optimizer(recipe.train, parameters);
    run::Executor executor(planned.program, chain, parameters, group);
    for (int64_t step = 0; step < kSteps; ++step) {
      const at::Tensor tokens = test::random_tokens(
          {2, recipe.train.batch, recipe.model.context}, 1024, 10 + static_cast<uint64_t>(step));
      const double loss = executor.run({.batch = {{"inputs", tokens[0]}, {"targets", tokens[1]}},
                                        .micro_batches = recipe.plan.micro_batches,
                                        .seed = 5,
                                        .step = step,
                                        .updates = {{.rate = {.lr = 1e-3}, .clip = 1}}},
                                       *optimizer);
      if (parts[number].has_loss) {
        result.losses.push_back(loss);
      }
    }
    result.peaks[number] = device.account().usage().peak_bytes;
    group.barrier(test::what("the end of training"));  // no limit is lifted before
  });
  return result;
}

class GpuRankLimits : public test::OnGpu<> {};

}  // namespace

TEST_F(GpuRankLimits, ArePlannedAndKeptAndChangeNoBit) {
  const plan::CostTable costs = measure();
  const plan::Outcome free = plan_with(recipe_with(""), costs);
  ASSERT_TRUE(free.is_feasible);
  const Trained expected = train(recipe_with(""), free);
  ASSERT_EQ(expected.losses.size(), static_cast<size_t>(kSteps));
  for (size_t rank = 0; rank < expected.peaks.size(); ++rank) {
    EXPECT_NEAR(static_cast<double>(expected.peaks[rank]),
                static_cast<double>(free.peak_bytes[rank]),
                0.03 * static_cast<double>(free.peak_bytes[rank]))
        << "rank " << rank;
  }
  // With a limit the plan also leaves the allocator its pages.
  const int64_t most = free.most_peak_bytes();
  config::Recipe limited;
  plan::Outcome planned;
  for (int64_t tenths = 7; tenths > 0 && planned.recomputed_forwards == 0; --tenths) {
    limited = recipe_with(cat(most * tenths / 10 + allocator_page_bytes()));
    planned = plan_with(limited, costs);
    ASSERT_TRUE(planned.is_feasible) << tenths << " tenths";
  }
  ASSERT_GT(planned.recomputed_forwards, 0);
  const Trained found = train(limited, planned);
  EXPECT_EQ(found.losses, expected.losses);
  for (size_t rank = 0; rank < found.peaks.size(); ++rank) {
    EXPECT_LE(found.peaks[rank], limited.plan.memory_bytes()) << "rank " << rank;
    EXPECT_LE(found.peaks[rank], planned.peak_bytes[rank]) << "rank " << rank;
  }
}

TEST_F(GpuRankLimits, ThatAStepBreaksAreSaidWithRankAndInstruction) {
  const plan::CostTable costs = measure();
  const plan::Outcome free = plan_with(recipe_with(""), costs);
  const int64_t most = free.most_peak_bytes();
  try {
    train(recipe_with(cat(most * 7 / 10)), free);
    ADD_FAILURE() << "a step of " << most << " bytes ran in seven tenths of them";
  } catch (const Error& error) {
    const std::string line = error.what();
    EXPECT_EQ(error.exit_code(), ExitCode::Negative) << line;
    for (const char* part : {"rank ",
                             " stopped at instruction ",
                             "would go over the limit of ",
                             "the weights are as before this step"}) {
      EXPECT_NE(line.find(part), std::string::npos) << line;
    }
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  }
}

}  // namespace penstock::train
