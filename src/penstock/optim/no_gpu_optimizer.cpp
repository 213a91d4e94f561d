#include "penstock/base/error.h"
#include "penstock/optim/gpu_optimizer.h"

namespace penstock::optim {

std::unique_ptr<Optimizer> make_gpu_optimizer(const config::TrainOptions&,
                                              const model::Parameters&) {
  throw InternalError("an optimizer on a GPU in a build without CUDA");
}

}  // namespace penstock::optim
