// An evaluation has the bits of a plain forward, by one rank and by any pipeline, with batches of any
// size; and leaves everything as it was. Replicas: train/data_parallel_test.cpp.
#include "penstock/plan/evaluation.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/comm/local.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/parameters.h"
#include "penstock/plan/lower.h"
#include "penstock/plan/pipeline.h"
#include "penstock/profile/profile.h"
#include "penstock/program/verify.h"
#include "penstock/run/executor.h"
#include "penstock/run/stages.h"

#include "run/small_models.h"
#include "support/holdings.h"

namespace penstock::run {

namespace {

constexpr int64_t kSamples = 3;

plan::CostTable sizes(const model::Chain& chain) {
  const model::Parameters parameters(chain, at::kFloat, /*seed=*/3);
  const StepInput input = test::token_batch(kSamples, 1);
  return profile::sizes_of(chain, parameters, input.batch);
}

// With a target that does not count.
StepInput batch_of(int64_t samples) {
  StepInput batch = test::token_batch(samples, 1);
  batch.batch.at("targets")[0][0] = -1;
  return batch;
}

// Full, short, of one sample, full again.
constexpr int64_t kBatches[] = {kSamples, 2, 1, kSamples};

std::vector<LossSum> plain_losses(const model::Chain& chain) {
  const model::Parameters parameters(chain, at::kFloat, /*seed=*/3);
  std::vector<LossSum> losses;
  for (const int64_t samples : kBatches) {
    const StepInput batch = batch_of(samples);
    losses.push_back(evaluate(chain, parameters, batch.batch));
  }
  return losses;
}

void expect_equal(const std::vector<LossSum>& found, const std::vector<LossSum>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].sum, expected[i].sum) << i;
    EXPECT_EQ(found[i].count, expected[i].count) << i;
  }
}

struct Prepared {
  Prepared(const model::Chain& chain, schedule::Kind kind, int32_t ranks) : costs(sizes(chain)) {
    plan::Pipeline pipeline{.schedule = schedule::make_schedule(kind, ranks, 2 * ranks)};
    const auto layers = static_cast<int32_t>(costs.layers.size());
    for (int32_t stage = 0; stage <= pipeline.schedule.stages(); ++stage) {
      pipeline.cuts.push_back(layers * stage / pipeline.schedule.stages());
    }
    pipeline.operations =
        plan::keep_everything(costs, pipeline.cuts, pipeline.schedule.micro_batches);
    parts = parts_of({pipeline.schedule.rank_of, pipeline.cuts}, ranks);
    step = plan::lower_pipeline(
        costs, pipeline, test::pipeline_holdings(chain, parts, at::kFloat), /*limit_bytes=*/0);
    evaluation = plan::write_evaluation(step, costs);
  }

  plan::CostTable costs;
  std::vector<model::Part> parts;
  program::Program step, evaluation;
};

TEST(EvaluationRun, HasTheBitsOfAPlainForward) {
  const model::Chain chain = test::small_gpt2(/*dropout=*/0.1);
  const Prepared prepared(chain, schedule::Kind::OneFOneB, 1);
  model::Parameters parameters(chain, at::kFloat, /*seed=*/3);
  Executor executor(prepared.evaluation, chain, parameters);
  std::vector<LossSum> losses;
  for (const int64_t samples : kBatches) {
    const StepInput batch = batch_of(samples);
    losses.push_back(executor.evaluate(batch.batch, rows_in(batch.batch)));
  }
  expect_equal(losses, plain_losses(chain));
}

TEST(EvaluationRun, AddsUpItsMicroBatches) {
  const model::Chain chain = test::small_gpt2(/*dropout=*/0.1);
  const Prepared prepared(chain, schedule::Kind::OneFOneB, 1);
  const program::Program program = plan::write_evaluation(prepared.step, prepared.costs, 2);
  model::Parameters parameters(chain, at::kFloat, /*seed=*/3);
  Executor executor(program, chain, parameters);
  const StepInput batch = batch_of(2 * kSamples);
  const LossSum both = executor.evaluate(batch.batch, rows_in(batch.batch));
  const auto half = [&](int64_t first) {
    return evaluate(chain, parameters, rows_of(batch.batch, first, kSamples));
  };
  EXPECT_EQ(both.sum, half(0).sum + half(kSamples).sum);
  EXPECT_EQ(both.count, 2 * kSamples * 20 - 1);
}

