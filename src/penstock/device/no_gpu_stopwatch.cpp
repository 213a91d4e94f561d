#include "penstock/base/error.h"
#include "penstock/device/stopwatch.h"

namespace penstock::device {

std::unique_ptr<Stopwatch> make_gpu_stopwatch() {
  throw InternalError("a GPU's stopwatch in a build without CUDA");
}

}  // namespace penstock::device
