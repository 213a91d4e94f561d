// The executor obeys its program: the same bits as the plain step whatever the plan, no more bytes
// than predicted, and a clear stop at a limit.
#include "penstock/run/executor.h"

#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "penstock/base/error.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/parameters.h"
#include "penstock/plan/lower.h"
#include "penstock/plan/one_rank.h"
#include "penstock/profile/profile.h"
#include "penstock/program/verify.h"

#include "run/small_models.h"
#include "support/error_text.h"
#include "support/holdings.h"

namespace penstock::run {

namespace {

struct Result {
  double loss = 0;
  at::Tensor gradients;
};

Result run_plain(const model::Chain& chain, at::ScalarType type, const StepInput& input) {
  model::Parameters parameters(chain, type, /*seed=*/3);
  const double loss = accumulate_gradients(chain, parameters, input);
  return {loss, parameters.flat_gradients()};
}

// Counts what it is asked for, and leaves the weights as they are.
class CountingStepper final : public Stepper {
 public:
  void take_squares(model::Parameters& parameters, const UpdateSettings&, bool) override {
    squares_ = Squares(parameters.all().size());
    ++taken;
  }
  Squares own_squares() override { return squares_; }
  void decide(const Squares*) override { ++decided; }
  void move(model::Parameters&) override { ++moved; }
  Updated updated() override { return {}; }

  int taken = 0, decided = 0, moved = 0;

 private:
  Squares squares_;
};

// One model with its costs, to be planned and run in several ways.
class Fixture {
 public:
  Fixture(model::Chain made, at::ScalarType type, StepInput batch)
      : chain(std::move(made)), input(std::move(batch)), parameters(chain, type, /*seed=*/3) {
    const int64_t each = rows_in(input.batch) / input.micro_batches;
    costs = profile::measure(
        chain, parameters, test::first_rows(input.batch, each), {.only_bytes = true});
    // Any seconds will do to plan with; these make recomputing the first layers the cheapest.
    double seconds = 1;
    for (plan::LayerCost& layer : costs.layers) {
      layer.forward_s = seconds;
      for (plan::SaveModeCost& mode : layer.modes) {
        mode.forward_s = seconds;
        mode.recompute_s = seconds / 2;
        mode.backward_s = 2 * seconds + static_cast<double>(&mode - layer.modes.data()) / 8;
      }
      seconds += 0.25;
    }
    holdings = test::holdings_alone(parameters, memory::usage().current_bytes);
  }

  plan::OneRankAnswer plan(plan::Recompute recompute, int64_t limit = 0) const {
    return plan::solve_one_rank(costs,
                                {.recompute = recompute,
                                 .limit_bytes = limit,
                                 .micro_batches = static_cast<int32_t>(input.micro_batches),
                                 .holdings = holdings});
  }

  // Its loss and gradients; `peak` is what was held at most.
  Result run(const plan::OneRankAnswer& planned, int64_t* peak = nullptr) {
    Executor executor(planned.program, chain, parameters);
    CountingStepper stepper;
    const memory::PeakMark mark;
    const double loss = executor.run(input, stepper);
    if (peak != nullptr) {
      *peak = mark.peak_bytes();
    }
    EXPECT_EQ(stepper.taken, 1);
    EXPECT_EQ(stepper.decided, 1);
    EXPECT_EQ(stepper.moved, 1);
    EXPECT_EQ(executor.outcomes().size(), 1U);
    EXPECT_EQ(executor.measured().ranks[0].peak_bytes, mark.peak_bytes());
    return {loss, parameters.flat_gradients()};
  }

  model::Chain chain;
  StepInput input;
  model::Parameters parameters;
  plan::CostTable costs;
  plan::Holdings holdings;
};

struct Case {
  const char* name;
  model::Chain (*make_chain)();
  at::ScalarType type;
  int64_t micro_batches;
};

model::Chain plain_gpt2() {
  return test::small_gpt2(0);
}
model::Chain dropping_gpt2() {
  return test::small_gpt2(0.2);
}
model::Chain llama() {
  return test::small_llama();
}

// LibTorch's fused attention takes scratch memory in each of its threads, so that with several the
// peak goes by how they happen to overlap, and one that was measured may be less than the next.
class ExecutorPlans : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { at::set_num_threads(1); }
  void TearDown() override { at::set_num_threads(threads_); }

 private:
  const int threads_ = at::get_num_threads();
};

}  // namespace

