// The model as a sequence of layers and the loss at its end.
//
//   Chain chain;
//   chain.add(embedding, {.reads = {"tokens"}, .writes = {"x", "mask"}});
//   chain.add(block, {.reads = {"x", "mask"}});        // makes "x" anew; "mask" passes by
//   chain.end_with(loss, {.reads = {"x"}, .targets = {"labels"}});
//
// Without names a layer reads what the one before it makes, the first "inputs" of the batch, and the
// loss compares with "targets".
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "penstock/model/edges.h"
#include "penstock/model/layer.h"

namespace penstock::model {

// Some layers of a chain: those that a rank has.
struct Part {
  std::vector<int64_t> layers;  // ascending
  bool has_loss = true;
};

// What enters each layer, and the loss, in micro-batches of one size.
struct ChainShapes {
  std::vector<Shapes> edges;  // the tuples; the last enters the loss
  Shapes carried;             // what more than the next layer reads, as Edges numbers it
  Shapes targets;
  int64_t samples = 0;

  // What a layer takes and what it makes, in its own order.
  Shapes inputs_of(const Edges& edges, int64_t layer) const;
  Shapes outputs_of(const Edges& edges, int64_t layer) const;
};

// A layer's place in a chain, and how it learns.
struct LayerOptions {
  // Names of what it takes and returns, as in Names.
  std::vector<std::string> reads = {};
  std::vector<std::string> writes = {};
  double lr_scale = 1;  // the learning rate of all its parameters is the run's times this
  // Its parameters stay as they are: they have neither gradient nor optimizer state. ConfigError
  // where the layer cannot go backward without their gradients (Layer::can_skip_gradients).
  bool is_frozen = false;
};

struct LossNames {
  std::vector<std::string> reads = {};  // none: what the last layer makes
  std::vector<std::string> targets = {"targets"};
};

class Chain {
 public:
  // ConfigError where the name is taken, or empty.
  Chain& add(std::unique_ptr<Layer> layer, LayerOptions options = {});
  // The last call: from here on the chain is complete. ConfigError where names do not go together,
  // where layers disagree about how a parameter that they share learns, and where nothing learns.
  Chain& end_with(std::unique_ptr<Loss> loss, LossNames names = {});

  int64_t size() const { return static_cast<int64_t>(layers_.size()); }
  const Layer& layer(int64_t index) const { return *layers_[static_cast<size_t>(index)]; }
  const Loss& loss() const;
  const Edges& edges() const;

  // Every parameter once, in the order of the chain. Shared ones appear where they come first.
  // Throws InternalError when two layers disagree about a shared one.
  std::vector<ParameterSpec> parameters() const { return parameters(whole()); }
  std::vector<ParameterSpec> parameters(const Part& part) const;
  // Of layer i, with the learning rate that it was added with, and frozen where it was; for
  // i == size() of the loss.
  std::vector<ParameterSpec> parameters_of(int64_t index) const;
  // Layer::kind(), told apart by what of it is frozen.
  std::string kind_of(int64_t index) const;
  Part whole() const;
  int64_t parameter_count() const;
  bool is_random() const;  // see Layer
  void forget_initial();   // likewise, of all layers

  // A batch to measure with: fields like those that it will be trained on.
  using Example = std::function<Fields(int64_t samples)>;
  void set_example(Example example) { example_ = std::move(example); }
  Fields example(int64_t samples) const;

  // For people: "12 layers, width 768, micro-batches of 4 x 1024".
  using Description = std::function<std::string(int64_t samples)>;
  void set_description(Description description) { description_ = std::move(description); }
  std::string description(int64_t samples) const;

  // For batches of so many samples with these fields; those of `shapes` may be of any number of samples.
  // ConfigError where a layer does not go with what it is given: it names the layer and the shapes.
  // is_training: else of an evaluation.
  ChainShapes shapes_for(const std::map<std::string, TensorShape>& fields,
                         int64_t samples,
                         at::ScalarType compute_type,
                         bool is_training = true) const;

  // Of a user's own layers: what goes wrong in one may be theirs to mend, and names it.
  void set_own() { is_own_ = true; }
  bool is_own() const { return is_own_; }

 private:
  bool is_own_ = false;
  std::vector<std::unique_ptr<Layer>> layers_;
  void require_agreement() const;
  void require_gradients_come_back(int64_t i, const Shapes& outputs) const;

  struct Learning {
    double lr_scale = 1;
    bool is_frozen = false;
  };
  std::vector<Names> names_;
  std::vector<Learning> learning_;  // of each layer
  std::unique_ptr<Loss> loss_;
  Edges edges_;
  Example example_;
  Description description_;
};

// Of these tensors.
std::map<std::string, TensorShape> shapes_of(const Fields& fields);
// One field; ConfigError where the batch has none of that name.
const at::Tensor& field_of(const Fields& fields, const std::string& name);

// The tensors that a layer takes, from the tuple of its edge and what is carried; find(element) gives
// the latter.
Tensors gather_inputs(const std::vector<Place>& places,
                      const Tensors& tuple,
                      const std::function<at::Tensor(int32_t carried)>& find);
// The other way round: what a layer returns goes into the tuple, of `width` tensors, or to
// take(element, tensor). What comes after the places' tensors follows the tuple's.
Tensors scatter_outputs(const std::vector<Place>& places,
                        Tensors made,
                        int32_t width,
                        const std::function<void(int32_t carried, at::Tensor tensor)>& take);

// Adds to the gradient of what several layers read; the first becomes the sum, in storage of its own.
void add_gradient(at::Tensor& sum, at::Tensor part);

// Bits for Pass::wanted: the inputs of a layer whose gradients somebody waits for.
uint64_t wanted_gradients(const Edges& edges, const ChainShapes& shapes, int64_t layer);

}  // namespace penstock::model
