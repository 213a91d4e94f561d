// The loss as a function: LibTorch's autograd gives the gradients of what it reads.
#include <atomic>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "penstock/base/error.h"
#include "penstock/model/layer_error.h"
#include "penstock/model/module_graph.h"
#include "penstock/model/module_layer.h"
#include "penstock/model/module_random.h"

namespace penstock::model {

namespace {

class FunctionLoss final : public Loss {
 public:
  FunctionLoss(std::string name, LossOfMany function, CountOfMany count)
      : name_(std::move(name)), function_(std::move(function)), count_(std::move(count)) {}

  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return specs_; }

  at::Tensor predict(Weights, const Tensors& input) const override { return input[0]; }

  double evaluate(Weights, const Tensors& input, const Tensors& targets) const override {
    const c10::NoGradGuard no_grad;
    return call(input, targets).item<double>();
  }

  Result backward(Weights,
                  Gradients,
                  const Tensors& input,
                  const Tensors& targets,
                  double scale) const override {
    const c10::AutoGradMode with_grad(true);
    Tensors leaves, sources;
    for (const at::Tensor& tensor : input) {
      leaves.push_back(tensor.detach());
      if (tensor.is_floating_point()) {
        sources.push_back(leaves.back().set_requires_grad(true));
      }
    }
    const at::Tensor sum = call(leaves, targets);
    if (!sum.requires_grad()) {
      throw LayerError(cat("loss ",
                           name_,
                           ": its number has no gradient; it must depend on what the loss reads by "
                           "operations that have one (argmax and comparisons have none)"));
    }
    refuse_stray_parameters(leaves, sum);
    Tensors gradients = naming_layer(name_, "backward of the loss", leaves, [&] {
      return torch::autograd::grad({sum},
                                   sources,
                                   {at::full_like(sum, scale)},
                                   /*retain_graph=*/false,
                                   /*create_graph=*/false,
                                   /*allow_unused=*/true);
    });
    Result result{.sum = sum.item<double>()};
    size_t next = 0;
    for (const at::Tensor& leaf : leaves) {
      result.input_gradients.push_back(
          leaf.requires_grad() ? own_gradient(std::move(gradients[next++])) : at::Tensor());
    }
    return result;
  }

  int64_t count(const Tensors& targets) const override {
    return naming_layer(name_, "the count of targets", targets, [&] {
      return count_ ? count_(targets) : targets[0].numel();
    });
  }

  bool is_random() const override { return draws_; }

 private:
  at::Tensor call(const Tensors& input, const Tensors& targets) const {
    Tensors all = input;
    all.insert(all.end(), targets.begin(), targets.end());
    const at::Tensor sum = naming_layer(name_, "the loss", all, [&] {
      const InPlaceCheck in_place(all);
      const at::Tensor result = draw_and_call(input, targets);
      in_place.require_unchanged();
      return result;
    });
    if (sum.numel() != 1) {
      throw LayerError(cat("loss ",
                           name_,
                           " returns ",
                           shape_text(Tensors{sum}),
                           "; it must return one number, the sum over all targets"));
    }
    return sum;
  }

  // The first call tells whether it draws; until then it is taken to.
  at::Tensor draw_and_call(const Tensors& input, const Tensors& targets) const {
    if (knows_draws_) {
      return function_(input, targets);
    }
    at::Tensor sum;
    draws_ = draws_random_numbers([&] { sum = function_(input, targets); });
    knows_draws_ = true;
    return sum;
  }

  // Once: the graph is the same for every batch.
  void refuse_stray_parameters(const Tensors& leaves, const at::Tensor& sum) const {
    if (knows_graph_) {
      return;
    }
    if (const at::Tensor stray = find_stray_parameter({sum}, leaves); stray.defined()) {
      throw LayerError(cat("loss ",
                           name_,
                           ": its function uses a parameter ",
                           shape_text(Tensors{stray}),
                           ", which nothing would move; a loss has no parameters, so make the last "
                           "layer of its module, by module_layer"));
    }
    knows_graph_ = true;
  }

  std::string name_;
  LossOfMany function_;
  CountOfMany count_;
  std::vector<ParameterSpec> specs_;
  mutable std::atomic<bool> draws_ = true, knows_draws_ = false, knows_graph_ = false;
};

}  // namespace

std::unique_ptr<Loss> function_loss(std::string name, LossFunction function, TargetCount count) {
  CountOfMany count_first;
  if (count) {
    count_first = [count = std::move(count)](const Tensors& targets) { return count(targets[0]); };
  }
  return function_loss_of_many(
      std::move(name),
      [function = std::move(function)](const Tensors& inputs, const Tensors& targets) {
        return function(inputs[0], targets[0]);
      },
      std::move(count_first));
}

std::unique_ptr<Loss> function_loss_of_many(std::string name,
                                            LossOfMany function,
                                            CountOfMany count) {
  return std::make_unique<FunctionLoss>(std::move(name), std::move(function), std::move(count));
}

}  // namespace penstock::model
