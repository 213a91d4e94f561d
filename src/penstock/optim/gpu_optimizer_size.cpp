#include "penstock/optim/gpu_optimizer_size.h"

#include <string>
#include <vector>

#include "penstock/gpu/optimizers.h"
#include "penstock/optim/optimizer_size.h"

namespace penstock::optim {

GpuUpdateSizes gpu_update_sizes(const plan::Inventory& inventory) {
  GpuUpdateSizes sizes;
  for (size_t i = 0; i < inventory.units.size(); ++i) {
    if (!inventory.units[i].is_here || inventory.sizes[i].unit.is_frozen) {
      continue;
    }
    for (const plan::ParameterSize& parameter : inventory.sizes[i].parameters) {
      ++sizes.parameters;
      sizes.chunks += (parameter.count + gpu::kChunkElements - 1) / gpu::kChunkElements;
    }
  }
  return sizes;
}

plan::OptimizerSize gpu_optimizer_size(const config::TrainOptions& train,
                                       const plan::Inventory& inventory) {
  const auto bytes_of = [](size_t element, int64_t count) {
    return static_cast<int64_t>(element) * count;
  };
  const GpuUpdateSizes sizes = gpu_update_sizes(inventory);
  plan::OptimizerSize size{.state = optimizer_size(train, inventory).state};
  // In the order of GpuOptimizer's constructor.
  std::vector<int64_t> workspaces = {bytes_of(sizeof(gpu::UpdateChunk), sizes.chunks),
                                     bytes_of(sizeof(gpu::LambParameter), sizes.parameters),
                                     bytes_of(sizeof(double), gpu::kNormBlocks),
                                     bytes_of(sizeof(gpu::GradientState), 1),
                                     bytes_of(sizeof(gpu::GradientState), sizes.parameters)};
  if (train.optimizer == "lamb") {
    workspaces.push_back(bytes_of(sizeof(kernels::LambNorms), sizes.chunks * gpu::kChunkSlices));
    workspaces.push_back(bytes_of(sizeof(float), sizes.chunks));
  }
  const std::string name = "workspaces of the update";
  for (const int64_t bytes : workspaces) {
    size.workspaces.emplace_back(name, bytes);
  }
  return size;
}

}  // namespace penstock::optim
