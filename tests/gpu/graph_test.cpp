// A step that was recorded as a CUDA graph against the same step without one: bit for bit, whatever
// changes between steps, and with nothing left behind.
#include <limits>
#include <memory>
#include <vector>

#include "penstock/base/text.h"
#include "penstock/memory/account.h"
#include "penstock/model/gpt2/gpu.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/one_rank.h"
#include "penstock/profile/profile.h"
#include "penstock/run/executor.h"

#include "gpu/gpu_model.h"
#include "support/holdings.h"

namespace penstock::run {

namespace {

using test::gpu;

constexpr int64_t kVocabulary = 257, kTokens = 32, kSamples = 4;

model::Gpt2Shape shape_with(double dropout) {
  return {.layers = 2,
          .width = 64,
          .heads = 4,
          .context = kTokens,
          .vocabulary = kVocabulary,
          .dropout = dropout};
}

// Another one for every step. `ignored` targets of the second sample do not count.
StepInput batch(int64_t step, int64_t micro_batches, double loss_scale = 1, int64_t ignored = 5) {
  const uint64_t seed = 100 + 2 * static_cast<uint64_t>(step);
  at::Tensor targets = test::random_tokens({kSamples, kTokens}, kVocabulary, seed + 1);
  targets[1].narrow(0, 3, ignored).fill_(-1);
  return {.batch = {{"inputs", test::random_tokens({kSamples, kTokens}, kVocabulary, seed)},
                    {"targets", targets}},
          .first_sample = step * kSamples,
          .micro_batches = micro_batches,
          .seed = 5,
          .step = step,
          .loss_scale = loss_scale,
          .updates = {{.rate = {.lr = 1e-3}, .clip = 1, .loss_scale = loss_scale}}};
}

// Weights, optimizer and executor of one run.
class TestRun {
 public:
  TestRun(const program::Program& program,
          const model::Chain& chain,
          const device::Device& device,
          at::ScalarType type)
      : chain_(chain),
        parameters_(chain, type, /*seed=*/3, device),
        optimizer_(optim::make_optimizer(config::TrainOptions{}, parameters_)),
        executor_(std::make_unique<Executor>(program, chain, parameters_)) {}

  double step(const StepInput& input) {
    const double loss = executor_->run(input, *optimizer_);
    EXPECT_EQ(executor_->outcomes().size(), 1U);
    EXPECT_TRUE(executor_->outcomes().back().was_applied);
    return loss;
  }

  double evaluate(const StepInput& input) const {
    return run::evaluate(chain_, parameters_, input.batch).sum;
  }

  model::Parameters& parameters() { return parameters_; }
  Executor& executor() { return *executor_; }
  void end_executor() { executor_.reset(); }

 private:
  const model::Chain& chain_;
  model::Parameters parameters_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<Executor> executor_;
};

// Whatever is free now holds NaN afterwards: a graph that read freed memory would show it.
void poison_free_memory(const device::Device& device) {
  const at::TensorOptions options = at::TensorOptions(device.where).dtype(at::kFloat);
  std::vector<at::Tensor> taken;
  for (const int64_t elements : {128, 256, 1024, 16384, 1 << 18, 1 << 22}) {
    for (int i = 0; i < 16; ++i) {
      taken.push_back(at::full({elements}, std::numeric_limits<double>::quiet_NaN(), options));
    }
  }
  device.gpu->wait();
}

struct Case {
  const char* name;
  at::ScalarType type;
  int64_t micro_batches;
  plan::Recompute recompute;
};

// One program, run with a graph and without.
class Pair {
 public:
  explicit Pair(const Case& row)
      : device(gpu(/*is_deterministic=*/true)),
        scope(device.account()),
        micro_batches(row.micro_batches),
        chain(model::make_gpt2_for_gpu(shape_with(0), device.gpu)),
        program(make_program(row)),
        plain(program, chain, device, row.type),
        recorded(program, chain, device, row.type) {
    recorded.executor().use_graph();
  }

