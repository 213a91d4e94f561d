#include "penstock/base/error.h"
#include "penstock/model/gpt2/gpu.h"

namespace penstock::model {

Chain make_gpt2_for_gpu(const Gpt2Shape&, std::shared_ptr<device::GpuContext>) {
  throw InternalError("layers for a GPU in a build without CUDA");
}

}  // namespace penstock::model
