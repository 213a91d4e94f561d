#include "penstock/model/module_layer.h"

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/layer_error.h"
#include "penstock/model/module_random.h"

namespace penstock::model {

namespace {

struct Graph {
  Tensors inputs;   // the leaves that the backward stops at
  Tensors outputs;  // carry the graph
};

// The gradient of a sum is one number for many elements. Everybody counts on as many bytes as the tensor
// has elements.
at::Tensor dense(at::Tensor gradient) {
  return !gradient.defined() || gradient.is_non_overlapping_and_dense() ? std::move(gradient)
                                                                        : gradient.contiguous();
}

// Modules of the layers that there are. Each belongs to one: ranks that are threads would run it at the
// same time.
class ModulesInUse {
 public:
  bool add(const torch::nn::Module* module) {
    const std::lock_guard lock(mutex_);
    return modules_.insert(module).second;
  }
  void remove(const torch::nn::Module* module) {
    const std::lock_guard lock(mutex_);
    modules_.erase(module);
  }

 private:
  std::mutex mutex_;
  std::set<const torch::nn::Module*> modules_;
};

ModulesInUse& modules_in_use() {
  static ModulesInUse modules;
  return modules;
}

// For as long as it lives the module is a layer's.
class ModuleClaim {
 public:
  ModuleClaim(const std::string& layer, const torch::nn::Module* module) : module_(module) {
    constexpr const char* advice =
        "; make modules inside the function that makes the chain, which each rank calls";
    if (module_ == nullptr) {
      return;
    }
    for (const at::Tensor& parameter : module_->parameters()) {
      if (parameter.numel() == 0) {
        throw ConfigError(
            cat("layer ", layer, ": an earlier chain has its module's weights", advice));
      }
    }
    if (!modules_in_use().add(module_)) {
      throw ConfigError(cat("layer ", layer, ": its module is another layer's, too", advice));
    }
  }
  ~ModuleClaim() {
    if (module_ != nullptr) {
      modules_in_use().remove(module_);
    }
  }
  ModuleClaim(const ModuleClaim&) = delete;
  ModuleClaim& operator=(const ModuleClaim&) = delete;

 private:
  const torch::nn::Module* const module_;
};

class ModuleLayer final : public Layer {
 public:
  ModuleLayer(std::string name, std::shared_ptr<torch::nn::Module> module, ModuleForward forward)
      : name_(std::move(name)),
        module_(std::move(module)),
        claim_(name_, module_.get()),
        forward_(std::move(forward)),
        draws_(module_ && has_dropout(*module_)) {
    if (!module_) {
      return;
    }
    for (const auto& entry : module_->named_parameters()) {
      const at::Tensor value = entry.value().detach();
      module_parameters_.push_back(entry.value());
      specs_.push_back({.name = cat(name_, ".", entry.key()),
                        .shape = value.sizes().vec(),
                        .init = ParameterSpec::Init::Given,
                        .has_weight_decay = value.dim() > 1,
                        .given = value,  // use() gives the module others
                        .is_frozen = !entry.value().requires_grad()});
    }
    for (const auto& entry : module_->named_buffers()) {
      if (entry.value().defined()) {
        module_buffers_.push_back(entry.value());
        const bool is_counter = !entry.value().is_floating_point();
        state_.push_back({.name = cat(name_, ".", entry.key()),
                          .shape = entry.value().sizes().vec(),
                          .type = entry.value().scalar_type(),
                          .initial = entry.value().detach().clone(),
                          .merge = is_counter ? StateSpec::Merge::Sum : StateSpec::Merge::Mean});
      }
    }
  }

  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return specs_; }
  const std::vector<StateSpec>& state() const override { return state_; }
  const std::vector<SaveMode>& save_modes() const override { return modes_; }
  bool is_random() const override { return draws_; }

  void forget_initial() override {
    const c10::NoGradGuard no_grad;
    for (size_t i = 0; i < specs_.size(); ++i) {
      specs_[i].given = at::Tensor();
      module_parameters_[i].set_data(at::empty({0}, module_parameters_[i].options()));
    }
    for (size_t i = 0; i < state_.size(); ++i) {
      state_[i].initial = at::Tensor();
      module_buffers_[i].set_data(at::empty({0}, module_buffers_[i].options()));
    }
  }

  bool can_skip_gradients() const override { return true; }
  void freeze() override {
    for (size_t i = 0; i < specs_.size(); ++i) {
      module_parameters_[i].set_requires_grad(false);
      specs_[i].is_frozen = true;
    }
  }

  // Autograd walks from the output to the parameters, through the weights between.
  bool weight_gradient_needs_weights() const override { return !specs_.empty(); }