  void expect_same_step(int64_t step, double loss_scale = 1, int64_t ignored = 5) {
    SCOPED_TRACE(cat("step ", step));
    const StepInput input = batch(step, micro_batches, loss_scale, ignored);
    const double expected = plain.step(input);
    poison_free_memory(device);
    EXPECT_EQ(recorded.step(input), expected);
    const auto expect_equal = [](const at::Tensor& found, const at::Tensor& wanted) {
      EXPECT_TRUE(at::equal(found.cpu(), wanted.cpu()));
    };
    expect_equal(recorded.parameters().flat_gradients(), plain.parameters().flat_gradients());
    expect_equal(recorded.parameters().flat_weights(), plain.parameters().flat_weights());
    expect_equal(recorded.parameters().flat_compute(), plain.parameters().flat_compute());
    EXPECT_FALSE(plain.executor().has_graph());
  }

  device::Device device;
  memory::AccountScope scope;
  int64_t micro_batches;
  model::Chain chain;
  program::Program program;
  TestRun plain, recorded;

 private:
  program::Program make_program(const Case& row) const {
    const StepInput input = batch(0, micro_batches);
    const int64_t each = kSamples / micro_batches;
    model::Parameters parameters(chain, row.type, /*seed=*/3, device);
    const plan::CostTable costs =
        profile::sizes_of(chain, parameters, rows_of(input.batch, 0, each));
    return plan::solve_one_rank(costs,
                                {.recompute = row.recompute,
                                 .micro_batches = static_cast<int32_t>(micro_batches),
                                 .holdings = test::holdings_alone(parameters)})
        .program;
  }
};

class GpuGraphs : public test::OnGpu<testing::TestWithParam<Case>> {};
class GpuGraph : public test::OnGpu<> {};

constexpr Case kPlain{"plain", at::kBFloat16, 2, plan::Recompute::None};

}  // namespace

TEST_P(GpuGraphs, GiveTheBitsOfTheStepWithoutOne) {
  Pair pair(GetParam());
  for (int64_t step = 0; step < 6; ++step) {
    pair.expect_same_step(step);
    EXPECT_EQ(pair.recorded.executor().has_graph(), step >= 1) << "recorded at the second step";
  }
}

TEST_P(GpuGraphs, AreRecordedAgainAfterTheirRelease) {
  Pair pair(GetParam());
  for (int64_t step = 0; step < 3; ++step) {
    pair.expect_same_step(step);
  }
  for (int64_t step = 3; step < 9; step += 2) {
    pair.recorded.executor().release_graph();
    EXPECT_FALSE(pair.recorded.executor().has_graph());
    pair.recorded.executor().release_graph();  // nothing is left to release
    // What the memory was given up for.
    EXPECT_EQ(pair.recorded.evaluate(batch(step, 1)), pair.plain.evaluate(batch(step, 1)));
    pair.expect_same_step(step);
    EXPECT_TRUE(pair.recorded.executor().has_graph());
    pair.expect_same_step(step + 1);
  }
}

// The scale is a constant of the recorded kernels.
TEST_P(GpuGraphs, AreRecordedAgainForAnotherLossScale) {
  Pair pair(GetParam());
  int64_t step = 0;
  for (const double loss_scale : {1.0, 1.0, 8.0, 8.0, 8.0, 2.0, 1.0, 1.0}) {
    SCOPED_TRACE(cat("loss scale ", loss_scale));
    pair.expect_same_step(step++, loss_scale);
  }
}

// So is the number of targets that count, by which the loss is divided.
TEST_P(GpuGraphs, AreRecordedAgainForAnotherNumberOfTargets) {
  Pair pair(GetParam());
  int64_t step = 0;
  for (const int64_t ignored : {5, 5, 5, 7, 7, 0, 5}) {
    SCOPED_TRACE(cat(ignored, " targets ignored"));
    pair.expect_same_step(step++, 1, ignored);
  }
}

TEST_P(GpuGraphs, AllowOtherWorkBetweenTheirSteps) {
  Pair pair(GetParam());
  for (int64_t step = 0; step < 6; ++step) {
    pair.expect_same_step(step);
    EXPECT_EQ(pair.recorded.evaluate(batch(step, 1)), pair.plain.evaluate(batch(step, 1)));
  }
  EXPECT_TRUE(pair.recorded.executor().has_graph());
}

INSTANTIATE_TEST_SUITE_P(
    All,
    GpuGraphs,
    testing::Values(
        Case{"bfloat16", at::kBFloat16, 1, plan::Recompute::None},
        Case{"bfloat16_two_micro_batches", at::kBFloat16, 2, plan::Recompute::None},
        Case{"bfloat16_recompute", at::kBFloat16, 1, plan::Recompute::All},
        Case{"bfloat16_recompute_two_micro_batches", at::kBFloat16, 2, plan::Recompute::All},
        Case{"float32_two_micro_batches", at::kFloat, 2, plan::Recompute::None},
        Case{"float16", at::kHalf, 1, plan::Recompute::None}),
    [](const testing::TestParamInfo<Case>& row) { return row.param.name; });

TEST_F(GpuGraph, TimesEveryInstructionOfAReplay) {
  Pair pair(kPlain);
  const size_t instructions = pair.program.ranks[0].instructions.size();
  int64_t recorded_peak = 0, recorded_at = 0;
  for (int64_t step = 0; step < 6; ++step) {
    SCOPED_TRACE(cat("step ", step));
    pair.recorded.step(batch(step, pair.micro_batches));
    const program::Timeline& measured = pair.recorded.executor().measured();
    ASSERT_EQ(measured.ranks.size(), 1U);
    const program::RankTimeline& rank = measured.ranks[0];
    ASSERT_EQ(rank.spans.size(), instructions);
    double now = 0, busy = 0;
    for (size_t i = 0; i < instructions; ++i) {
      const program::Span& span = rank.spans[i];
      EXPECT_EQ(span.instruction, static_cast<int32_t>(i));
      EXPECT_EQ(span.start, now);
      EXPECT_GE(span.end, span.start);
      now = span.end;
    }
    EXPECT_GT(now, 0);
    EXPECT_LT(now, 10) << "of another step's marks";
    EXPECT_EQ(measured.seconds, now);
    for (const auto& [resource, seconds] : rank.busy_seconds) {
      busy += seconds;
    }
    EXPECT_NEAR(busy, now, 1e-9);
    // One point before the first instruction, then two for each.
    ASSERT_EQ(rank.memory.size(), 2 * instructions + 1);
    for (size_t i = 1; i < rank.memory.size(); ++i) {
      EXPECT_GE(rank.memory[i].seconds, rank.memory[i - 1].seconds);
      EXPECT_GT(rank.memory[i].bytes, 0);
      EXPECT_LE(rank.memory[i].bytes, rank.peak_bytes);
    }
    if (step == 1) {
      recorded_peak = rank.peak_bytes;
      recorded_at = rank.peak_instruction;
    } else if (step > 1) {
      EXPECT_EQ(rank.peak_bytes, recorded_peak);
      EXPECT_EQ(rank.peak_instruction, recorded_at);
    }
  }
}

// To the account a recorded step holds what the same step holds without a graph, but for the
// inputs, which stay, and a few bytes of LibTorch's.
TEST_F(GpuGraph, HoldsNoMoreThanTheStepWithoutOne) {
  Pair pair(kPlain);
  {
    Executor first(pair.program, pair.chain, pair.plain.parameters());
    NoStepper stepper;
    first.run(batch(0, pair.micro_batches), stepper);  // what is made once is made
  }
  const int64_t held = pair.device.account().usage().current_bytes;
  std::vector<int64_t> above;
  for (TestRun* run : {&pair.plain, &pair.recorded}) {
    const int64_t before = pair.device.account().usage().current_bytes;
    for (int64_t step = 0; step < 3; ++step) {
      run->step(batch(step, pair.micro_batches));
    }
    above.push_back(run->executor().measured().ranks[0].peak_bytes - before);
  }
  const int64_t inputs = test::occupied(kSamples * kTokens * 8) * 2 * pair.micro_batches;
  EXPECT_GT(above[0], 0);
  EXPECT_LE(above[1], above[0] + inputs + 64 * 1024);
  pair.plain.end_executor();
  pair.recorded.end_executor();
  EXPECT_EQ(pair.device.account().usage().current_bytes, held);
}

TEST_F(GpuGraph, LeavesNothingBehind) {
  Pair pair(kPlain);
  memory::Account& account = pair.device.account();
  pair.plain.step(batch(0, pair.micro_batches));  // what is made once is made
  const int64_t held = account.usage().current_bytes;
  for (int times = 0; times < 3; ++times) {
    SCOPED_TRACE(times);
    Executor executor(pair.program, pair.chain, pair.plain.parameters());
    NoStepper stepper;
    executor.use_graph();
    EXPECT_EQ(account.usage().current_bytes, held) << "nothing is held before the first step";
    for (int64_t step = 0; step < 3; ++step) {
      executor.run(batch(step, pair.micro_batches), stepper);
    }
    EXPECT_TRUE(executor.has_graph());
  }
  EXPECT_EQ(account.usage().current_bytes, held);
}

// A graph has memory of its own. Where that is refused, the same step is done without one, and so
// are those that follow.
TEST_F(GpuGraph, IsDoneWithoutWhereItFindsNoRoom) {
  Pair pair(kPlain);
  memory::Account& account = pair.device.account();
  pair.expect_same_step(0);
  // Holes that a plain step fits in, in pages that cannot be given back for a graph.
  std::vector<at::Tensor> pages, holes;
  for (int i = 0; i < 64; ++i) {
    (i % 2 == 0 ? pages : holes)
        .push_back(at::empty({1 << 20}, at::TensorOptions(pair.device.where).dtype(at::kByte)));
  }
  holes.clear();
  const int64_t held = account.usage().current_bytes;
  {
    const memory::LimitScope limit(account, held);  // less than is reserved: no new page
    for (int64_t step = 1; step < 4; ++step) {
      SCOPED_TRACE(cat("step ", step));
      const StepInput input = batch(step, pair.micro_batches);
      EXPECT_EQ(pair.recorded.step(input), pair.plain.step(input));
      EXPECT_FALSE(pair.recorded.executor().has_graph());
      EXPECT_TRUE(at::equal(pair.recorded.parameters().flat_weights(),
                            pair.plain.parameters().flat_weights()));
      EXPECT_EQ(pair.recorded.executor().measured().ranks[0].spans.size(),
                pair.program.ranks[0].instructions.size());
    }
  }
  for (int64_t step = 4; step < 7; ++step) {
    pair.expect_same_step(step);
  }
  EXPECT_EQ(account.limit_bytes(), 0);
}

// Where not even the plain step fits, the step is refused, and the device is fit for others.
TEST_F(GpuGraph, IsRefusedCleanlyWhereNoStepFits) {
  Pair pair(kPlain);
  memory::Account& account = pair.device.account();
  pair.expect_same_step(0);
  const at::Tensor weights = pair.recorded.parameters().flat_weights().clone();
  const int64_t held = account.usage().current_bytes;
  {
    // What is mapped and free is taken, so that nothing is left.
    const memory::LimitScope limit(account, held);
    std::vector<at::Tensor> taken;
    const at::TensorOptions options = at::TensorOptions(pair.device.where).dtype(at::kByte);
    for (int64_t bytes = int64_t{16} << 20; bytes >= 512; bytes /= 2) {
      try {
        while (true) {
          taken.push_back(at::empty({bytes}, options));
        }
      } catch (const c10::OutOfMemoryError&) {
      }
    }
    test::CountingStepper stepper;
    EXPECT_THROW(memory::refuse_over_limit(
                     [&] { pair.recorded.executor().run(batch(1, pair.micro_batches), stepper); }),
                 OutOfMemory);
    EXPECT_EQ(stepper.squares, 0);
    EXPECT_EQ(stepper.moves, 0);
    EXPECT_FALSE(pair.recorded.executor().has_graph());
  }
  EXPECT_LE(account.usage().current_bytes, held) << "a refused step holds on to something";
  EXPECT_TRUE(at::equal(pair.recorded.parameters().flat_weights(), weights));
  for (int64_t step = 1; step < 5; ++step) {
    pair.expect_same_step(step);
  }
}

TEST_F(GpuGraph, IsNotForStepsWithDropout) {
  const device::Device& device = gpu(/*is_deterministic=*/true);
  const model::Chain chain = model::make_gpt2_for_gpu(shape_with(0.1), device.gpu);
  model::Parameters parameters(chain, at::kBFloat16, /*seed=*/3, device);
  const StepInput input = batch(0, 1);
  const plan::OneRankAnswer planned = plan::solve_one_rank(
      profile::sizes_of(chain, parameters, input.batch),
      {.recompute = plan::Recompute::None, .holdings = test::holdings_alone(parameters)});
  Executor executor(planned.program, chain, parameters);
  EXPECT_THROW(executor.use_graph(), InternalError);
  EXPECT_FALSE(executor.has_graph());
}

}  // namespace penstock::run
