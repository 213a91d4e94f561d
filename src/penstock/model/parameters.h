// All parameters of a chain in flat buffers: float32 weights, their gradients and, for a lower
// compute precision, a copy of the weights in it. Each parameter is a view. Flat buffers make norm,
// optimizer, sharding and saving single passes.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "penstock/device/device.h"
#include "penstock/model/chain.h"

namespace penstock::model {

struct Parameter {
  ParameterSpec spec;
  int64_t offset = 0;   // into the flat buffers, in elements; 64-byte aligned
  at::Tensor weight;    // float32
  at::Tensor gradient;  // float32
  at::Tensor compute;   // what layers see: the weight itself, or its copy in the compute precision
};

class Parameters {
 public:
  // Allocates and initialises. The value of an element depends on (seed, name, index) alone.
  Parameters(const Chain& chain,
             at::ScalarType compute_type,
             uint64_t seed,
             const device::Device& device = device::open_cpu());
  Parameters(const Chain& chain,
             const Part& part,
             at::ScalarType compute_type,
             uint64_t seed,
             const device::Device& device);

  // What a flat buffer of these parameters has, padding included.
  static int64_t flat_elements(const std::vector<ParameterSpec>& specs);

  ~Parameters();
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  const std::vector<Parameter>& all() const { return all_; }
  const Parameter* find(const std::string& name) const;
  int64_t count() const { return count_; }  // elements, without padding
  at::ScalarType compute_type() const { return compute_type_; }
  const device::Device& device() const { return device_; }

  // Flat buffers, padding included (padding is always zero).
  at::Tensor flat_weights() const { return weights_; }
  at::Tensor flat_gradients() const { return gradients_; }
  at::Tensor flat_compute() const { return compute_; }  // the weights themselves in float32

  // For layer i of the chain; i == chain.size() is the loss. Empty for layers of other ranks.
  Weights weights_of(int64_t layer) const { return layer_weights_[static_cast<size_t>(layer)]; }
  Gradients gradients_of(int64_t layer) { return layer_gradients_[static_cast<size_t>(layer)]; }

  // What layers see of the weights, copied, so that they can be worked with when the weights have moved
  // on; and the bytes of a copy.
  Tensors copy_weights() const;
  static int64_t copy_bytes(const std::vector<ParameterSpec>& specs, at::ScalarType compute_type);
  // Of layer i, in a copy. Views: they hold no memory beside the copy's.
  Tensors weights_in(const Tensors& copy, int64_t layer) const;

  // On a GPU those that a product will overwrite are only marked as empty.
  void zero_gradients();
  // To be called before gradients are read as a whole. Zeros those that nobody has written since, and
  // adds up the shares of those that several layers have part in.
  void complete_gradients();
  // Brings the compute copies up to date; to be called whenever weights have changed.
  void refresh_compute();

 private:
  void place(const std::vector<ParameterSpec>& specs);
  void initialise(uint64_t seed);
  void collect(int64_t layer, const std::vector<ParameterSpec>& specs, std::set<std::string>& seen);

  device::Device device_;
  at::ScalarType compute_type_;
  std::vector<Parameter> all_;
  std::map<std::string, size_t> index_;
  int64_t count_ = 0;
  at::Tensor weights_, gradients_, compute_;
  std::vector<Tensors> layer_weights_, layer_gradients_;
  std::vector<std::vector<size_t>> layer_parameters_;  // indices into all_
  // CPU: a parameter that several layers share (an embedding's table that is the head's, too) has a
  // gradient for each but the first, added up when all micro-batches are done. That is the order in
  // which ranks that have these layers apart add them.
  struct Share {
    at::Tensor whole, own;
  };
  std::vector<Share> shares_;
};

}  // namespace penstock::model
