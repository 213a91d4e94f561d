// Training on the GPU: the losses of the CPU, and the same bits under every plan where results must
// be deterministic.
#include <cmath>

#include "penstock/memory/account.h"
#include "penstock/model/family.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/plan/one_rank.h"
#include "penstock/profile/profile.h"
#include "penstock/run/executor.h"
#include "penstock/run/plain_step.h"

#include "gpu/gpu_model.h"
#include "run/small_models.h"
#include "support/error_text.h"
#include "support/holdings.h"

namespace penstock::run {

namespace {

using test::gpu;

constexpr int64_t kVocabulary = 257, kTokens = 32;

// Which model, of those that families have here.
struct Model {
  double dropout = 0;
  const char* family = "gpt2";
};

model::Chain chain_on(const device::Device& device, const Model& model) {
  config::ModelOptions options{.family = model.family,
                               .layers = 2,
                               .width = 64,
                               .heads = 4,
                               .context = kTokens,
                               .vocabulary = kVocabulary,
                               .dropout = model.dropout};
  if (options.family == "llama") {
    options.kv_heads = 2;
  }
  return model::make_chain(options, device);
}

StepInput batch(int64_t micro_batches) {
  at::Tensor targets = test::random_tokens({4, kTokens}, kVocabulary, 8);
  targets[1].narrow(0, 3, 5).fill_(-1);  // the micro-batches count differently
  return {.batch = {{"inputs", test::random_tokens({4, kTokens}, kVocabulary, 7)},
                    {"targets", targets}},
          .first_sample = 40,
          .micro_batches = micro_batches,
          .seed = 5,
          .step = 6};
}

void wait_for(const device::Device& device) {
  if (device.is_gpu()) {
    device.gpu->wait();
  }
}

// The losses of twenty steps of AdamW on one batch, which it learns by heart; then that of
// evaluation.
std::vector<double> train(const device::Device& device,
                          at::ScalarType type,
                          const Model& model,
                          int64_t micro_batches) {
  const model::Chain chain = chain_on(device, model);
  model::Parameters parameters(chain, type, /*seed=*/3, device);
  const auto optimizer = optim::make_optimizer(config::TrainOptions{}, parameters);
  StepInput input = batch(micro_batches);
  input.loss_scale = type == at::kHalf ? 1024 : 1;
  std::vector<double> losses;
  for (int step = 0; step < 20; ++step) {
    input.step = step;
    parameters.zero_gradients();
    losses.push_back(accumulate_gradients(chain, parameters, input));
    optimizer->update(parameters,
                      {.rate = {.lr = 1e-3}, .clip = 1, .loss_scale = input.loss_scale});
    wait_for(device);
    EXPECT_TRUE(optimizer->updated().was_applied);
  }
  EXPECT_EQ(optimizer->steps_done(), 20);
  const LossSum end = evaluate(chain, parameters, input.batch);
  losses.push_back(end.sum / static_cast<double>(end.count));
  return losses;
}

void expect_near(const std::vector<double>& losses,
                 const std::vector<double>& expected,
                 double tolerance) {
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], tolerance * expected[i]) << "step " << i;
  }
}

class GpuTraining : public test::OnGpu<> {};

}  // namespace

TEST_F(GpuTraining, GivesTheLossesOfTheCpu) {
  for (const Model& model : {Model{0}, Model{0.1}, Model{0, "llama"}}) {
    SCOPED_TRACE(cat(model.family, " dropout ", model.dropout));
    const std::vector<double> expected = train(device::open_cpu(), at::kFloat, model, 2);
    EXPECT_LT(expected[20], 0.95 * expected[0]) << "nothing was learnt";
    for (const bool is_deterministic : {false, true}) {
      SCOPED_TRACE(is_deterministic ? "deterministic" : "fast");
      const device::Device& device = gpu(is_deterministic);
      expect_near(train(device, at::kFloat, model, 2), expected, 1e-4);
      expect_near(train(device, at::kFloat, model, 1), expected, 1e-4);
      expect_near(train(device, at::kBFloat16, model, 2), expected, 2e-2);
      expect_near(train(device, at::kHalf, model, 2), expected, 2e-2);
    }
  }
}

TEST_F(GpuTraining, RepeatsItsBitsWhereItIsDeterministic) {
  const device::Device& device = gpu(/*is_deterministic=*/true);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Model& model : {Model{0}, Model{0.1}, Model{0, "llama"}}) {
      EXPECT_EQ(train(device, type, model, 2), train(device, type, model, 2))
          << test::type_name(type) << " " << model.family << " dropout " << model.dropout;
    }
  }
}