  Tensors forward(Weights weights,
                  const Tensors& input,
                  const Pass& pass,
                  Saved* saved) const override {
    for (const at::Tensor& tensor : input) {
      PENSTOCK_CHECK(tensor.is_cpu(), "layer ", name_, ": torch::nn modules run on the CPU");
    }
    const WeightScope own(*this, weights);
    if (module_) {
      module_->train(pass.is_training);
    }
    const StateScope state(*this, pass);
    if (saved == nullptr) {
      const c10::NoGradGuard no_grad;
      Tensors output = call(input, pass);
      state.commit();
      return output;
    }
    const c10::AutoGradMode with_grad(true);
    auto graph = std::make_shared<Graph>();
    for (size_t i = 0; i < input.size(); ++i) {
      at::Tensor& leaf = graph->inputs.emplace_back(input[i].detach());
      if (leaf.is_floating_point() && pass.wants(i)) {
        leaf.set_requires_grad(true);
      }
    }
    graph->outputs = call(graph->inputs, pass);
    state.commit();
    Tensors output;
    for (const at::Tensor& tensor : graph->outputs) {
      output.push_back(tensor.detach());
    }
    saved->graph = graph;
    return output;
  }

  Tensors backward(Weights weights,
                   Gradients gradients,
                   const Tensors&,
                   Saved saved,
                   const Tensors& output_gradient,
                   const Pass&) const override {
    const WeightScope own(*this, weights);
    const std::shared_ptr<Graph> graph = std::static_pointer_cast<Graph>(saved.graph);
    saved.graph.reset();
    Tensors sources = learning_parameters(gradients);
    const size_t learning = sources.size();
    for (const at::Tensor& leaf : graph->inputs) {
      if (leaf.requires_grad()) {
        sources.push_back(leaf);
      }
    }
    Tensors parts = differentiate(*graph, sources, output_gradient);
    add(parts, gradients);
    return input_gradients(*graph, std::move(parts), /*first=*/learning);
  }

  // Input gradient and weight gradient each walk the graph as far as their own sources: what lies
  // between a parameter and the output is gone through twice.
  Tensors backward_input(Weights weights,
                         Gradients gradients,
                         const Tensors&,
                         Saved saved,
                         const Tensors& output_gradient,
                         const Pass&,
                         WeightWork& work) const override {
    const WeightScope own(*this, weights);
    const std::shared_ptr<Graph> graph = std::static_pointer_cast<Graph>(saved.graph);
    saved.graph.reset();
    const bool has_weight_gradient = !learning_parameters(gradients).empty();
    if (has_weight_gradient) {
      work = {output_gradient, graph};
    }
    Tensors sources;
    for (const at::Tensor& leaf : graph->inputs) {
      if (leaf.requires_grad()) {
        sources.push_back(leaf);
      }
    }
    return input_gradients(
        *graph,
        differentiate(*graph, sources, output_gradient, /*keeps_graph=*/has_weight_gradient),
        /*first=*/0);
  }

  void backward_weight(Weights weights, Gradients gradients, WeightWork work) const override {
    const Tensors sources = learning_parameters(gradients);
    if (sources.empty()) {
      return;
    }
    const WeightScope own(*this, weights);
    const std::shared_ptr<Graph> graph = std::static_pointer_cast<Graph>(work.graph);
    work.graph.reset();
    add(differentiate(*graph, sources, work.tensors), gradients);
  }

  // A module does not say what it keeps, so it is run once on zeros and the allocator asked. That is no
  // part of a step: it has an account of its own, and is done once for each shape.
  LayerSize size_for(const Shapes& inputs, at::ScalarType compute_type, int32_t) const override {
    const auto key = std::pair(compute_type, shape_key(inputs));
    if (const auto known = sizes_.find(key); known != sizes_.end()) {
      return known->second;
    }
    memory::install_cpu_allocator();
    static thread_local memory::Account& aside = memory::make_account();
    const memory::AccountScope scope(aside);
    Tensors weights, zeros;
    for (const ParameterSpec& spec : specs_) {
      weights.push_back(at::zeros(spec.shape, compute_type));
    }
    Pass pass{.wanted = 0};
    for (size_t i = 0; i < inputs.size(); ++i) {
      zeros.push_back(at::zeros(inputs[i].sizes, inputs[i].type));
      pass.wanted |= inputs[i].has_gradient ? uint64_t{1} << i : 0;
    }
    learn_randomness(weights, zeros, pass);
    const int64_t before = memory::usage().current_bytes;
    Saved saved;
    const Tensors output = forward(weights, zeros, pass, &saved);
    LayerSize size{.kept_bytes = memory::usage().current_bytes - before};
    const Graph& graph = *std::static_pointer_cast<Graph>(saved.graph);
    for (const at::Tensor& tensor : graph.outputs) {
      size.outputs.push_back(
          {tensor.sizes().vec(), tensor.scalar_type(), /*has_gradient=*/tensor.requires_grad()});
    }
    return sizes_[key] = size;
  }

