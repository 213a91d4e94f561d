#include "penstock/model/module_layer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/memory/cpu_allocator.h"

namespace penstock::model {

namespace {

struct Graph {
  at::Tensor input;   // the leaf that the backward stops at
  at::Tensor output;  // carries the graph
};

// A layer must come out the same when it is run again. State that a forward changes, and random
// numbers of its own, would not.
void require_pure(const std::string& layer, const torch::nn::Module& module) {
  if (!module.named_buffers().is_empty()) {
    throw ConfigError(
        cat("layer ",
            layer,
            " has a buffer, ",
            module.named_buffers().front().key(),
            ": modules with state of their own (batch norm, say) cannot be layers yet"));
  }
  module.apply([&](const torch::nn::Module& part) {
    if (part.name().find("Dropout") != std::string::npos) {
      throw ConfigError(cat("layer ",
                            layer,
                            " has a ",
                            part.name(),
                            ", which draws random numbers of its own; use model::apply_dropout, "
                            "which draws by sample, or leave it out"));
    }
  });
}

class ModuleLayer final : public Layer {
 public:
  ModuleLayer(std::string name, std::shared_ptr<torch::nn::Module> module, ModuleForward forward)
      : name_(std::move(name)), module_(std::move(module)), forward_(std::move(forward)) {
    require_pure(name_, *module_);
    for (const auto& entry : module_->named_parameters()) {
      const at::Tensor value = entry.value().detach();
      module_parameters_.push_back(entry.value());
      specs_.push_back({.name = cat(name_, ".", entry.key()),
                        .shape = value.sizes().vec(),
                        .init = ParameterSpec::Init::Given,
                        .has_weight_decay = value.dim() > 1,
                        .given = value.clone()});
    }
  }

  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return specs_; }
  const std::vector<Way>& ways() const override { return ways_; }

  // The graph holds on to them, and so does the module.
  bool takes_gathered_weights() const override { return false; }

  Tensors forward(Weights weights,
                  const Tensors& input,
                  const Pass& pass,
                  Saved* saved) const override {
    PENSTOCK_CHECK(input.size() == 1, "a module layer takes one tensor, not ", input.size());
    use(weights);
    module_->train(pass.is_training);
    if (saved == nullptr) {
      const c10::NoGradGuard no_grad;
      return {forward_(input[0])};
    }
    const c10::AutoGradMode with_grad(true);
    auto graph = std::make_shared<Graph>();
    graph->input = input[0].detach();
    if (graph->input.is_floating_point()) {
      graph->input.set_requires_grad(true);
    }
    graph->output = forward_(graph->input);
    saved->graph = graph;
    return {graph->output.detach()};
  }

  Tensors backward(Weights weights,
                   Gradients gradients,
                   const Tensors&,
                   Saved saved,
                   const Tensors& output_gradient,
                   const Pass&) const override {
    use(weights);
    const std::shared_ptr<Graph> graph = std::static_pointer_cast<Graph>(saved.graph);
    saved.graph.reset();
    Tensors sources = module_parameters_;
    const bool has_input_gradient = graph->input.requires_grad();
    if (has_input_gradient) {
      sources.push_back(graph->input);
    }
    const Tensors parts = differentiate(*graph, sources, output_gradient[0]);
    add(parts, gradients);
    return {has_input_gradient ? parts.back() : at::Tensor()};
  }

  // Each half walks the graph as far as its own sources: what lies between a parameter and the
  // output is gone through twice.
  Tensors backward_input(Weights weights,
                         Gradients,
                         const Tensors&,
                         Saved saved,
                         const Tensors& output_gradient,
                         const Pass&,
                         WeightWork& work) const override {
    use(weights);
    const std::shared_ptr<Graph> graph = std::static_pointer_cast<Graph>(saved.graph);
    saved.graph.reset();
    const bool has_weight_half = !module_parameters_.empty();
    if (has_weight_half) {
      work = {{output_gradient[0]}, graph};
    }
    if (!graph->input.requires_grad()) {
      return {at::Tensor()};
    }
    return differentiate(
        *graph, {graph->input}, output_gradient[0], /*keeps_graph=*/has_weight_half);
  }

