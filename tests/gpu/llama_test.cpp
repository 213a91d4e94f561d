// Llama on the GPU beside Llama on the CPU: the loss and every gradient of a step, whatever the
// precision; a recorded step; and what is refused.
#include <algorithm>
#include <iostream>
#include <vector>

#include "penstock/memory/account.h"
#include "penstock/model/chain.h"
#include "penstock/model/family.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/one_rank.h"
#include "penstock/profile/profile.h"
#include "penstock/run/executor.h"
#include "penstock/run/plain_step.h"

#include "gpu/gpu_model.h"
#include "support/error_text.h"
#include "support/holdings.h"

namespace penstock::run {

namespace {

using test::gpu;

// No multiple of 64: zeros lie behind the head's table.
constexpr int64_t kVocabulary = 257, kTokens = 48;

config::ModelOptions options_of(bool is_tied, int64_t kv_heads = 2) {
  return {.family = "llama",
          .layers = 3,
          .width = 128,
          .heads = 4,
          .context = kTokens + 16,  // sequences are shorter
          .vocabulary = kVocabulary,
          .tied = is_tied,
          .kv_heads = kv_heads,
          .hidden = 344,
          .rope_theta = 500,
          .rope_factor = 8,
          .rope_context = 32};
}

StepInput batch() {
  at::Tensor targets = test::random_tokens({4, kTokens}, kVocabulary, 8);
  targets[1].narrow(0, 3, 5).fill_(-1);
  return {.batch = {{"inputs", test::random_tokens({4, kTokens}, kVocabulary, 7)},
                    {"targets", targets}},
          .micro_batches = 2};
}

// The largest difference, in units of the largest value.
double largest_error(const at::Tensor& on_gpu, const at::Tensor& expected) {
  const at::Tensor wide = expected.to(at::kDouble);
  return ((on_gpu.cpu().to(at::kDouble) - wide).abs().max() / wide.abs().max()).item<double>();
}

// A step's loss and its gradients.
struct Step {
  Step(const config::ModelOptions& options, const device::Device& device, at::ScalarType type)
      : chain(model::make_chain(options, device)), parameters(chain, type, /*seed=*/3, device) {}

  double run(const StepInput& input) {
    test::spoil_gradients(parameters);
    parameters.zero_gradients();
    return accumulate_gradients(chain, parameters, input);
  }

  model::Chain chain;
  model::Parameters parameters;
};

class GpuLlama : public test::OnGpu<> {};

}  // namespace

TEST_F(GpuLlama, InFloat32LossAndGradientsAreTheCpusToOnePartIn100000) {
  constexpr double kTolerance = 1e-5;  // TF32 is off
  double worst = 0;
  for (const bool is_tied : {false, true}) {
    for (const int64_t kv_heads : {1, 2, 4}) {
      SCOPED_TRACE(cat(is_tied ? "tied, " : "own head, ", kv_heads, " heads of keys"));
      Step there(options_of(is_tied, kv_heads), {}, at::kFloat);
      const double expected = there.run(batch());
      for (const bool is_deterministic : {false, true}) {
        Step here(options_of(is_tied, kv_heads), gpu(is_deterministic), at::kFloat);
        EXPECT_NEAR(here.run(batch()), expected, kTolerance * expected);
        for (const model::Parameter& parameter : here.parameters.all()) {
          const double error = largest_error(parameter.gradient,
                                             there.parameters.find(parameter.spec.name)->gradient);
          EXPECT_LT(error, kTolerance) << parameter.spec.name;
          worst = std::max(worst, error);
        }
      }
    }
  }
  std::cout << "[  largest ] difference of a gradient: " << worst << std::endl;
}

TEST_F(GpuLlama, In16BitsLossAndGradientsAreTheCpusToTheirRounding) {
  for (const bool is_tied : {false, true}) {
    Step there(options_of(is_tied), {}, at::kFloat);
    const double expected = there.run(batch());
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      double worst = 0;
      for (const bool is_deterministic : {false, true}) {
        SCOPED_TRACE(cat(test::type_name(type), is_deterministic ? " deterministic" : ""));
        Step here(options_of(is_tied), gpu(is_deterministic), type);
        const double tolerance = test::chain_tolerance(type);
        EXPECT_NEAR(here.run(batch()), expected, tolerance * expected);
        for (const model::Parameter& parameter : here.parameters.all()) {
          const at::Tensor same = there.parameters.find(parameter.spec.name)->gradient;
          const double error = test::error_of(parameter.gradient, same);
          // The first layer's has passed through the roundings of all others.
          EXPECT_LT(error, 4 * tolerance) << parameter.spec.name;
          worst = std::max(worst, error);
        }
      }
      std::cout << "[  largest ] relative error of a gradient, " << test::type_name(type) << ": "
                << worst << std::endl;
    }
  }
}

