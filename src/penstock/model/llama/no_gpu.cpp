#include "penstock/base/error.h"
#include "penstock/model/llama/gpu.h"

namespace penstock::model {

Chain make_llama_for_gpu(const LlamaShape&, std::shared_ptr<device::GpuContext>) {
  throw InternalError("layers for a GPU in a build without CUDA");
}

}  // namespace penstock::model
