#include "penstock/model/module_layer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/layer_error.h"
#include "penstock/model/module_buffers.h"
#include "penstock/model/module_graph.h"
#include "penstock/model/module_parts.h"
#include "penstock/model/module_random.h"
#include "penstock/model/module_weights.h"

namespace penstock::model {

namespace {

// To measure by: numbers that most functions are defined for, and of integers zeros, which are always an
// index.
at::Tensor stand_in(const std::vector<int64_t>& shape,
                    at::ScalarType type,
                    double from,
                    double to) {
  at::Tensor tensor = at::zeros(shape, type);
  if (tensor.is_floating_point()) {
    tensor.uniform_(from, to, at::make_generator<at::CPUGeneratorImpl>(/*seed=*/1));
  } else if (type == at::kBool) {
    tensor.fill_(true);
  }
  return tensor;
}

bool has_same_bits(const Tensors& ones, const Tensors& others) {
  return std::equal(ones.begin(),
                    ones.end(),
                    others.begin(),
                    others.end(),
                    [](const at::Tensor& one, const at::Tensor& other) {
                      return one.sizes() == other.sizes() && one.nbytes() == other.nbytes() &&
                             std::memcmp(
                                 one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
                    });
}

std::string shapes_text(const Shapes& shapes) {
  std::vector<std::string> texts;
  for (const TensorShape& shape : shapes) {
    texts.push_back(shape_text(shape));
  }
  return join(texts, ", ");
}

class ModuleLayer final : public Layer {
 public:
  ModuleLayer(std::string name, std::shared_ptr<torch::nn::Module> module, ModuleForward forward)
      : name_(std::move(name)),
        module_(std::move(module)),
        claim_(name_, module_.get()),
        modes_of_parts_(module_.get()),
        weights_(name_, module_.get()),
        buffers_(name_, module_.get()),
        forward_(std::move(forward)),
        draws_(module_ && has_dropout(*module_)) {}

  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return weights_.specs(); }
  const std::vector<StateSpec>& state() const override { return buffers_.specs(); }
  const std::vector<SaveMode>& save_modes() const override { return modes_; }
  bool is_random() const override { return draws_; }

  void forget_initial() override {
    weights_.forget_initial();
    buffers_.forget_initial();
  }

  bool can_skip_gradients() const override { return true; }
  void freeze() override { weights_.freeze(); }

  // Autograd walks from the output to the parameters, through the weights between.
  bool weight_gradient_needs_weights() const override { return !parameters().empty(); }

  Tensors forward(Weights weights,
                  const Tensors& input,
                  const Pass& pass,
                  Saved* saved) const override {
    const ModuleWeights::Scope own(weights_, weights);
    modes_of_parts_.set(pass.is_training);
    const ModuleBuffers::Forward buffers(buffers_, pass.state);
    const bool has_graph = saved != nullptr || (drops_a_graph_ && pass.is_training);
    const c10::AutoGradMode grad_mode(has_graph);
    auto graph = std::make_shared<Graph>();
    for (size_t i = 0; i < input.size(); ++i) {
      at::Tensor& leaf = graph->inputs.emplace_back(input[i].detach());
      if (has_graph && leaf.is_floating_point() && pass.wants(i)) {
        leaf.set_requires_grad(true);
      }
    }
    call(*graph, own, buffers, pass);
    Tensors output;
    for (const at::Tensor& tensor : graph->outputs) {
      output.push_back(tensor.detach());
    }
    if (saved != nullptr) {
      graph->buffers = buffers.saved_by_autograd();
      saved->graph = std::move(graph);
    }
    return output;
  }

  Tensors backward(Weights weights,
                   Gradients gradients,
                   const Tensors&,
                   Saved saved,
                   const Tensors& output_gradient,
                   const Pass&) const override {
    const ModuleWeights::Scope own(weights_, weights);
    const std::shared_ptr<Graph> graph = std::static_pointer_cast<Graph>(saved.graph);
    saved.graph.reset();
    const ModuleBuffers::Backward buffers(buffers_, graph->buffers);
    Tensors sources = learning_parameters(gradients);
    const size_t learning = sources.size();
    for (const at::Tensor& leaf : graph->inputs) {
      if (leaf.requires_grad()) {
        sources.push_back(leaf);
      }
    }
    Tensors parts = differentiate(name_, *graph, sources, output_gradient, /*keeps_graph=*/false);
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
    const ModuleWeights::Scope own(weights_, weights);
    const std::shared_ptr<Graph> graph = std::static_pointer_cast<Graph>(saved.graph);
    saved.graph.reset();
    const ModuleBuffers::Backward buffers(buffers_, graph->buffers);
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
        differentiate(name_, *graph, sources, output_gradient, /*keeps_graph=*/has_weight_gradient),
        /*first=*/0);
  }