TEST(EvaluationRun, LeavesWeightsAndGradientsAlone) {
  const model::Chain chain = test::small_gpt2(/*dropout=*/0.1);
  const Prepared prepared(chain, schedule::Kind::OneFOneB, 1);
  model::Parameters parameters(chain, at::kFloat, /*seed=*/3);
  for (const at::Tensor& buffer : parameters.gradient_buffers()) {
    at::Tensor(buffer).fill_(0.25);
  }
  const model::Parameters before(chain, at::kFloat, /*seed=*/3);
  Executor executor(prepared.evaluation, chain, parameters);
  const StepInput batch = batch_of(kSamples);
  executor.evaluate(batch.batch, rows_in(batch.batch));
  for (const at::Tensor& buffer : parameters.gradient_buffers()) {
    EXPECT_TRUE(at::equal(buffer, at::full_like(buffer, 0.25)));
  }
  for (size_t i = 0; i < parameters.all().size(); ++i) {
    EXPECT_TRUE(at::equal(parameters.all()[i].weight, before.all()[i].weight));
  }
}

TEST(EvaluationRun, CountsNothingWhereNoTargetCounts) {
  const model::Chain chain = test::small_gpt2(/*dropout=*/0);
  const Prepared prepared(chain, schedule::Kind::OneFOneB, 1);
  model::Parameters parameters(chain, at::kFloat, /*seed=*/3);
  Executor executor(prepared.evaluation, chain, parameters);
  StepInput batch = batch_of(1);
  batch.batch.at("targets").fill_(-1);
  const LossSum none = executor.evaluate(batch.batch, rows_in(batch.batch));
  EXPECT_EQ(none.sum, 0);
  EXPECT_EQ(none.count, 0);
}

TEST(EvaluationRun, IsNoStepAndAStepIsNone) {
  const model::Chain chain = test::small_gpt2(/*dropout=*/0);
  const Prepared prepared(chain, schedule::Kind::OneFOneB, 1);
  model::Parameters parameters(chain, at::kFloat, /*seed=*/3);
  Executor evaluation(prepared.evaluation, chain, parameters);
  Executor step(prepared.step, chain, parameters);
  NoStepper stepper;
  EXPECT_THROW(evaluation.run(batch_of(2), stepper), InternalError);
  EXPECT_THROW(step.evaluate(batch_of(2).batch, 2), InternalError);
}

struct Case {
  schedule::Kind kind;
  int32_t ranks;
};
class Evaluations : public testing::TestWithParam<Case> {};

TEST_P(Evaluations, OfPipelinesHaveTheSameBits) {
  const auto [kind, ranks] = GetParam();
  const model::Chain chain = test::small_gpt2(/*dropout=*/0.1, /*blocks=*/5);
  const Prepared prepared(chain, kind, ranks);
  const program::Verdict verdict = program::verify(prepared.evaluation);
  ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
  std::vector<LossSum> losses;
  comm::run_local(ranks, [&](comm::Group& group) {
    memory::Account& account = memory::make_account();
    const memory::AccountScope scope(account);
    const auto rank = static_cast<size_t>(group.rank());
    model::Parameters parameters(
        chain, prepared.parts[rank], at::kFloat, /*seed=*/3, device::open_cpu());
    const Executor step(prepared.step, chain, parameters, group);
    Executor executor(prepared.evaluation, step);
    for (const int64_t samples : kBatches) {
      const StepInput batch = batch_of(samples);
      const LossSum loss = executor.evaluate(batch.batch, rows_in(batch.batch));
      if (prepared.parts[rank].has_loss) {
        losses.push_back(loss);
      } else {
        EXPECT_EQ(loss.sum, 0);
        EXPECT_EQ(loss.count, 0);
      }
      const int64_t planned = prepared.evaluation.ranks[rank].sent_bytes();
      EXPECT_EQ(executor.sent_bytes(), planned * samples / kSamples);
    }
  });
  expect_equal(losses, plain_losses(chain));
}

INSTANTIATE_TEST_SUITE_P(All,
                         Evaluations,
                         testing::Values(Case{schedule::Kind::GPipe, 2},
                                         Case{schedule::Kind::OneFOneB, 3},
                                         Case{schedule::Kind::Interleaved, 2},
                                         Case{schedule::Kind::ZeroBubbleV, 2},
                                         Case{schedule::Kind::ZeroBubbleH1, 4}));

}  // namespace

}  // namespace penstock::run