TEST_F(GpuTraining, StartsFromTheWeightsOfTheCpu) {
  const device::Device& device = gpu(/*is_deterministic=*/true);
  for (const Model& model : {Model{}, Model{0, "llama"}}) {
    SCOPED_TRACE(model.family);
    const model::Parameters here(chain_on(device, model), at::kBFloat16, /*seed=*/3, device);
    const model::Parameters there(chain_on({}, model), at::kBFloat16, /*seed=*/3);
    EXPECT_TRUE(at::equal(test::packed(here, here.flat_weights()),
                          test::packed(there, there.flat_weights())));
    EXPECT_TRUE(at::equal(test::packed(here, here.flat_compute()),
                          test::packed(there, there.flat_compute())));
  }
}

TEST_F(GpuTraining, ClearsGradientsThatNobodyWrites) {
  const device::Device& device = gpu(/*is_deterministic=*/true);
  const model::Chain chain = chain_on(device, {});
  model::Parameters parameters(chain, at::kFloat, /*seed=*/3, device);
  parameters.flat_gradients().fill_(7);
  parameters.zero_gradients();
  EXPECT_EQ(at::count_nonzero(parameters.flat_gradients()).item<int64_t>(), 0);
  // Twice over a used buffer: what a step leaves does not reach the next.
  parameters.zero_gradients();
  const double first = accumulate_gradients(chain, parameters, batch(2));
  const at::Tensor once = parameters.flat_gradients().clone();
  parameters.zero_gradients();
  EXPECT_EQ(accumulate_gradients(chain, parameters, batch(2)), first);
  EXPECT_TRUE(at::equal(parameters.flat_gradients(), once));
}

// What a layer overwrites is left as it is and said to be fresh; the rest is zero.
TEST_F(GpuTraining, BeginsTheGradientsOfALayer) {
  const device::Device& device = gpu(/*is_deterministic=*/true);
  const model::Chain chain = chain_on(device, {});
  model::Parameters parameters(chain, at::kFloat, /*seed=*/3, device);
  for (int64_t layer = 0; layer <= chain.size(); ++layer) {
    SCOPED_TRACE(cat("layer ", layer));
    parameters.flat_gradients().fill_(7);
    const std::vector<uint8_t> fresh = parameters.begin_gradients(layer);
    const model::Gradients gradients = parameters.gradients_of(layer, fresh);
    const std::vector<model::ParameterSpec>& specs =
        layer == chain.size() ? chain.loss().parameters() : chain.layer(layer).parameters();
    ASSERT_EQ(fresh.size(), specs.size());
    int64_t zeros = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(gradients.is_fresh(i), specs[i].is_gradient_overwritten) << specs[i].name;
      const int64_t others = at::count_nonzero(gradients[i]).item<int64_t>();
      EXPECT_EQ(others, gradients.is_fresh(i) ? specs[i].count() : 0) << specs[i].name;
      zeros += specs[i].count() - others;
    }
    const at::Tensor all = test::packed(parameters, parameters.flat_gradients());
    EXPECT_EQ(at::count_nonzero(all).item<int64_t>(), parameters.count() - zeros)
        << "gradients of other layers";
  }
}

namespace {

struct Result {
  double loss = 0;
  at::Tensor gradients;
};

// One model with its costs, to be planned and run in several ways.
class Fixture {
 public:
  Fixture(const device::Device& the_device,
          at::ScalarType type,
          const Model& model,
          int64_t micro_batches)
      : device(the_device),
        scope(device.account()),
        chain(chain_on(device, model)),
        input(batch(micro_batches)),
        parameters(chain, type, /*seed=*/3, device) {
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
    holdings = test::holdings_alone(parameters, device.account().usage().current_bytes);
  }

  plan::OneRankAnswer plan(plan::Recompute recompute, int64_t limit = 0) const {
    return plan::solve_one_rank(costs,
                                {.recompute = recompute,
                                 .limit_bytes = limit,
                                 .micro_batches = static_cast<int32_t>(input.micro_batches),
                                 .holdings = holdings});
  }

  Result run_plain() {
    parameters.zero_gradients();
    const double loss = accumulate_gradients(chain, parameters, input);
    return {loss, parameters.flat_gradients().cpu()};
  }

  // The program begins gradients by itself, whatever was left in them.
  Result run(const plan::OneRankAnswer& planned) {
    Executor executor(planned.program, chain, parameters);
    test::CountingStepper stepper;
    test::spoil_gradients(parameters);
    const memory::PeakMark mark(device.account());
    const double loss = executor.run(input, stepper);
    EXPECT_EQ(stepper.squares, 1);
    EXPECT_EQ(stepper.decisions, 1);
    EXPECT_EQ(stepper.moves, 1);
    EXPECT_EQ(executor.outcomes().size(), 1U);
    EXPECT_LE(mark.peak_bytes(), planned.peak_bytes);
    EXPECT_EQ(executor.measured().ranks[0].peak_bytes, mark.peak_bytes());
    EXPECT_EQ(executor.measured().ranks[0].spans.size(),
              planned.program.ranks[0].instructions.size());
    EXPECT_GT(executor.measured().seconds, 0);
    return {loss, parameters.flat_gradients().cpu()};
  }