TEST_P(ExecutorPlans, GiveTheBitsOfThePlainStepAndStayWithinTheirPrediction) {
  const Case& row = GetParam();
  const StepInput batch = test::token_batch(6, row.micro_batches);
  const Result expected = run_plain(row.make_chain(), row.type, batch);
  Fixture fixture(row.make_chain(), row.type, batch);
  const auto expect_same = [&](const plan::OneRankAnswer& planned) {
    int64_t peak = 0;
    const Result result = fixture.run(planned, &peak);
    EXPECT_EQ(result.loss, expected.loss);
    EXPECT_TRUE(at::equal(result.gradients, expected.gradients));
    EXPECT_LE(peak, planned.peak_bytes);
    EXPECT_GT(peak, planned.peak_bytes * 98 / 100);
  };
  for (const plan::Recompute recompute :
       {plan::Recompute::None, plan::Recompute::All, plan::Recompute::Sqrt}) {
    SCOPED_TRACE(plan::recompute_name(recompute));
    expect_same(fixture.plan(recompute));
  }
  const plan::OneRankAnswer all = fixture.plan(plan::Recompute::None);
  const int64_t least = fixture.plan(plan::Recompute::Rotor, /*limit=*/1).least_bytes;
  for (int share = 0; share <= 10; ++share) {
    const int64_t limit = least + (all.peak_bytes - least) * share / 10;
    SCOPED_TRACE(cat("rotor within ", limit, " bytes"));
    const plan::OneRankAnswer planned = fixture.plan(plan::Recompute::Rotor, limit);
    ASSERT_TRUE(planned.is_feasible);
    memory::set_limit(memory::process_account(), limit);
    expect_same(planned);
    memory::set_limit(memory::process_account(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         ExecutorPlans,
                         testing::Values(Case{"plain", plain_gpt2, at::kFloat, 1},
                                         Case{"dropout", dropping_gpt2, at::kFloat, 1},
                                         Case{"three_micro_batches", dropping_gpt2, at::kFloat, 3},
                                         Case{"bfloat16", dropping_gpt2, at::kBFloat16, 2},
                                         Case{"llama", llama, at::kFloat, 3},
                                         Case{"llama_bfloat16", llama, at::kBFloat16, 2}),
                         [](const testing::TestParamInfo<Case>& row) { return row.param.name; });

TEST(Executor, RunsModulesThatNeedTheirOutput) {
  const StepInput batch{.batch = {{"inputs", test::random_tensor({8, 16}, 1)},
                                  {"targets", test::random_tensor({8, 16}, 2)}},
                        .micro_batches = 2};
  at::manual_seed(1);
  const Result expected = run_plain(test::module_chain(5), at::kFloat, batch);
  at::manual_seed(1);
  Fixture fixture(test::module_chain(5), at::kFloat, batch);
  const int64_t least = fixture.plan(plan::Recompute::Rotor, 1).least_bytes;
  for (const plan::OneRankAnswer& planned : {fixture.plan(plan::Recompute::None),
                                             fixture.plan(plan::Recompute::All),
                                             fixture.plan(plan::Recompute::Rotor, least)}) {
    int64_t peak = 0;
    const Result result = fixture.run(planned, &peak);
    EXPECT_EQ(result.loss, expected.loss);
    EXPECT_TRUE(at::equal(result.gradients, expected.gradients));
    EXPECT_LE(peak, planned.peak_bytes);
  }
}

TEST(Executor, StopsAtTheLimitAndNamesTheInstruction) {
  Fixture fixture(test::small_gpt2(0), at::kFloat, test::token_batch(4, 1));
  const plan::OneRankAnswer planned = fixture.plan(plan::Recompute::None);
  const at::Tensor before = fixture.parameters.flat_weights().clone();
  const int64_t limit = memory::usage().current_bytes + 100'000;
  memory::set_limit(memory::process_account(), limit);
  Executor executor(planned.program, fixture.chain, fixture.parameters);
  CountingStepper stepper;
  const std::string text = test::error_text<Error>([&] { executor.run(fixture.input, stepper); });
  memory::set_limit(memory::process_account(), 0);
  EXPECT_EQ(stepper.taken + stepper.moved, 0) << "no step after a refusal";
  EXPECT_NE(text.find("stopped at instruction 1 (forward of block 0 attention, micro-batch 0)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(" held would go over the limit of "), std::string::npos) << text;
  EXPECT_LE(memory::usage().current_bytes, limit) << "what the step held is free again";
  EXPECT_TRUE(at::equal(fixture.parameters.flat_weights(), before));
}

TEST(Executor, StopsWhereTheInputsBreakTheLimit) {
  Fixture fixture(test::small_gpt2(0), at::kFloat, test::token_batch(4, 1));
  const plan::OneRankAnswer planned = fixture.plan(plan::Recompute::None);
  memory::set_limit(memory::process_account(), memory::usage().current_bytes + 1);
  Executor executor(planned.program, fixture.chain, fixture.parameters);
  CountingStepper stepper;
  const std::string text =
      test::error_text<OverLimit>([&] { executor.run(fixture.input, stepper); });
  memory::set_limit(memory::process_account(), 0);
  EXPECT_TRUE(text.starts_with("the inputs of the step: ")) << text;
  EXPECT_EQ(stepper.taken + stepper.moved, 0);
}

TEST(Executor, TakesNoUnsoundProgram) {
  Fixture fixture(test::small_gpt2(0), at::kFloat, test::token_batch(4, 1));
  plan::OneRankAnswer planned = fixture.plan(plan::Recompute::None);
  planned.program.ranks[0].instructions.pop_back();
  EXPECT_THROW(Executor(planned.program, fixture.chain, fixture.parameters), InternalError);
}

TEST(Executor, TakesNoProgramOfAnotherChain) {
  Fixture fixture(test::small_gpt2(0), at::kFloat, test::token_batch(4, 1));
  const plan::OneRankAnswer planned = fixture.plan(plan::Recompute::None);
  const model::Chain other = test::small_gpt2(0, /*blocks=*/2);
  EXPECT_THROW(Executor(planned.program, other, fixture.parameters), InternalError);
}

TEST(Executor, RecordsEveryInstructionInOrder) {
  Fixture fixture(test::small_gpt2(0), at::kFloat, test::token_batch(4, 2));
  const plan::OneRankAnswer planned = fixture.plan(plan::Recompute::All);
  Executor executor(planned.program, fixture.chain, fixture.parameters);
  NoStepper none;
  executor.run(fixture.input, none);
  const program::RankTimeline& record = executor.measured().ranks[0];
  ASSERT_EQ(record.spans.size(), planned.program.ranks[0].instructions.size());
  double last = 0;
  for (size_t i = 0; i < record.spans.size(); ++i) {
    EXPECT_EQ(record.spans[i].instruction, static_cast<int32_t>(i));
    EXPECT_EQ(record.spans[i].start, last);
    EXPECT_GE(record.spans[i].end, last);
    last = record.spans[i].end;
  }
  EXPECT_EQ(executor.measured().seconds, last);
}

}  // namespace penstock::run
