// The layer: the unit that can be timed, kept, recomputed, sharded and placed. See docs/layers.md.
//
// A layer is a description plus pure functions: it owns no tensor. Weights and gradients are handed
// in at each call, so that the same layer runs on gathered shards, on an older version of the
// weights, or on a copy in another precision.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "penstock/model/tensor_cut.h"

namespace penstock::model {

using Tensors = std::vector<at::Tensor>;
// A batch, or a part of one: its tensors by name, [samples, ...].
using Fields = std::map<std::string, at::Tensor>;

struct ParameterSpec {
  std::string name;  // as in checkpoints; layers that name the same parameter share it
  std::vector<int64_t> shape;
  enum class Init { Zeros, Ones, Normal, Given } init = Init::Zeros;
  double deviation = 0;            // for Normal
  bool has_weight_decay = true;    // biases and norms have none
  bool is_always_float32 = false;  // handed to the layer in float32 whatever the compute precision
  at::Tensor given;                // for Given
  // Zeros behind it in the flat buffers of weights and gradients, so that a GEMM may take more
  // rows than there are: libraries are fast only where sizes are round.
  int64_t padding = 0;
  // The layers that use it write a gradient that is fresh (see Gradients), so it need not be
  // cleared.
  bool is_gradient_overwritten = false;
  TensorCut cut = {};   // how the ranks of the tensor axis divide it
  double lr_scale = 1;  // its learning rate is the run's times this
  // Never moved: it has neither gradient nor optimizer state. For layers that can_skip_gradients().
  bool is_frozen = false;

  int64_t count() const;
};

// Handed to a layer in the order of its parameters().
using Weights = std::span<const at::Tensor>;
// Float32; a backward adds to them. What is `fresh` holds nothing yet: a layer whose parameter is
// is_gradient_overwritten writes it, which spares clearing and reading it. That of a frozen
// parameter is undefined: nobody wants it.
class Gradients {
 public:
  Gradients() = default;
  Gradients(std::span<at::Tensor> tensors,  // NOLINT(google-explicit-constructor)
            std::span<const uint8_t> fresh = {})
      : tensors_(tensors), fresh_(fresh) {}
  Gradients(Tensors& tensors) : tensors_(tensors) {}  // NOLINT(google-explicit-constructor)

  at::Tensor& operator[](size_t index) const { return tensors_[index]; }
  size_t size() const { return tensors_.size(); }
  bool is_fresh(size_t index) const { return index < fresh_.size() && fresh_[index] != 0; }
  auto begin() const { return tensors_.begin(); }
  auto end() const { return tensors_.end(); }

 private:
  std::span<at::Tensor> tensors_;
  std::span<const uint8_t> fresh_;
};

// What a layer changes beside gradients, such as the statistics of a batch norm; in the order of
// its state(). Every forward of a step sees the same `current`. All but recomputed forwards change
// `next`, which becomes current when the step is done. What a forward returns depends on `current`
// alone: a recomputed one finds no `next`.
struct LayerState {
  std::span<const at::Tensor> current;
  std::span<at::Tensor> next;        // empty: a forward that leaves no trace
  int64_t micro_batches_before = 0;  // whose forwards have left their traces in `next`
};

// Where in training a call stands. Random numbers depend on this alone.
struct Pass {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_sample = 0;  // index in the run of the micro-batch's first sample
  int64_t layer = 0;
  bool is_training = true;            // false: no dropout
  uint64_t wanted = ~uint64_t{0};     // bit i: somebody waits for the gradient of input i
  const LayerState* state = nullptr;  // of the layer, where it has any

  bool wants(size_t input) const { return input >= 64 || ((wanted >> input) & 1) != 0; }
};

// What a layer's forward keeps for its backward: all that backward needs, or less, with the rest
// recomputed in backward.
struct SaveMode {
  std::string name;           // as program::is_mode_name() has it
  bool needs_output = false;  // what it keeps shares storage with the output
};

// What a forward leaves for its backward, apart from its input and its weights.
struct Saved {
  int32_t mode = 0;  // set by the caller: index into Layer::save_modes()
  // Set by the caller: nobody will read the output, so the layer need not compute it. Only for save
  // modes that need no output; forward then returns nothing.
  bool without_output = false;
  Tensors tensors;
  // For layers whose backward is LibTorch's autograd: the input and output that carry the graph.
  std::shared_ptr<void> graph;
};

// What backward_weight still needs, left by backward_input. It may share storage with the input and
// the output's gradient, which must not be overwritten before backward_weight has run.
struct WeightWork {
  Tensors tensors;
  std::shared_ptr<void> graph;  // as in Saved
};

struct TensorShape {
  std::vector<int64_t> sizes;
  at::ScalarType type = at::kFloat;
  bool has_gradient = true;  // false: none comes back for it (token ids, a mask)

  int64_t elements() const;
  int64_t bytes() const;
};
using Shapes = std::vector<TensorShape>;
int64_t bytes_of(const Shapes& shapes);
std::string shape_text(const TensorShape& shape);  // "float [4, 16, 64]"
std::string shape_text(const Tensors& tensors);    // "(float [4, 16], bool [4])"

// For one shape of inputs: what comes out, and what must live between forward and backward in one
// save mode. That includes the outputs, and leaves out the inputs and the parameters.
struct LayerSize {
  Shapes outputs;
  int64_t kept_bytes = 0;
};

// What a layer changes beside gradients, declared like a parameter.
struct StateSpec {
  std::string name;  // as in checkpoints
  std::vector<int64_t> shape;
  at::ScalarType type = at::kFloat;
  at::Tensor initial;  // its first values
  // How what replicas have made of it in an update becomes one: their mean (statistics), the sum of
  // what each has added (counters), the largest (amax, flags).
  enum class Merge { Mean, Sum, Max } merge = Merge::Mean;
};

class Layer {
 public:
  virtual ~Layer() = default;

