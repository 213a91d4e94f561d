// Training in float16 with a dynamic loss scale: an overflow leaves out exactly its own step, and
// the losses are those of bfloat16.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "penstock/base/text.h"
#include "penstock/model/gpt2/gpu.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/loss_scale.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/one_rank.h"
#include "penstock/profile/profile.h"
#include "penstock/run/executor.h"

#include "gpu/gpu_model.h"
#include "support/holdings.h"

namespace penstock::run {

namespace {

using test::gpu;

constexpr int64_t kVocabulary = 61, kTokens = 32, kSamples = 8, kMicroBatches = 2;
// So large that the gradient of the logits is beyond float16, and so everything behind it.
constexpr double kOverflow = 1e38;

constexpr model::Gpt2Shape kShape{
    .layers = 2, .width = 64, .heads = 4, .context = kTokens, .vocabulary = kVocabulary};

// A text to learn: most tokens follow from the one before, the others are drawn. So the loss falls
// from 4.1 towards 1.5 and no further.
at::Tensor corpus(int64_t steps) {
  const int64_t length = steps * kSamples * (kTokens + 1);
  const at::Tensor drawn = test::random_tokens({length}, kVocabulary, 21);
  const at::Tensor dice = test::random_tokens({length}, 4, 22);
  at::Tensor text = drawn.clone();
  int64_t* token = text.mutable_data_ptr<int64_t>();
  for (int64_t i = 1; i < length; ++i) {
    if (dice.const_data_ptr<int64_t>()[i] != 0) {
      token[i] = (17 * token[i - 1] + 5) % kVocabulary;
    }
  }
  return text.view({steps, kSamples, kTokens + 1});
}

StepInput batch(const at::Tensor& text, int64_t step, double loss_scale) {
  return {.batch = {{"inputs", text[step].narrow(1, 0, kTokens).contiguous()},
                    {"targets", text[step].narrow(1, 1, kTokens).contiguous()}},
          .first_sample = step * kSamples,
          .micro_batches = kMicroBatches,
          .seed = 5,
          .step = step,
          .loss_scale = loss_scale,
          .updates = {{.rate = {.lr = 3e-3}, .clip = 1, .loss_scale = loss_scale}}};
}

// Everything that a step changes, on the CPU.
model::Tensors state_of(const model::Parameters& parameters, const optim::Optimizer& optimizer) {
  model::Tensors state{parameters.flat_weights().cpu(), parameters.flat_compute().cpu()};
  for (const optim::StateBuffer& buffer : optimizer.state()) {
    state.push_back(buffer.flat.cpu());
  }
  return state;
}

void expect_same(const model::Tensors& found, const model::Tensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i], expected[i])) << "tensor " << i;
  }
}

struct Done {
  double loss = 0;
  bool was_applied = false;
};

// A training run, as train::RankTrainer makes it.
class TestRun {
 public:
  TestRun(at::ScalarType type, bool uses_graph, const optim::LossScaleOptions& options = {})
      : device_(gpu(/*is_deterministic=*/true)),
        chain_(model::make_gpt2_for_gpu(kShape, device_.gpu)),
        parameters_(chain_, type, /*seed=*/3, device_),
        optimizer_(optim::make_optimizer(config::TrainOptions{}, parameters_)),
        scaler_(options),
        has_scale_(type == at::kHalf),
        planned_(plan()),
        executor_(planned_.program, chain_, parameters_) {
    if (uses_graph) {
      executor_.use_graph();
    }
  }

  Done step(const at::Tensor& text, int64_t step, bool is_planted) {
    const double scale = is_planted ? kOverflow : has_scale_ ? scaler_.scale() : 1;
    const StepInput input = batch(text, step, scale);
    Done done;
    done.loss = executor_.run(input, *optimizer_);
    done.was_applied = executor_.outcomes().back().was_applied;
    if (done.was_applied) {
      scaler_.step_was_clean();
    } else {
      scaler_.step_overflowed();
    }
    return done;
  }

  // The step without its update.
  double leave_out(const at::Tensor& text, int64_t step) {
    NoStepper stepper;
    const double loss = executor_.run(batch(text, step, scaler_.scale()), stepper);
    scaler_.step_overflowed();
    return loss;
  }

  model::Tensors state() const { return state_of(parameters_, *optimizer_); }
  int64_t steps_done() const { return optimizer_->steps_done(); }
  const optim::LossScaler& scaler() const { return scaler_; }

 private:
  plan::OneRankAnswer plan() const {
    const int64_t each = kSamples / kMicroBatches;
    const at::Tensor tokens = test::random_tokens({each, kTokens}, kVocabulary, 7);
    const model::Fields fields{{"inputs", tokens}, {"targets", tokens}};
    return plan::solve_one_rank(profile::sizes_of(chain_, parameters_, fields),
                                {.recompute = plan::Recompute::None,
                                 .micro_batches = kMicroBatches,
                                 .holdings = test::holdings_alone(parameters_)});
  }

  device::Device device_;
  model::Chain chain_;
  model::Parameters parameters_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::LossScaler scaler_;
  bool has_scale_;
  plan::OneRankAnswer planned_;
  Executor executor_;
};

struct Case {
  const char* name;
  std::set<int64_t> planted;  // steps, counted from 0
  int64_t hysteresis = 2;
  int64_t falls = 0;  // how often the scale is halved
  bool uses_graph = false;
};

class GpuLossScale : public test::OnGpu<testing::TestWithParam<Case>> {};
class GpuFloat16 : public test::OnGpu<> {};

}  // namespace

