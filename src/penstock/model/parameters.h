// All parameters of a chain in flat buffers: float32 weights, their gradients and, for a lower
// compute precision, a copy of the weights in it. Each parameter is a view. Flat buffers make norm,
// optimizer, sharding and saving single passes.
#pragma once

#include <map>
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

  // For layer i of the chain; i == chain.size() is the loss.
  Weights weights_of(int64_t layer) const { return layer_weights_[static_cast<size_t>(layer)]; }
  Gradients gradients_of(int64_t layer) { return layer_gradients_[static_cast<size_t>(layer)]; }

  // On a GPU those that a product will overwrite are only marked as empty.
  void zero_gradients();
  // Zeros those that nobody has written since: to be called before gradients are read as a whole.
  void complete_gradients();
  // Brings the compute copies up to date; to be called whenever weights have changed.
  void refresh_compute();

 private:
  void place(const std::vector<ParameterSpec>& specs);
  void initialise(uint64_t seed);

  device::Device device_;
  at::ScalarType compute_type_;
  std::vector<Parameter> all_;
  std::map<std::string, size_t> index_;
  int64_t count_ = 0;
  at::Tensor weights_, gradients_, compute_;
  std::vector<Tensors> layer_weights_, layer_gradients_;
};

}  // namespace penstock::model
