#include "penstock/base/error.h"
#include "penstock/run/transfers.h"

namespace penstock::run {

std::unique_ptr<Transfers> make_gpu_transfers(comm::Group&, const device::Device&) {
  throw InternalError("tensors of a GPU in a build without CUDA");
}

std::unique_ptr<Transfers> make_gpu_transfers(comm::Group& group,
                                              const device::Device& device,
                                              const std::vector<Route>&) {
  return make_gpu_transfers(group, device);
}

std::unique_ptr<Transfers> make_staged_transfers(comm::Group&, const device::Device&) {
  throw InternalError("tensors of a GPU in a build without CUDA");
}

}  // namespace penstock::run