 private:
  // The module's buffers while a forward runs: a copy, which the graph may hold on to. The first
  // forward goes on from where the micro-batch before it ended and leaves what it has changed; all
  // others are for nothing.
  class StateScope {
   public:
    StateScope(const ModuleLayer& layer, const Pass& pass) : layer_(layer), pass_(pass) {
      for (size_t i = 0; i < layer_.module_buffers_.size(); ++i) {
        const StateSpec& spec = layer_.state_[i];
        const at::Tensor from =
            pass_.state != nullptr && !pass_.state->current.empty()
                ? pass_.state->next.empty() ? pass_.state->current[i] : pass_.state->next[i]
                : at::zeros(spec.shape, spec.type);  // to measure by
        at::Tensor(layer_.module_buffers_[i]).set_data(from.clone());
      }
    }
    void commit() const {
      const c10::NoGradGuard no_grad;
      for (size_t i = 0; i < layer_.module_buffers_.size(); ++i) {
        if (pass_.state != nullptr && !pass_.state->next.empty()) {
          pass_.state->next[i].copy_(layer_.module_buffers_[i]);
        }
      }
    }
    ~StateScope() {
      for (size_t i = 0; i < layer_.module_buffers_.size(); ++i) {
        at::Tensor(layer_.module_buffers_[i])
            .set_data(at::empty({0}, layer_.module_buffers_[i].options()));
      }
    }
    StateScope(const StateScope&) = delete;
    StateScope& operator=(const StateScope&) = delete;

   private:
    const ModuleLayer& layer_;
    const Pass& pass_;
  };

  // The module's parameters while a call runs: windows onto the weights that were handed in. A graph
  // that outlives the call holds the windows, not the weights, so what was gathered for one use can go
  // after it; the backward opens them again onto the same numbers, wherever those lie by then.
  class WeightScope {
   public:
    WeightScope(const ModuleLayer& layer, Weights weights) : layer_(layer) {
      layer_.windows_.resize(layer_.module_parameters_.size());
      for (size_t i = 0; i < layer_.windows_.size(); ++i) {
        layer_.open_window(i, weights[i]);
      }
    }
    ~WeightScope() {
      for (const c10::Storage& window : layer_.windows_) {
        c10::Storage(window).set_data_ptr_noswap(c10::DataPtr(nullptr, c10::kCPU));
      }
    }
    WeightScope(const WeightScope&) = delete;
    WeightScope& operator=(const WeightScope&) = delete;

   private:
    const ModuleLayer& layer_;
  };

  void open_window(size_t i, const at::Tensor& weight) const {
    PENSTOCK_CHECK(
        weight.defined() && weight.is_contiguous(), "layer ", name_, ": a weight is missing");
    const at::Tensor& parameter = module_parameters_[i];
    c10::Storage& window = windows_[i];
    const bool is_new = !window || parameter.scalar_type() != weight.scalar_type() ||
                        parameter.storage().unsafeGetStorageImpl() != window.unsafeGetStorageImpl();
    if (is_new) {
      window = c10::Storage(c10::Storage::use_byte_size_t(),
                            weight.nbytes(),
                            c10::DataPtr(nullptr, c10::kCPU),
                            /*allocator=*/nullptr,
                            /*resizable=*/false);
    }
    auto* const held = new c10::Storage(weight.storage());
    window.set_data_ptr_noswap(c10::DataPtr(
        weight.data_ptr(),
        held,
        [](void* context) { delete static_cast<c10::Storage*>(context); },
        c10::kCPU));
    if (is_new) {
      // set_data leaves the parameter's identity as a leaf of graphs alone.
      const c10::NoGradGuard no_grad;
      at::Tensor(parameter).set_data(
          at::empty({0}, weight.options()).set_(window, 0, weight.sizes(), weight.strides()));
    }
  }

  Tensors call(const Tensors& input, const Pass& pass) const {
    return naming_layer(name_, "forward", input, [&] {
      if (!draws_) {
        return forward_(input);
      }
      const RandomScope random(pass);
      return forward_(input);
    });
  }

  static std::vector<std::vector<int64_t>> shape_key(const Shapes& inputs) {
    std::vector<std::vector<int64_t>> key;
    for (const TensorShape& shape : inputs) {
      std::vector<int64_t>& one = key.emplace_back(shape.sizes);
      one.push_back(static_cast<int64_t>(shape.type));
      one.push_back(shape.has_gradient ? 1 : 0);
    }
    return key;
  }

  // A module of the user's own may draw without a Dropout that could be seen.
  void learn_randomness(Weights weights, const Tensors& input, const Pass& pass) const {
    if (!draws_) {
      draws_ = draws_random_numbers([&] { forward(weights, input, pass, nullptr); });
    }
  }