TEST_F(GpuLlama, PredictsWhatTheCpuPredicts) {
  const Step there(options_of(false), {}, at::kFloat);
  const Step here(options_of(false), gpu(/*is_deterministic=*/true), at::kFloat);
  const at::Tensor tokens = batch().batch.at("inputs");
  const auto predict = [&](const Step& step, const at::Tensor& input) {
    model::Tensors x{input};
    const model::Pass pass{.is_training = false};
    for (int64_t i = 0; i < step.chain.size(); ++i) {
      x = step.chain.layer(i).forward(step.parameters.weights_of(i), x, pass, nullptr);
    }
    return step.chain.loss().predict(step.parameters.weights_of(step.chain.size()), x);
  };
  const at::Tensor expected = predict(there, tokens);
  const at::Tensor found = predict(here, tokens.to(here.parameters.device().where));
  EXPECT_EQ(found.sizes(), expected.sizes());
  EXPECT_EQ(found.scalar_type(), at::kFloat);
  EXPECT_LT(largest_error(found, expected), 1e-5);
}

// Ten steps of AdamW on one batch; the step recorded as a graph, or not.
TEST_F(GpuLlama, ARecordedStepHasTheBitsOfThePlainOne) {
  const device::Device& device = gpu(/*is_deterministic=*/true);
  const memory::AccountScope scope(device.account());
  StepInput input = batch();
  input.updates.front() = {.rate = {.lr = 1e-3}, .clip = 1};
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    const auto train = [&](bool uses_graph) {
      Step step(options_of(false), device, type);
      const auto optimizer = optim::make_optimizer(config::TrainOptions{}, step.parameters);
      const plan::CostTable sizes =
          profile::sizes_of(step.chain, step.parameters, rows_of(input.batch, 0, 2));
      const plan::OneRankAnswer planned =
          plan::solve_one_rank(sizes,
                               {.recompute = plan::Recompute::None,
                                .micro_batches = 2,
                                .holdings = test::holdings_alone(step.parameters)});
      Executor executor(planned.program, step.chain, step.parameters);
      if (uses_graph) {
        executor.use_graph();
      }
      std::vector<double> losses;
      for (int i = 0; i < 10; ++i) {
        losses.push_back(executor.run(input, *optimizer));
      }
      EXPECT_EQ(executor.has_graph(), uses_graph);
      return losses;
    };
    const std::vector<double> plain = train(/*uses_graph=*/false);
    EXPECT_LT(plain.back(), plain.front());
    EXPECT_EQ(train(/*uses_graph=*/true), plain);
  }
}

// The kernel takes the frequencies of a head by value.
TEST_F(GpuLlama, RefusesHeadsThatAreTooWide) {
  config::ModelOptions options = options_of(false);
  options.width = 2 * 514;
  options.heads = options.kv_heads = 2;
  const std::string text = test::error_text<ConfigError>(
      [&] { model::make_chain(options, gpu(/*is_deterministic=*/true)); });
  for (const char* part : {"514 features", "512", "model.heads"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

}  // namespace penstock::run