TEST_P(GpuLossScale, LeavesOutTheStepsThatOverflowAndNothingElse) {
  const Case& row = GetParam();
  constexpr int64_t kSteps = 12;
  const at::Tensor text = corpus(kSteps);
  const optim::LossScaleOptions options{.hysteresis = row.hysteresis};
  TestRun run(at::kHalf, row.uses_graph, options), spared(at::kHalf, row.uses_graph, options);
  int64_t overflows = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    SCOPED_TRACE(cat("step ", step));
    const bool is_planted = row.planted.contains(step);
    const model::Tensors before = run.state();
    const optim::LossScaleState scale_before = run.scaler().state();
    const int64_t done_before = run.steps_done();
    const Done done = run.step(text, step, is_planted);
    EXPECT_TRUE(std::isfinite(done.loss)) << "the loss itself is not scaled";
    ASSERT_EQ(done.was_applied, !is_planted);
    if (is_planted) {
      ++overflows;
      EXPECT_EQ(spared.leave_out(text, step), done.loss);
      expect_same(run.state(), before);
      EXPECT_EQ(run.steps_done(), done_before);
      EXPECT_EQ(run.scaler().state().clean_steps, 0);
      const bool has_fallen = overflows >= row.hysteresis;
      EXPECT_EQ(run.scaler().scale(), scale_before.scale * (has_fallen ? 0.5 : 1));
      EXPECT_EQ(run.scaler().state().hysteresis_left,
                std::max<int64_t>(0, row.hysteresis - overflows));
    } else {
      const Done expected = spared.step(text, step, false);
      EXPECT_EQ(done.loss, expected.loss);
      EXPECT_TRUE(expected.was_applied);
      EXPECT_FALSE(at::equal(run.state()[0], before[0])) << "no step was taken";
      EXPECT_EQ(run.steps_done(), done_before + 1);
      EXPECT_EQ(run.scaler().scale(), scale_before.scale);
    }
    expect_same(run.state(), spared.state());
    EXPECT_EQ(run.steps_done(), spared.steps_done());
    EXPECT_EQ(run.scaler().state(), spared.scaler().state());
  }
  EXPECT_EQ(run.steps_done(), kSteps - static_cast<int64_t>(row.planted.size()));
  EXPECT_EQ(run.scaler().scale(), options.initial * std::pow(0.5, static_cast<double>(row.falls)));
}

INSTANTIATE_TEST_SUITE_P(All,
                         GpuLossScale,
                         testing::Values(Case{"nothing_planted", {}},
                                         Case{"nothing_planted_graph", {}, 2, 0, true},
                                         Case{"one_forgiven", {6}, 2, 0},
                                         Case{"one_counts", {6}, 1, 1},
                                         Case{"one_counts_graph", {6}, 1, 1, true},
                                         Case{"two_of_which_one_counts", {6, 8}, 2, 1},
                                         Case{"two_of_which_one_counts_graph", {6, 8}, 2, 1, true},
                                         Case{"three_in_a_row", {6, 7, 8}, 1, 3},
                                         Case{"the_first_and_the_last", {0, 11}, 1, 2}),
                         [](const testing::TestParamInfo<Case>& row) { return row.param.name; });

// The scale doubles after its interval, and the numbers stay those of a run with another power of
// two: scaling by one rounds nothing unless it leaves float16's range.
TEST_F(GpuFloat16, GrowsItsScaleAfterCleanSteps) {
  constexpr int64_t kSteps = 9;
  const at::Tensor text = corpus(kSteps);
  TestRun run(at::kHalf, /*uses_graph=*/false, {.initial = 256, .interval = 3});
  for (int64_t step = 0; step < kSteps; ++step) {
    EXPECT_EQ(run.scaler().scale(), 256 * std::pow(2.0, static_cast<double>(step / 3)));
    EXPECT_TRUE(run.step(text, step, false).was_applied);
  }
  EXPECT_EQ(run.scaler().scale(), 2048);
}

TEST_F(GpuFloat16, TrainsAsBfloat16Does) {
  constexpr int64_t kSteps = 200, kLast = 20;
  const at::Tensor text = corpus(kSteps);
  const auto train = [&](at::ScalarType type, bool uses_graph) {
    TestRun run(type, uses_graph);
    std::vector<double> losses;
    for (int64_t step = 0; step < kSteps; ++step) {
      const Done done = run.step(text, step, false);
      EXPECT_TRUE(done.was_applied) << "step " << step;
      losses.push_back(done.loss);
    }
    EXPECT_EQ(run.steps_done(), kSteps);
    return losses;
  };
  const auto end_of = [](const std::vector<double>& losses) {
    return std::accumulate(losses.end() - kLast, losses.end(), 0.0) / kLast;
  };
  const std::vector<double> half = train(at::kHalf, false), brain = train(at::kBFloat16, false);
  EXPECT_NEAR(half[0], std::log(static_cast<double>(kVocabulary)), 0.3);
  EXPECT_LT(end_of(half), 0.6 * half[0]) << "nothing was learnt";
  EXPECT_NEAR(end_of(half), end_of(brain), 0.02 * end_of(brain));
  for (size_t i = kSteps - kLast; i < kSteps; ++i) {
    EXPECT_NEAR(half[i], brain[i], 0.02 * brain[i]) << "step " << i;
  }
  EXPECT_EQ(train(at::kHalf, true), half) << "with a graph";
}

}  // namespace penstock::run
