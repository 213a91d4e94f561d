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

std::vector<plan::CarriedCost> carried_costs(const model::Chain& chain,
                                             const model::ChainShapes& shapes,
                                             const device::Device& device) {
  std::vector<plan::CarriedCost> costs;
  for (size_t i = 0; i < shapes.carried.size(); ++i) {
    const model::CarriedName& named = chain.edges().carried[i];
    const int64_t bytes = held_bytes(device, shapes.carried[i].bytes());
    const bool has_gradient = named.born >= 0 && shapes.carried[i].has_gradient;
    costs.push_back({.element = {.name = named.name,
                                 .born = named.born,
                                 .readers = named.readers,
                                 .has_gradient = has_gradient},
                     .bytes = bytes,
                     .gradient_bytes = has_gradient ? bytes : 0});
  }
  return costs;
}

namespace {

int64_t tuple_bytes(const model::Shapes& shapes, const device::Device& device, bool of_gradients) {
  int64_t bytes = 0;
  for (const model::TensorShape& shape : shapes) {
    bytes += of_gradients && !shape.has_gradient ? 0 : held_bytes(device, shape.bytes());
  }
  return bytes;
}

}  // namespace

plan::CostTable sizes_of(const model::Chain& chain,
                         at::ScalarType compute_type,
                         const device::Device& device,
                         const model::Fields& batch) {
  const model::ChainShapes shapes =
      chain.shapes_for(model::shapes_of(batch), batch.begin()->second.size(0), compute_type);
  plan::CostTable table;
  for (int64_t i = 0; i < chain.size(); ++i) {
    const size_t at = static_cast<size_t>(i);
    const model::Layer& layer = chain.layer(i);
    const model::LayerSize size = layer.size_for(shapes.inputs_of(chain.edges(), i), compute_type);
    const bool needs_output = layer.save_modes().front().needs_output;
    const int64_t output = tuple_bytes(shapes.edges[at + 1], device, /*of_gradients=*/false);
    int64_t carried = 0;
    for (const model::Place& place : chain.edges().outputs[at]) {
      carried +=
          place.carried < 0
              ? 0
              : held_bytes(device, shapes.carried[static_cast<size_t>(place.carried)].bytes());
    }
    table.layers.push_back(
        {.name = layer.name(),
         .kind = chain.kind_of(i),
         .input_bytes = tuple_bytes(shapes.edges[at], device, /*of_gradients=*/false),
         .output_bytes = output,
         .modes = {{.name = layer.save_modes().front().name,
                    .saved_bytes = std::max(size.kept_bytes - carried, output),
                    .needs_output = needs_output}}});
    if (i > 0) {
      int64_t gradient = tuple_bytes(shapes.edges[at], device, /*of_gradients=*/true);
      for (const model::TensorShape& beside : layer.beside_gradient()) {
        gradient += held_bytes(device, beside.bytes());
      }
      table.layers[at].input_gradient_bytes = gradient;
      table.layers[at - 1].output_gradient_bytes = gradient;
    }
  }
  table.layers.back().output_gradient_bytes =
      tuple_bytes(shapes.edges.back(), device, /*of_gradients=*/true);
  table.carried = carried_costs(chain, shapes, device);
  table.loss.name = chain.loss().name();
  table.target_bytes = tuple_bytes(shapes.targets, device, /*of_gradients=*/false);
  return table;
}

plan::CostTable sizes_of(const model::Chain& chain,
                         const model::Parameters& parameters,
                         const model::Fields& batch) {
  return sizes_of(chain, parameters.compute_type(), parameters.device(), batch);
}

}  // namespace penstock::profile
