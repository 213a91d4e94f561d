// Trains the user's own torch::nn modules: three layers that tell two spirals apart.
#include <cstdio>

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/linear.h>

#include "penstock/model/module_layer.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"
#include "penstock/run/plain_step.h"

using namespace penstock;

// A module as one would write it for LibTorch alone.
struct HiddenImpl : torch::nn::Module {
  HiddenImpl(int64_t in, int64_t out)
      : linear(register_module("linear", torch::nn::Linear(in, out))) {}
  at::Tensor forward(const at::Tensor& x) { return at::gelu(linear(x)); }
  torch::nn::Linear linear;
};
TORCH_MODULE(Hidden);

int main() {
  const int64_t points = 512;
  const at::Tensor label = at::arange(points).remainder(2);
  const at::Tensor radius = at::rand({points}) * 3 + 0.2;
  const at::Tensor angle = radius * 2 + label * M_PI;
  const at::Tensor inputs = at::stack({radius * angle.cos(), radius * angle.sin()}, 1);

  model::Chain chain;
  chain.add(model::module_layer("first", Hidden(2, 64)));
  chain.add(model::module_layer("second", Hidden(64, 64)));
  chain.add(model::module_layer("last", torch::nn::Linear(64, 2)));
  chain.end_with(model::function_loss("loss", [](const at::Tensor& out, const at::Tensor& target) {
    return at::cross_entropy_loss(out, target, {}, at::Reduction::Sum);
  }));

  model::Parameters parameters(chain, at::kFloat, /*seed=*/1);
  const config::TrainOptions train{.optimizer = "adamw", .weight_decay = 0.01};
  const auto optimizer = optim::make_optimizer(train, parameters);
  for (int64_t step = 0; step < 400; ++step) {
    parameters.zero_gradients();
    const double loss = run::accumulate_gradients(
        chain, parameters, {.inputs = inputs, .targets = label, .micro_batches = 4, .step = step});
    optimizer->step(
        parameters, {.lr = 1e-2}, optim::clip_scale(optim::gradient_norm(parameters), 1.0));
    if (step % 100 == 0 || step == 399) {
      std::printf("step %3ld  loss %.4f\n", step, loss);
    }
  }
  const at::Tensor guess = run::predict(chain, parameters, inputs).argmax(1);
  const double right = guess.eq(label).to(at::kDouble).mean().item<double>();
  std::printf("%.1f %% of the points told apart\n", 100 * right);
  return right > 0.95 ? 0 : 1;
}
