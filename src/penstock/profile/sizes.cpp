// A cost table by the shapes of layers.
#include <algorithm>

#include "penstock/device/device.h"
#include "penstock/memory/gpu_account.h"
#include "penstock/model/chain.h"
#include "penstock/model/parameters.h"
#include "penstock/profile/profile.h"

namespace penstock::profile {

int64_t held_bytes(const device::Device& device, int64_t bytes) {
  return device.is_gpu() ? memory::gpu_block_bytes(bytes) : bytes;
}

plan::CostTable sizes_of(const model::Chain& chain,
                         at::ScalarType compute_type,
                         const device::Device& device,
                         const at::Tensor& inputs,
                         const at::Tensor& targets) {
  plan::CostTable table;
  model::TensorShape shape{inputs.sizes().vec(), inputs.scalar_type()};
  for (int64_t i = 0; i < chain.size(); ++i) {
    const model::Layer& layer = chain.layer(i);
    const model::LayerSize size = layer.size_for(shape, compute_type);
    const bool needs_output = layer.ways().front().needs_output;
    table.layers.push_back({.name = layer.name(),
                            .kind = layer.kind(),
                            .input_bytes = held_bytes(device, shape.bytes()),
                            .output_bytes = held_bytes(device, size.output.bytes()),
                            .ways = {{.name = layer.ways().front().name,
                                      .saved_bytes = std::max(
                                          size.kept_bytes, held_bytes(device, size.output.bytes())),
                                      .needs_output = needs_output}}});
    if (i > 0) {
      int64_t gradient = held_bytes(device, shape.bytes());
      for (const model::TensorShape& beside : layer.beside_gradient()) {
        gradient += held_bytes(device, beside.bytes());
      }
      table.layers[static_cast<size_t>(i)].input_gradient_bytes = gradient;
      table.layers[static_cast<size_t>(i) - 1].output_gradient_bytes = gradient;
    }
    shape = size.output;
  }
  table.loss.name = chain.loss().name();
  table.target_bytes = held_bytes(device, static_cast<int64_t>(targets.nbytes()));
  return table;
}

plan::CostTable sizes_of(const model::Chain& chain,
                         const model::Parameters& parameters,
                         const at::Tensor& inputs,
                         const at::Tensor& targets) {
  return sizes_of(chain, parameters.compute_type(), parameters.device(), inputs, targets);
}

}  // namespace penstock::profile
