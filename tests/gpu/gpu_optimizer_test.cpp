// The optimizers on the GPU against those on the CPU, and steps that must not be taken.
#include "penstock/optim/gpu_optimizer.h"

#include <limits>

#include "penstock/model/gpt2/gpu.h"
#include "penstock/model/parameters.h"

#include "gpu/gpu_model.h"

namespace penstock::optim {

namespace {

using test::gpu;

// The table has more elements than one chunk of an update.
constexpr model::Gpt2Shape kShape{
    .layers = 1, .width = 64, .heads = 4, .context = 32, .vocabulary = 1100};

model::Chain chain_on(const device::Device& device) {
  return device.is_gpu() ? model::make_gpt2_for_gpu(kShape, device.gpu) : model::make_gpt2(kShape);
}

// The same gradients for any device; padding stays zero.
void set_gradients(model::Parameters& parameters, uint64_t seed, double scale = 1) {
  for (const model::Parameter& parameter : parameters.all()) {
    at::Tensor(parameter.gradient)
        .copy_(test::random_tensor(parameter.spec.shape, ++seed) * (0.05 * scale));
  }
}

struct Side {
  Side(const config::TrainOptions& train, at::ScalarType type, const device::Device& the_device)
      : device(the_device),
        chain(chain_on(device)),
        parameters(chain, type, /*seed=*/3, device),
        optimizer(make_optimizer(train, parameters)) {}

  Updated step(const UpdateSettings& settings, uint64_t seed) {
    set_gradients(parameters, seed, settings.loss_scale);
    return update(settings);
  }
  Updated update(const UpdateSettings& settings) {
    optimizer->update(parameters, settings);
    if (device.is_gpu()) {
      device.gpu->wait();
    }
    return optimizer->updated();
  }

  device::Device device;
  model::Chain chain;
  model::Parameters parameters;
  std::unique_ptr<Optimizer> optimizer;
};

struct Case {
  const char* name;
  config::TrainOptions train;
  double clip = 0;
  double loss_scale = 1;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  config::TrainOptions train;
  all.push_back({"adamw", train});
  all.push_back({"adamw_clipped", train, 1});
  all.push_back({"adamw_clipped_loss_scale", train, 1, 4096});
  train.optimizer = "sgd";
  all.push_back({"sgd_momentum", train});
  all.push_back({"sgd_momentum_clipped_loss_scale", train, 1, 4096});
  train.nesterov = true;
  all.push_back({"sgd_nesterov", train, 1});
  train.nesterov = false;
  train.momentum = 0;
  all.push_back({"sgd_plain", train, 1});
  train = {};
  train.optimizer = "lamb";
  all.push_back({"lamb", train});
  all.push_back({"lamb_clipped_loss_scale", train, 1, 4096});
  return all;
}

class GpuOptimizers : public test::OnGpu<testing::TestWithParam<Case>> {};

}  // namespace

TEST_P(GpuOptimizers, FollowTheCpu) {
  const Case& row = GetParam();
  Side here(row.train, at::kBFloat16, gpu(/*is_deterministic=*/false));
  Side there(row.train, at::kBFloat16, device::open_cpu());
  const auto packed = [](const Side& side, const at::Tensor& flat) {
    return test::packed(side.parameters, flat);
  };
  const at::Tensor start = packed(there, there.parameters.flat_weights());
  for (int step = 0; step < 5; ++step) {
    UpdateSettings settings{
        .rate = {.lr = 1e-2 / (1 + step)}, .clip = row.clip, .loss_scale = row.loss_scale};
    if (step == 3 && row.train.momentum > 0) {
      settings.rate.momentum = 0.8;  // as some schedules ask
    }
    const uint64_t seed = 100 * static_cast<uint64_t>(step + 1);
    const Updated one = here.step(settings, seed), other = there.step(settings, seed);
    EXPECT_TRUE(one.was_applied);
    EXPECT_NEAR(one.norm, other.norm, 1e-5 * other.norm);
    EXPECT_EQ(here.optimizer->steps_done(), step + 1);
  }
  const at::Tensor weights = packed(here, here.parameters.flat_weights());
  const at::Tensor expected = packed(there, there.parameters.flat_weights());
  EXPECT_FALSE(at::equal(weights, start));
  EXPECT_LT(test::relative_error(weights, expected), 1e-5);
  // The way that they went, not only where it began.
  EXPECT_LT(test::relative_error(weights - start, expected - start), 1e-4);
  ASSERT_EQ(here.optimizer->state().size(), there.optimizer->state().size());
  for (size_t i = 0; i < here.optimizer->state().size(); ++i) {
    EXPECT_EQ(here.optimizer->state()[i].name, there.optimizer->state()[i].name);
    EXPECT_LT(test::relative_error(packed(here, here.optimizer->state()[i].flat),
                                   packed(there, there.optimizer->state()[i].flat)),
              1e-5);
  }
  EXPECT_TRUE(
      at::equal(here.parameters.flat_compute(), here.parameters.flat_weights().to(at::kBFloat16)))
      << "compute copies";
}

TEST_P(GpuOptimizers, TakeNoStepWhenAGradientIsNotFinite) {
  const Case& row = GetParam();
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const at::ScalarType type : {at::kFloat, at::kHalf}) {
      Side side(row.train, type, gpu(/*is_deterministic=*/false));
      Side spared(row.train, type, gpu(/*is_deterministic=*/false));
      const UpdateSettings settings{
          .rate = {.lr = 1e-2}, .clip = row.clip, .loss_scale = row.loss_scale};
      EXPECT_TRUE(side.step(settings, 100).was_applied);
      spared.step(settings, 100);
      const at::Tensor weights = side.parameters.flat_weights().clone();
      const at::Tensor compute = side.parameters.flat_compute().clone();
      model::Tensors state;
      for (const StateBuffer& buffer : side.optimizer->state()) {
        state.push_back(buffer.flat.clone());
      }
      set_gradients(side.parameters, 200, row.loss_scale);
      const model::Parameter& last = side.parameters.all().back();
      at::Tensor(last.gradient).view({-1})[last.spec.count() - 1].fill_(bad);
      EXPECT_FALSE(side.update(settings).was_applied);
      EXPECT_EQ(side.optimizer->steps_done(), 1);
      EXPECT_TRUE(at::equal(side.parameters.flat_weights(), weights));
      EXPECT_TRUE(at::equal(side.parameters.flat_compute(), compute));
      for (size_t i = 0; i < state.size(); ++i) {
        EXPECT_TRUE(at::equal(side.optimizer->state()[i].flat, state[i]));
      }
      EXPECT_FALSE(side.optimizer->updated().was_applied) << "asking twice counts nothing twice";
      EXPECT_EQ(side.optimizer->steps_done(), 1);
      // And the next step is as if there had been none in between.
      EXPECT_TRUE(side.step(settings, 300).was_applied);
      spared.step(settings, 300);
      EXPECT_EQ(side.optimizer->steps_done(), 2);
      EXPECT_TRUE(at::equal(side.parameters.flat_weights(), spared.parameters.flat_weights()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         GpuOptimizers,
                         testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& row) { return row.param.name; });

}  // namespace penstock::optim
