#include "penstock/base/error.h"
#include "penstock/model/gpu_gradients.h"

namespace penstock::model {

void empty_gpu_gradients(Parameters&) {
  throw InternalError("gradients on a GPU in a build without CUDA");
}

void complete_gpu_gradients(Parameters&) {
  throw InternalError("gradients on a GPU in a build without CUDA");
}

void forget_gpu_gradients(Parameters&) {}

}  // namespace penstock::model