  void backward_weight(Weights weights, Gradients gradients, WeightWork work) const override {
    const Tensors sources = learning_parameters(gradients);
    if (sources.empty()) {
      return;
    }
    const ModuleWeights::Scope own(weights_, weights);
    const std::shared_ptr<Graph> graph = std::static_pointer_cast<Graph>(work.graph);
    work.graph.reset();
    const ModuleBuffers::Backward buffers(buffers_, graph->buffers);
    add(differentiate(name_, *graph, sources, work.tensors, /*keeps_graph=*/false), gradients);
  }

  // A module does not say what it keeps, so it is run on stand-ins and the allocator asked. That is no
  // part of a step: it has an account of its own, and is done once for each shape.
  LayerSize size_for(const Shapes& inputs, at::ScalarType compute_type, int32_t) const override {
    LayerSize& size = sizes_[{compute_type, shape_key(inputs)}];
    if (size.outputs.empty()) {
      measure(inputs, compute_type, [&](const StandIns& given) { size = measured(given); });
    }
    return size;
  }

  // What fails in training alone, a norm over one sample say, may do in evaluation.
  Shapes outputs_in_evaluation(const Shapes& inputs, at::ScalarType compute_type) const override {
    Shapes& outputs = evaluations_[{compute_type, shape_key(inputs)}];
    if (outputs.empty()) {
      measure(inputs, compute_type, [&](const StandIns& given) {
        outputs = shapes_of(forward(given.weights, given.inputs, given.evaluation(), nullptr));
      });
    }
    return outputs;
  }

 private:
  struct StandIns {
    Tensors weights, inputs;
    Pass pass;

    Pass evaluation() const {
      Pass other = pass;
      other.is_training = false;
      return other;
    }
  };

  template <typename Work>
  void measure(const Shapes& inputs, at::ScalarType compute_type, const Work& work) const {
    memory::install_cpu_allocator();
    static thread_local memory::Account& aside = memory::make_account();
    const memory::AccountScope scope(aside);
    StandIns given{.pass = {.wanted = 0}};
    for (const ParameterSpec& spec : parameters()) {
      given.weights.push_back(stand_in(spec.shape, compute_type, -0.1, 0.1));
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      given.inputs.push_back(stand_in(inputs[i].sizes, inputs[i].type, 0.25, 0.75));
      given.pass.wanted |= inputs[i].has_gradient ? uint64_t{1} << i : 0;
    }
    naming_layer(name_, "measured by a forward", given.inputs, [&] {
      work(given);
      return 0;
    });
  }

  // Beside the size, all that has to be known of a layer before its first step.
  LayerSize measured(const StandIns& given) const {
    learn_randomness(given);
    const int64_t before = memory::usage().current_bytes;
    Saved saved;
    const Tensors output = forward(given.weights, given.inputs, given.pass, &saved);
    LayerSize size{.outputs = shapes_of(output),
                   .kept_bytes = memory::usage().current_bytes - before};
    const Graph& graph = *std::static_pointer_cast<Graph>(saved.graph);
    for (size_t i = 0; i < output.size(); ++i) {
      size.outputs[i].has_gradient = graph.outputs[i].requires_grad();
    }
    refuse_stray_parameters(graph, given);
    // LibTorch may choose another kernel where nobody will ask for a gradient. A forward that keeps
    // nothing must have the bits of one that keeps: then it makes a graph, and drops it.
    if (!drops_a_graph_ &&
        !has_same_bits(output, forward(given.weights, given.inputs, given.pass, nullptr))) {
      drops_a_graph_ = true;
    }
    const Shapes evaluated =
        shapes_of(forward(given.weights, given.inputs, given.evaluation(), nullptr));
    if (shapes_text(evaluated) != shapes_text(size.outputs)) {
      throw LayerError(cat("layer ",
                           name_,
                           ": in evaluation it returns ",
                           shapes_text(evaluated),
                           ", and in training ",
                           shapes_text(size.outputs)));
    }
    return size;
  }

  // Fills in the graph's outputs.
  void call(Graph& graph,
            const ModuleWeights::Scope& weights,
            const ModuleBuffers::Forward& buffers,
            const Pass& pass) const {
    naming_layer(name_, "forward", graph.inputs, [&] {
      for (const at::Tensor& tensor : graph.inputs) {
        PENSTOCK_CHECK(tensor.is_cpu(), "torch::nn modules run on the CPU");
      }
      const InPlaceCheck in_place(graph.inputs);
      Tensors made = draw_and_call(graph.inputs, pass);
      in_place.require_unchanged();
      weights.require_unchanged();
      buffers.commit();
      for (at::Tensor& tensor : made) {
        graph.outputs.push_back(own_and_compact(tensor, graph));
      }
      return 0;
    });
  }

