#include "penstock/base/error.h"
#include "penstock/model/gpu_dropout.h"

namespace penstock::model {

void apply_gpu_dropout(at::Tensor&, const kernels::DropoutMask&) {
  throw InternalError("dropout on a GPU in a build without CUDA");
}

}  // namespace penstock::model