  // In the order of the inputs; undefined where nobody waits for one.
  static Tensors input_gradients(const Graph& graph, Tensors parts, size_t first) {
    Tensors gradients;
    for (const at::Tensor& leaf : graph.inputs) {
      gradients.push_back(leaf.requires_grad() ? dense(std::move(parts[first++])) : at::Tensor());
    }
    return gradients;
  }

  // One gradient for each source, undefined where no output depends on it.
  Tensors differentiate(const Graph& graph,
                        const Tensors& sources,
                        const Tensors& output_gradient,
                        bool keeps_graph = false) const {
    Tensors outputs, gradients;
    for (size_t i = 0; i < graph.outputs.size(); ++i) {
      if (graph.outputs[i].requires_grad() && output_gradient[i].defined()) {
        outputs.push_back(graph.outputs[i]);
        gradients.push_back(output_gradient[i]);
      }
    }
    if (sources.empty() || outputs.empty()) {
      return Tensors(sources.size());
    }
    return naming_layer(name_, "backward", graph.inputs, [&] {
      return torch::autograd::grad(outputs,
                                   sources,
                                   gradients,
                                   keeps_graph,
                                   /*create_graph=*/false,
                                   /*allow_unused=*/true);
    });
  }

  // Those that somebody wants the gradients of: not frozen.
  Tensors learning_parameters(const Gradients& gradients) const {
    Tensors learning;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined()) {
        learning.push_back(module_parameters_[i]);
      }
    }
    return learning;
  }

  // `parts` begins with those of learning_parameters().
  static void add(const Tensors& parts, const Gradients& gradients) {
    const c10::NoGradGuard no_grad;
    size_t next = 0;
    for (at::Tensor& gradient : gradients) {
      if (!gradient.defined()) {
        continue;
      }
      if (const at::Tensor& part = parts[next++]; part.defined()) {
        gradient.add_(part);
      }
    }
  }

  std::string name_;
  std::shared_ptr<torch::nn::Module> module_;  // nothing: a function
  const ModuleClaim claim_;
  ModuleForward forward_;
  mutable std::atomic<bool> draws_;  // random numbers
  Tensors module_parameters_, module_buffers_;
  mutable std::vector<c10::Storage> windows_;  // of module_parameters_
  std::vector<ParameterSpec> specs_;
  std::vector<StateSpec> state_;
  // The graph may hold on to the output.
  std::vector<SaveMode> modes_{{"all", /*needs_output=*/true}};
  // By compute type and shapes of the inputs.
  using SizeKey = std::pair<at::ScalarType, std::vector<std::vector<int64_t>>>;
  mutable std::map<SizeKey, LayerSize> sizes_;
};

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
    Tensors gradients = torch::autograd::grad({sum},
                                              sources,
                                              {at::full_like(sum, scale)},
                                              /*retain_graph=*/false,
                                              /*create_graph=*/false,
                                              /*allow_unused=*/true);
    Result result{.sum = sum.item<double>()};
    size_t next = 0;
    for (const at::Tensor& leaf : leaves) {
      result.input_gradients.push_back(leaf.requires_grad() ? dense(std::move(gradients[next++]))
                                                            : at::Tensor());
    }
    return result;
  }

  int64_t count(const Tensors& targets) const override {
    return count_ ? count_(targets) : targets[0].numel();
  }

 private:
  at::Tensor call(const Tensors& input, const Tensors& targets) const {
    Tensors all = input;
    all.insert(all.end(), targets.begin(), targets.end());
    const at::Tensor sum =
        naming_layer(name_, "the loss", all, [&] { return function_(input, targets); });
    if (sum.numel() != 1) {
      throw ConfigError(cat("loss ",
                            name_,
                            " returns ",
                            shape_text(Tensors{sum}),
                            "; it must return one number, the sum over all targets"));
    }
    return sum;
  }

  std::string name_;
  LossOfMany function_;
  CountOfMany count_;
  std::vector<ParameterSpec> specs_;
};

}  // namespace

namespace detail {

void refuse_inputs(size_t count) {
  throw ConfigError(cat("its module has no forward of ",
                        count,
                        count == 1 ? " tensor" : " tensors",
                        ", which is how many its .reads names"));
}

}  // namespace detail

std::unique_ptr<Layer> make_module_layer(std::string name,
                                         std::shared_ptr<torch::nn::Module> module,
                                         ModuleForward forward) {
  return std::make_unique<ModuleLayer>(std::move(name), std::move(module), std::move(forward));
}

std::unique_ptr<Layer> function_layer(std::string name, ModuleForward forward) {
  return std::make_unique<ModuleLayer>(std::move(name), nullptr, std::move(forward));
}

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