  Tensors draw_and_call(const Tensors& input, const Pass& pass) const {
    std::optional<RandomScope> random;
    if (draws_) {
      random.emplace(pass);
    }
    try {
      return forward_(input);
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      if (text.find("leaf Variable that requires grad") != std::string::npos) {
        refuse_in_place();
      }
      throw;
    }
  }

  // What the next layer gets: memory of its own, as many bytes as it is counted as, and no window onto
  // weights, which are gone by then. The graph goes on from there, so it need not hold both.
  at::Tensor own_and_compact(const at::Tensor& tensor, const Graph& graph) const {
    if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.is_cpu()) {
      throw ConfigError(cat(
          "it returns ",
          !tensor.defined() ? "an undefined tensor" : "a tensor that is sparse or not on the CPU",
          "; return dense tensors alone"));
    }
    const auto shares = [&](const at::Tensor& other) { return other.is_alias_of(tensor); };
    const bool is_shared = weights_.is_window(tensor) || buffers_.has(tensor) ||
                           std::any_of(graph.inputs.begin(), graph.inputs.end(), shares) ||
                           std::any_of(graph.outputs.begin(), graph.outputs.end(), shares);
    return is_shared ? tensor.clone(at::MemoryFormat::Contiguous) : compact(tensor);
  }

  static Shapes shapes_of(const Tensors& tensors) {
    Shapes shapes;
    for (const at::Tensor& tensor : tensors) {
      shapes.push_back({tensor.sizes().vec(), tensor.scalar_type(), /*has_gradient=*/false});
    }
    return shapes;
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
  void learn_randomness(const StandIns& given) const {
    const auto draws = [&](const Pass& pass) {
      return draws_random_numbers([&] { forward(given.weights, given.inputs, pass, nullptr); });
    };
    if (!draws_) {
      draws_ = draws(given.pass);
    }
    if (!module_ && draws_ && draws(given.evaluation())) {
      throw LayerError(
          cat("layer ",
              name_,
              ": a function does not know whether it runs in training, and it draws random numbers "
              "in evaluation, too; make a module of it, such as Dropout, and the layer by "
              "module_layer"));
    }
  }

  // A leaf that is there again in a second forward is none that the first has made.
  void refuse_stray_parameters(const Graph& graph, const StandIns& given) const {
    const auto find = [&](const Graph& one) {
      Tensors known = weights_.parameters();
      known.insert(known.end(), one.inputs.begin(), one.inputs.end());
      return find_stray_parameter(one.outputs, known);
    };
    const at::Tensor stray = find(graph);
    if (!stray.defined()) {
      return;
    }
    Saved again;
    forward(given.weights, given.inputs, given.pass, &again);
    if (find(*std::static_pointer_cast<Graph>(again.graph)).is_same(stray)) {
      throw LayerError(cat("layer ",
                           name_,
                           ": its function uses a parameter ",
                           shape_text(Tensors{stray}),
                           " that its module does not have, so nothing would move it; register it "
                           "in a module, and make the layer by module_layer"));
    }
  }

  // In the order of the inputs; undefined where nobody waits for one.
  static Tensors input_gradients(const Graph& graph, Tensors parts, size_t first) {
    Tensors gradients;
    for (const at::Tensor& leaf : graph.inputs) {
      gradients.push_back(leaf.requires_grad() ? own_gradient(std::move(parts[first++]))
                                               : at::Tensor());
    }
    return gradients;
  }

  // Those that somebody wants the gradients of: not frozen.
  Tensors learning_parameters(const Gradients& gradients) const {
    Tensors learning;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined()) {
        learning.push_back(weights_.parameters()[i]);
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
  const ModuleModes modes_of_parts_;
  ModuleWeights weights_;
  ModuleBuffers buffers_;
  ModuleForward forward_;
  mutable std::atomic<bool> draws_;  // random numbers
  mutable std::atomic<bool> drops_a_graph_ = false;
  // The graph may hold on to the output.
  std::vector<SaveMode> modes_{{"all", /*needs_output=*/true}};
  // By compute type and shapes of the inputs.
  using SizeKey = std::pair<at::ScalarType, std::vector<std::vector<int64_t>>>;
  mutable std::map<SizeKey, LayerSize> sizes_;
  mutable std::map<SizeKey, Shapes> evaluations_;
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

}  // namespace penstock::model
