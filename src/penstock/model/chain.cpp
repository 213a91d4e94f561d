#include "penstock/model/chain.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/quote.h"
#include "penstock/base/units.h"
#include "penstock/program/program.h"

namespace penstock::model {

Chain& Chain::add(std::unique_ptr<Layer> layer, LayerOptions options) {
  if (loss_ != nullptr) {
    throw ConfigError(
        cat("layer ", layer->name(), " is added after the loss; end_with comes last"));
  }
  const auto has_its_name = [&](const auto& other) { return other->name() == layer->name(); };
  if (layer->name().empty() || std::any_of(layers_.begin(), layers_.end(), has_its_name)) {
    throw ConfigError(layer->name().empty()
                          ? std::string("a layer has no name")
                          : cat("two layers are called ",
                                layer->name(),
                                "; each has a name of its own, which its parameters begin with"));
  }
  const std::string name = layer->name();
  if (!std::isfinite(options.lr_scale) || options.lr_scale <= 0) {
    throw ConfigError(cat("layer ",
                          name,
                          ": lr_scale = ",
                          format_number(options.lr_scale),
                          "; it must be above 0, and is_frozen keeps weights as they are"));
  }
  for (const SaveMode& mode : layer->save_modes()) {
    if (!program::is_mode_name(mode.name)) {
      throw ConfigError(cat("layer ",
                            name,
                            ": a save mode cannot be called ",
                            in_quotes(mode.name),
                            "; a name has up to 64 letters, digits, _ and -, and is neither \"-\" "
                            "nor \"nothing\""));
    }
  }
  if (options.is_frozen && layer->can_skip_gradients()) {
    layer->freeze();
  }
  layers_.push_back(std::move(layer));
  names_.push_back({std::move(options.reads), std::move(options.writes)});
  learning_.push_back({options.lr_scale, options.is_frozen});
  const std::vector<ParameterSpec> specs = parameters_of(size() - 1);
  const bool has_frozen = std::any_of(
      specs.begin(), specs.end(), [](const ParameterSpec& spec) { return spec.is_frozen; });
  if (has_frozen && !layers_.back()->can_skip_gradients()) {
    throw ConfigError(cat("layer ",
                          name,
                          " cannot be frozen: its backward always computes the gradients of its "
                          "parameters; modules can (module_layer), and layers whose "
                          "can_skip_gradients() says so"));
  }
  return *this;
}

Chain& Chain::end_with(std::unique_ptr<Loss> loss, LossNames names) {
  if (loss_ != nullptr) {
    throw ConfigError(cat("the chain has a loss already: ", loss_->name()));
  }
  if (layers_.empty()) {
    throw ConfigError(cat("the chain of loss ", loss->name(), " has no layer"));
  }
  if (names.targets.empty()) {
    throw ConfigError(cat("loss ",
                          loss->name(),
                          " names no .targets, by which samples count; one that compares with what "
                          "the chain was given names that field, .targets = {\"inputs\"} say"));
  }
  std::vector<std::string> layer_names;
  for (const auto& layer : layers_) {
    layer_names.push_back(layer->name());
  }
  layer_names.push_back(loss->name());
  names_.push_back({.reads = std::move(names.reads)});
  edges_ = make_edges(names_, names.targets, layer_names);
  loss_ = std::move(loss);
  require_agreement();
  return *this;
}

// Of the chain's parameters, some learn; and each learns as all layers that share it say.
void Chain::require_agreement() const {
  std::map<std::string, std::pair<ParameterSpec, std::string>> known;  // with the first that has it
  bool has_any = false, learns = false;
  for (int64_t index = 0; index <= size(); ++index) {
    const std::string& user = index < size() ? layer(index).name() : loss().name();
    for (const ParameterSpec& spec : parameters_of(index)) {
      has_any = true;
      learns = learns || !spec.is_frozen;
      const auto [place, is_new] = known.try_emplace(spec.name, spec, user);
      const auto& [first, first_user] = place->second;
      if (!is_new && spec.init == ParameterSpec::Init::Given) {
        throw ConfigError(cat("layers ",
                              first_user,
                              " and ",
                              user,
                              " both have a parameter ",
                              spec.name,
                              "; give one of the layers another name"));
      }
      if (first.lr_scale != spec.lr_scale || first.is_frozen != spec.is_frozen) {
        throw ConfigError(cat(first_user,
                              " and ",
                              user,
                              " share the parameter ",
                              spec.name,
                              ": they must have the same lr_scale and is_frozen"));
      }
    }
  }
  if (has_any && !learns) {
    throw ConfigError("nothing learns: all parameters of the chain are frozen");
  }
}

std::vector<ParameterSpec> Chain::parameters_of(int64_t index) const {
  if (index == size()) {
    return loss().parameters();
  }
  std::vector<ParameterSpec> specs = layer(index).parameters();
  const Learning& learning = learning_[static_cast<size_t>(index)];
  for (ParameterSpec& spec : specs) {
    spec.lr_scale *= learning.lr_scale;
    spec.is_frozen = spec.is_frozen || learning.is_frozen;
  }
  return specs;
}

std::string Chain::kind_of(int64_t index) const {
  std::string kind = layer(index).kind();
  std::string learns;
  for (const ParameterSpec& spec : parameters_of(index)) {
    learns += spec.is_frozen ? '0' : '1';
  }
  return kind.empty() || learns.find('0') == std::string::npos ? kind
                                                               : cat(kind, ", learns ", learns);
}

const Edges& Chain::edges() const {
  if (loss_ == nullptr) {
    throw ConfigError("the chain has no loss: end it with Chain::end_with");
  }
  return edges_;
}

Fields Chain::example(int64_t samples) const {
  PENSTOCK_CHECK(example_ != nullptr, "a chain without an example of its batches");
  return example_(samples);
}

std::string Chain::description(int64_t samples) const {
  return description_ ? description_(samples)
                      : cat(size(), " layers of one's own, micro-batches of ", samples);
}

void Chain::forget_initial() {
  for (const auto& layer : layers_) {
    layer->forget_initial();
  }
}

bool Chain::is_random() const {
  return std::any_of(
      layers_.begin(), layers_.end(), [](const auto& layer) { return layer->is_random(); });
}

const Loss& Chain::loss() const {
  PENSTOCK_CHECK(loss_ != nullptr, "the chain has no loss: end it with Chain::end_with");
  return *loss_;
}

Part Chain::whole() const {
  Part part;
  for (int64_t i = 0; i < size(); ++i) {
    part.layers.push_back(i);
  }
  return part;
}

std::vector<ParameterSpec> Chain::parameters(const Part& part) const {
  std::vector<ParameterSpec> all;
  std::map<std::string, std::vector<int64_t>> known;
  const auto collect = [&](const std::vector<ParameterSpec>& specs) {
    for (const ParameterSpec& spec : specs) {
      const auto [place, is_new] = known.emplace(spec.name, spec.shape);
      if (is_new) {
        all.push_back(spec);
      }
      PENSTOCK_CHECK(place->second == spec.shape,
                     "two layers name the parameter ",
                     spec.name,
                     " with different shapes");
    }
  };
  for (const int64_t index : part.layers) {
    collect(parameters_of(index));
  }
  if (part.has_loss) {
    collect(parameters_of(size()));
  }
  return all;
}

namespace {

TensorShape field_shape(const std::map<std::string, TensorShape>& fields,
                        const std::string& name,
                        int64_t samples) {
  const auto found = fields.find(name);
  if (found == fields.end()) {
    std::string known;
    for (const auto& [other, shape] : fields) {
      known += cat(known.empty() ? "" : ", ", other);
    }
    throw ConfigError(cat("the chain reads \"",
                          name,
                          "\", which neither a layer makes nor the data has (it has ",
                          known,
                          ")"));
  }
  TensorShape shape = found->second;
  shape.sizes[0] = samples;
  shape.has_gradient = false;
  return shape;
}

Shapes pick(const std::vector<Place>& places, const Shapes& tuple, const Shapes& carried) {
  Shapes shapes;
  for (const Place& place : places) {
    shapes.push_back(place.carried < 0 ? tuple[static_cast<size_t>(place.position)]
                                       : carried[static_cast<size_t>(place.carried)]);
  }
  return shapes;
}

}  // namespace

Shapes ChainShapes::inputs_of(const Edges& all, int64_t layer) const {
  const size_t at = static_cast<size_t>(layer);
  return pick(all.inputs[at], edges[at], carried);
}

Shapes ChainShapes::outputs_of(const Edges& all, int64_t layer) const {
  const size_t at = static_cast<size_t>(layer);
  return pick(all.outputs[at], edges[at + 1], carried);
}

ChainShapes Chain::shapes_for(const std::map<std::string, TensorShape>& fields,
                              int64_t samples,
                              at::ScalarType compute_type,
                              bool is_training) const {
  ChainShapes shapes{.samples = samples};
  shapes.carried.resize(edges().carried.size());
  for (const std::string& name : edges_.first_fields) {
    shapes.edges.resize(1);
    shapes.edges[0].push_back(field_shape(fields, name, samples));
  }
  shapes.edges.resize(layers_.size() + 1);
  for (size_t i = 0; i < edges_.carried.size(); ++i) {
    if (edges_.carried[i].born < 0) {
      shapes.carried[i] = field_shape(fields, edges_.carried[i].name, samples);
    }
  }
  for (const std::string& name : edges_.target_fields) {
    shapes.targets.push_back(field_shape(fields, name, samples));
  }
  for (int64_t i = 0; i < size(); ++i) {
    const Shapes inputs = shapes.inputs_of(edges_, i);
    Shapes outputs = is_training ? layer(i).size_for(inputs, compute_type).outputs
                                 : layer(i).outputs_in_evaluation(inputs, compute_type);
    const std::vector<Place>& places = edges_.outputs[static_cast<size_t>(i)];
    if (outputs.size() != places.size()) {
      throw ConfigError(cat("layer ",
                            layer(i).name(),
                            " returns ",
                            outputs.size(),
                            " tensors, and its .writes names ",
                            places.size()));
    }
    if (is_training) {
      require_gradients_come_back(i, outputs);
    }
    Shapes& tuple = shapes.edges[static_cast<size_t>(i) + 1];
    tuple.resize(static_cast<size_t>(edges_.widths[static_cast<size_t>(i) + 1]));
    for (size_t k = 0; k < places.size(); ++k) {
      outputs[k].has_gradient = outputs[k].has_gradient && c10::isFloatingType(outputs[k].type);
      (places[k].carried < 0 ? tuple[static_cast<size_t>(places[k].position)]
                             : shapes.carried[static_cast<size_t>(places[k].carried)]) = outputs[k];
    }
  }
  return shapes;
}

// A layer that learns and says that no gradient comes back would be handed none.
void Chain::require_gradients_come_back(int64_t i, const Shapes& outputs) const {
  const std::vector<ParameterSpec> specs = parameters_of(i);
  const bool learns = std::any_of(
      specs.begin(), specs.end(), [](const ParameterSpec& spec) { return !spec.is_frozen; });
  const bool comes_back = std::any_of(outputs.begin(), outputs.end(), [](const TensorShape& shape) {
    return shape.has_gradient && c10::isFloatingType(shape.type);
  });
  if (learns && !comes_back) {
    throw ConfigError(cat(
        "layer ",
        layer(i).name(),
        " has parameters that learn, and says that no gradient comes back for what "
        "it makes; set TensorShape::has_gradient of its output, which a shape copied from that of "
        "token ids does not have"));
  }
}

std::map<std::string, TensorShape> shapes_of(const Fields& fields) {
  std::map<std::string, TensorShape> shapes;
  for (const auto& [name, tensor] : fields) {
    shapes[name] = {tensor.sizes().vec(), tensor.scalar_type(), /*has_gradient=*/false};
  }
  return shapes;
}

const at::Tensor& field_of(const Fields& fields, const std::string& name) {
  const auto found = fields.find(name);
  if (found == fields.end()) {
    throw ConfigError(cat("the batch has no field \"", name, "\", which the chain reads"));
  }
  return found->second;
}

// Autograd may hand out one tensor as the gradient of several inputs (of a sum, say), or as a part of a
// larger one. What is added to later must be nobody else's, and hold no more than it is counted as.
void add_gradient(at::Tensor& sum, at::Tensor part) {
  if (!part.defined()) {
    return;
  }
  if (sum.defined()) {
    sum.add_(part);
  } else {
    const bool is_ours = part.use_count() == 1 && part.storage().use_count() == 1 &&
                         part.is_contiguous() && part.storage().nbytes() == part.nbytes();
    sum = is_ours ? std::move(part) : part.clone(at::MemoryFormat::Contiguous);
  }
}

uint64_t wanted_gradients(const Edges& edges, const ChainShapes& shapes, int64_t layer) {
  uint64_t wanted = 0;
  const Shapes inputs = shapes.inputs_of(edges, layer);
  for (size_t i = 0; i < std::min<size_t>(64, inputs.size()); ++i) {
    const bool is_wanted = edges.has_gradient(layer, i) && inputs[i].has_gradient;
    wanted |= is_wanted ? uint64_t{1} << i : 0;
  }
  return wanted;
}

Tensors gather_inputs(const std::vector<Place>& places,
                      const Tensors& tuple,
                      const std::function<at::Tensor(int32_t carried)>& find) {
  Tensors tensors;
  tensors.reserve(places.size());
  for (const Place& place : places) {
    tensors.push_back(place.carried < 0 ? tuple[static_cast<size_t>(place.position)]
                                        : find(place.carried));
  }
  return tensors;
}

Tensors scatter_outputs(const std::vector<Place>& places,
                        Tensors made,
                        int32_t width,
                        const std::function<void(int32_t carried, at::Tensor tensor)>& take) {
  PENSTOCK_CHECK(made.size() >= places.size(),
                 "a layer made ",
                 made.size(),
                 " tensors where ",
                 places.size(),
                 " are expected");
  Tensors tuple(static_cast<size_t>(width));
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].carried < 0) {
      tuple[static_cast<size_t>(places[i].position)] = std::move(made[i]);
    } else {
      take(places[i].carried, std::move(made[i]));
    }
  }
  for (size_t i = places.size(); i < made.size(); ++i) {
    tuple.push_back(std::move(made[i]));
  }
  return tuple;
}

int64_t Chain::parameter_count() const {
  int64_t count = 0;
  for (const ParameterSpec& spec : parameters()) {
    count += spec.count();
  }
  return count;
}

}  // namespace penstock::model