  device::Device device;
  memory::AccountScope scope;
  model::Chain chain;
  StepInput input;
  model::Parameters parameters;
  plan::CostTable costs;
  plan::Holdings holdings;
};

struct Case {
  const char* name;
  at::ScalarType type;
  Model model;
  int64_t micro_batches;
};

class GpuPlans : public test::OnGpu<testing::TestWithParam<Case>> {};

}  // namespace

TEST_P(GpuPlans, GiveTheBitsOfThePlainStepAndStayWithinTheirPrediction) {
  const Case& row = GetParam();
  Fixture fixture(gpu(/*is_deterministic=*/true), row.type, row.model, row.micro_batches);
  const Result expected = fixture.run_plain();
  EXPECT_TRUE(std::isfinite(expected.loss));
  const auto expect_same = [&](const plan::OneRankAnswer& planned) {
    const Result result = fixture.run(planned);
    EXPECT_EQ(result.loss, expected.loss);
    EXPECT_TRUE(at::equal(result.gradients, expected.gradients));
  };
  for (const plan::Recompute recompute :
       {plan::Recompute::None, plan::Recompute::All, plan::Recompute::Sqrt}) {
    SCOPED_TRACE(plan::recompute_name(recompute));
    expect_same(fixture.plan(recompute));
  }
  const plan::OneRankAnswer all = fixture.plan(plan::Recompute::None);
  const int64_t least = fixture.plan(plan::Recompute::Rotor, /*limit=*/1).least_bytes;
  EXPECT_LT(least, all.peak_bytes);
  for (int share = 0; share <= 4; ++share) {
    const int64_t limit = least + (all.peak_bytes - least) * share / 4;
    SCOPED_TRACE(cat("rotor within ", limit, " bytes"));
    const plan::OneRankAnswer planned = fixture.plan(plan::Recompute::Rotor, limit);
    ASSERT_TRUE(planned.is_feasible);
    expect_same(planned);
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         GpuPlans,
                         testing::Values(Case{"float32", at::kFloat, {0}, 1},
                                         Case{"float32_dropout", at::kFloat, {0.1}, 2},
                                         Case{"bfloat16", at::kBFloat16, {0}, 2},
                                         Case{"bfloat16_dropout", at::kBFloat16, {0.1}, 2},
                                         Case{"float16_dropout", at::kHalf, {0.1}, 1},
                                         Case{"bfloat16_four_micro_batches", at::kBFloat16, {0}, 4},
                                         Case{"llama_float32", at::kFloat, {0, "llama"}, 1},
                                         Case{"llama_bfloat16", at::kBFloat16, {0, "llama"}, 2},
                                         Case{"llama_float16", at::kHalf, {0, "llama"}, 2}),
                         [](const testing::TestParamInfo<Case>& row) { return row.param.name; });

// The table without seconds or transients, which serves a program that is under no limit.
TEST_F(GpuTraining, RunsAProgramMadeOfSizesAlone) {
  Fixture fixture(gpu(/*is_deterministic=*/true), at::kBFloat16, {0.1}, 2);
  const Result expected = fixture.run_plain();
  const plan::CostTable sizes =
      profile::sizes_of(fixture.chain, fixture.parameters, rows_of(fixture.input.batch, 0, 2));
  const plan::OneRankAnswer planned =
      plan::solve_one_rank(sizes,
                           {.recompute = plan::Recompute::None,
                            .micro_batches = 2,
                            .holdings = test::holdings_alone(fixture.parameters)});
  Executor executor(planned.program, fixture.chain, fixture.parameters);
  NoStepper stepper;
  EXPECT_EQ(executor.run(fixture.input, stepper), expected.loss);
  EXPECT_TRUE(at::equal(fixture.parameters.flat_gradients().cpu(), expected.gradients));
}

// The losses of a step wait on the device, each in a place of its own.
TEST_F(GpuTraining, RefusesMoreMicroBatchesThanTheDeviceHasRoomForLosses) {
  device::Device device = gpu(/*is_deterministic=*/true);
  EXPECT_EQ(device.most_micro_batches, device::GpuContext::kLossSlots);
  device.most_micro_batches = 2;
  {
    Fixture as_many(device, at::kBFloat16, {}, 2);
    const Result expected = as_many.run_plain();
    EXPECT_EQ(as_many.run(as_many.plan(plan::Recompute::None)).loss, expected.loss);
  }
  Fixture more(device, at::kBFloat16, {}, 4);
  const plan::OneRankAnswer planned = more.plan(plan::Recompute::None);
  const std::string text = test::error_text<ConfigError>(
      [&] { const Executor executor(planned.program, more.chain, more.parameters); });
  for (const char* part : {"4 micro-batches", "the losses of 2", "plan.micro_batches"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

}  // namespace penstock::run