  void backward_weight(Weights weights, Gradients gradients, WeightWork work) const override {
    if (module_parameters_.empty()) {
      return;
    }
    use(weights);
    const std::shared_ptr<Graph> graph = std::static_pointer_cast<Graph>(work.graph);
    work.graph.reset();
    add(differentiate(*graph, module_parameters_, work.tensors[0]), gradients);
  }

  // A module does not say what it keeps, so it is run once and the allocator asked.
  LayerSize size_for(const TensorShape& input,
                     at::ScalarType compute_type,
                     int32_t) const override {
    Tensors weights;
    for (const ParameterSpec& spec : specs_) {
      weights.push_back(spec.given.to(compute_type));
    }
    PENSTOCK_CHECK(memory::is_cpu_allocator_installed(),
                   "call memory::install_cpu_allocator() before asking a module for its size");
    const Tensors zeros{at::zeros(input.sizes, input.type)};
    const int64_t before = memory::usage().current_bytes;
    Saved saved;
    const Tensors output = forward(weights, zeros, Pass{}, &saved);
    const int64_t kept = memory::usage().current_bytes - before;
    return {{output[0].sizes().vec(), output[0].scalar_type()}, kept};
  }

 private:
  // One gradient for each source, undefined where the output does not depend on it.
  static Tensors differentiate(const Graph& graph,
                               const Tensors& sources,
                               const at::Tensor& output_gradient,
                               bool keeps_graph = false) {
    if (sources.empty()) {
      return {};
    }
    return torch::autograd::grad({graph.output},
                                 sources,
                                 {output_gradient},
                                 keeps_graph,
                                 /*create_graph=*/false,
                                 /*allow_unused=*/true);
  }

  static void add(const Tensors& parts, Gradients gradients) {
    const c10::NoGradGuard no_grad;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (parts[i].defined()) {
        gradients[i].add_(parts[i]);
      }
    }
  }

  // The module's own tensors become views of the weights handed in. set_data leaves their identity
  // as graph leaves alone.
  void use(Weights weights) const {
    for (size_t i = 0; i < module_parameters_.size(); ++i) {
      if (!module_parameters_[i].is_alias_of(weights[i]) ||
          module_parameters_[i].data_ptr() != weights[i].data_ptr()) {
        at::Tensor(module_parameters_[i]).set_data(weights[i].detach());
      }
    }
  }

  std::string name_;
  std::shared_ptr<torch::nn::Module> module_;
  ModuleForward forward_;
  std::vector<at::Tensor> module_parameters_;
  std::vector<ParameterSpec> specs_;
  std::vector<Way> ways_{{"all", /*needs_output=*/true}};  // the graph may hold on to the output
};

class FunctionLoss final : public Loss {
 public:
  FunctionLoss(std::string name, LossFunction function, TargetCount count)
      : name_(std::move(name)), function_(std::move(function)), count_(std::move(count)) {}

  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return specs_; }

  at::Tensor predict(Weights, const at::Tensor& input) const override { return input; }

  double evaluate(Weights, const at::Tensor& input, const at::Tensor& targets) const override {
    const c10::NoGradGuard no_grad;
    return function_(input, targets).item<double>();
  }

  Result backward(Weights,
                  Gradients,
                  const at::Tensor& input,
                  const at::Tensor& targets,
                  double scale) const override {
    const c10::AutoGradMode with_grad(true);
    const at::Tensor leaf = input.detach().set_requires_grad(true);
    const at::Tensor sum = function_(leaf, targets);
    const auto gradients = torch::autograd::grad({sum}, {leaf}, {at::full_like(sum, scale)});
    return {.sum = sum.item<double>(), .input_gradient = gradients[0]};
  }

  int64_t count(const at::Tensor& targets) const override {
    return count_ ? count_(targets) : targets.numel();
  }

 private:
  std::string name_;
  LossFunction function_;
  TargetCount count_;
  std::vector<ParameterSpec> specs_;
};

}  // namespace

std::unique_ptr<Layer> make_module_layer(std::string name,
                                         std::shared_ptr<torch::nn::Module> module,
                                         ModuleForward forward) {
  return std::make_unique<ModuleLayer>(std::move(name), std::move(module), std::move(forward));
}

std::unique_ptr<Loss> function_loss(std::string name, LossFunction function, TargetCount count) {
  return std::make_unique<FunctionLoss>(std::move(name), std::move(function), std::move(count));
}

}  // namespace penstock::model