  virtual const std::string& name() const = 0;
  virtual const std::vector<ParameterSpec>& parameters() const = 0;

  virtual const std::vector<StateSpec>& state() const;
  // The first values of parameters and state have been taken; from here on they only cost memory.
  virtual void forget_initial() {}

  // Layers of one kind cost the same for the same input. Empty: alone of its kind.
  virtual std::string kind() const { return ""; }

  // Whether its results depend on the pass beside weights and input: a step with such layers cannot
  // be recorded and replayed.
  virtual bool is_random() const { return true; }

  // At least one; the first keeps most and goes backward fastest.
  virtual const std::vector<SaveMode>& save_modes() const = 0;

  // Runs the layer. With `saved` it keeps what backward needs, in the save mode that `saved` names;
  // without, it keeps nothing. All give the same bits, and so do their backwards.
  virtual Tensors forward(Weights weights,
                          const Tensors& input,
                          const Pass& pass,
                          Saved* saved) const = 0;

  // Gradients of the inputs, given those of the outputs; adds the parameters' gradients to
  // `gradients`. Consumes `saved`. An input that carries no gradient (token ids), or that nobody wants
  // one of (Pass::wants), gets an undefined tensor.
  virtual Tensors backward(Weights weights,
                           Gradients gradients,
                           const Tensors& input,
                           Saved saved,
                           const Tensors& output_gradient,
                           const Pass& pass) const = 0;

  // Whether backward, or backward_input, reads the weights. Where not, they need not be gathered
  // for it, and it may get undefined tensors.
  virtual bool backward_needs_weights() const { return true; }

  // Whether backward_weight reads the weights, too. Where not, it may get undefined tensors.
  virtual bool weight_gradient_needs_weights() const { return false; }

  // Whether its parameters may be frozen, each by itself: backward then finds an undefined gradient
  // for each that is, and computes none. Others are only given gradients that are there.
  virtual bool can_skip_gradients() const { return false; }
  // All its parameters are frozen: from here on a forward need keep nothing for their gradients.
  virtual void freeze() {}

  // What backward hands on beside the gradient of the input, for the layer below: where that layer
  // is with another rank, it is sent too. The same for every input.
  virtual std::vector<TensorShape> beside_gradient() const { return {}; }

  // The backward split into input gradient and weight gradient, for schedules that fill a wait with
  // the latter: the gradient of the input at once, those of the parameters later. Both may add to
  // `gradients`, each parameter in one of the two. Run in the same order of micro-batches as whole
  // backwards, they give the same bits. The weights must be the same in both. A layer that does not
  // ask for them in backward_weight (weight_gradient_needs_weights) finds what it needs of them in
  // `work`.
  //
  // A layer that does not say how to split its backward does everything in backward_input.
  virtual Tensors backward_input(Weights weights,
                                 Gradients gradients,
                                 const Tensors& input,
                                 Saved saved,
                                 const Tensors& output_gradient,
                                 const Pass& pass,
                                 WeightWork& work) const;
  virtual void backward_weight(Weights weights, Gradients gradients, WeightWork work) const;

  // Shapes, without running anything where the layer knows; otherwise some forwards on stand-ins.
  virtual LayerSize size_for(const Shapes& inputs,
                             at::ScalarType compute_type,
                             int32_t mode = 0) const = 0;
  // Where an evaluation has other inputs than training, the last ones say.
  virtual Shapes outputs_in_evaluation(const Shapes& inputs, at::ScalarType compute_type) const;
};

// The end of a chain: turns what reaches it into the loss. Forward and backward are one
// call, so that logits exist for a few rows at a time and never wait for their backward.
class Loss {
 public:
  virtual ~Loss() = default;

  virtual const std::string& name() const = 0;
  virtual const std::vector<ParameterSpec>& parameters() const = 0;

  // What the model predicts: logits, say.
  virtual at::Tensor predict(Weights weights, const Tensors& input) const = 0;

  // Sum of the losses over all targets that count.
  virtual double evaluate(Weights weights, const Tensors& input, const Tensors& targets) const = 0;

  struct Result {
    double sum = 0;  // of the losses, not scaled
    // Where the sum will be once the device has been waited for; then `sum` means nothing.
    const double* pending_sum = nullptr;
    Tensors input_gradients;  // of scale * sum
  };
  // Adds the parameters' gradients of scale * sum to `gradients`.
  virtual Result backward(Weights weights,
                          Gradients gradients,
                          const Tensors& input,
                          const Tensors& targets,
                          double scale) const = 0;

  // Whether backward draws from LibTorch's generator: then it is called in a RandomScope
  // (module_random.h).
  virtual bool is_random() const { return false; }

  // How many targets count: the divisor that turns a sum into a mean.
  virtual int64_t count(const Tensors& targets) const = 0;
};

// Targets that are not negative, which is how a token target counts.
int64_t count_targets(const Tensors& targets);

}  // namespace penstock::model
