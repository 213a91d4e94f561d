// GPT-2 with a head of its own on the GPU: the losses and gradients of the CPU, also from a
// recorded step and over a buffer that was in use.
#include <cmath>
#include <vector>

#include "penstock/memory/account.h"
#include "penstock/model/gpt2/gpu.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/one_rank.h"
#include "penstock/profile/profile.h"
#include "penstock/run/executor.h"
#include "penstock/run/plain_step.h"

#include "gpu/gpu_model.h"
#include "support/holdings.h"

namespace penstock::run {

namespace {

using test::gpu;

// No multiple of 64: zeros lie behind the head's table.
constexpr int64_t kVocabulary = 257, kTokens = 32;

model::Chain untied_chain(const device::Device& device) {
  const model::Gpt2Shape shape{.layers = 2,
                               .width = 64,
                               .heads = 4,
                               .context = kTokens,
                               .vocabulary = kVocabulary,
                               .is_tied = false};
  return device.is_gpu() ? model::make_gpt2_for_gpu(shape, device.gpu) : model::make_gpt2(shape);
}

StepInput batch() {
  return {.batch = {{"inputs", test::random_tokens({4, kTokens}, kVocabulary, 7)},
                    {"targets", test::random_tokens({4, kTokens}, kVocabulary, 8)}},
          .micro_batches = 2};
}

class GpuUntied : public test::OnGpu<> {};

}  // namespace

TEST_F(GpuUntied, GradientsOfBothTablesAreThoseOfTheCpu) {
  const StepInput input = batch();
  const model::Chain chain_there = untied_chain({});
  model::Parameters there(chain_there, at::kFloat, /*seed=*/3);
  const double expected = accumulate_gradients(chain_there, there, input);
  for (const bool is_deterministic : {false, true}) {
    const device::Device& device = gpu(is_deterministic);
    const model::Chain chain = untied_chain(device);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(test::type_name(type));
      model::Parameters here(chain, type, /*seed=*/3, device);
      EXPECT_TRUE(at::equal(test::packed(here, here.flat_weights()),
                            test::packed(there, there.flat_weights())));
      for (int again = 0; again < 2; ++again) {
        test::spoil_gradients(here);
        here.zero_gradients();
        const double tolerance = test::chain_tolerance(type);
        EXPECT_NEAR(accumulate_gradients(chain, here, input), expected, tolerance * expected);
        for (const model::Parameter& parameter : here.all()) {
          const at::Tensor same = there.find(parameter.spec.name)->gradient;
          // The first layer's has passed through the roundings of all others.
          EXPECT_LT(test::error_of(parameter.gradient, same), 4 * tolerance) << parameter.spec.name;
        }
      }
    }
  }
}

TEST_F(GpuUntied, ClearsAnEmbeddingsGradientThatNobodyWrites) {
  const device::Device& device = gpu(/*is_deterministic=*/true);
  const model::Chain chain = untied_chain(device);
  model::Parameters parameters(chain, at::kFloat, /*seed=*/3, device);
  parameters.flat_gradients().fill_(7);
  parameters.zero_gradients();
  EXPECT_EQ(at::count_nonzero(parameters.flat_gradients()).item<int64_t>(), 0);
}

// Ten steps of AdamW on one batch; the step recorded as a graph, or not.
TEST_F(GpuUntied, ARecordedStepHasTheBitsOfThePlainOne) {
  const device::Device& device = gpu(/*is_deterministic=*/true);
  const memory::AccountScope scope(device.account());
  const model::Chain chain = untied_chain(device);
  StepInput input = batch();
  input.updates.front() = {.rate = {.lr = 1e-3}, .clip = 1};
  const auto train = [&](bool uses_graph) {
    model::Parameters parameters(chain, at::kBFloat16, /*seed=*/3, device);
    const auto optimizer = optim::make_optimizer(config::TrainOptions{}, parameters);
    const plan::CostTable sizes = profile::sizes_of(chain, parameters, rows_of(input.batch, 0, 2));
    const plan::OneRankAnswer planned =
        plan::solve_one_rank(sizes,
                             {.recompute = plan::Recompute::None,
                              .micro_batches = 2,
                              .holdings = test::holdings_alone(parameters)});
    Executor executor(planned.program, chain, parameters);
    if (uses_graph) {
      executor.use_graph();
    }
    std::vector<double> losses;
    for (int step = 0; step < 10; ++step) {
      losses.push_back(executor.run(input, *optimizer));
    }
    return losses;
  };
  const std::vector<double> plain = train(/*uses_graph=*/false);
  EXPECT_LT(plain.back(), plain.front());
  EXPECT_EQ(train(/*uses_graph=*/true), plain);
}

}  // namespace penstock::run
