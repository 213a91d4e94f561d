#include <exception>
#include <utility>

#include <cuda_runtime_api.h>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include "penstock/base/log.h"
#include "penstock/device/step_graph.h"
#include "penstock/gpu/check.h"

namespace penstock::device {

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// LibTorch has a class for this, but it cannot be destroyed after a recording that failed; and
// there are no random numbers of LibTorch's in a step.
class GpuStepGraph final : public StepGraph {
 public:
  explicit GpuStepGraph(c10::DeviceIndex device)
      : device_(device), stream_(c10::cuda::getCurrentCUDAStream(device).stream()) {}

  ~GpuStepGraph() override {
    // Each on its own: whatever fails, the memory must go back.
    attempt([&] { end_recording(); });
    attempt([&] { destroy_graph(); });
    attempt([&] {
      if (executable_ != nullptr) {
        PENSTOCK_CUDA(cudaGraphExecDestroy(executable_));
      }
    });
    attempt([&] {
      if (has_pool_) {
        // What it had is free for others at once, not only when they run out.
        allocator::releasePool(device_, pool_);
        allocator::emptyCache();
      }
    });
  }

  void begin() override {
    // Blocks that unrecorded steps have left would stand beside the graph's own.
    allocator::emptyCache();
    pool_ = at::cuda::graph_pool_handle();
    allocator::beginAllocateToPool(
        device_, pool_, [stream = stream_](cudaStream_t asking) { return asking == stream; });
    has_pool_ = is_pool_open_ = true;
    PENSTOCK_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    is_recording_ = true;
  }

  void end() override {
    end_recording();
    PENSTOCK_CUDA(cudaGraphInstantiate(&executable_, graph_, 0));
    destroy_graph();
  }

  void replay() override { PENSTOCK_CUDA(cudaGraphLaunch(executable_, stream_)); }

 private:
  void end_recording() {
    const cudaError_t status =
        std::exchange(is_recording_, false) ? cudaStreamEndCapture(stream_, &graph_) : cudaSuccess;
    if (std::exchange(is_pool_open_, false)) {
      allocator::endAllocateToPool(device_, pool_);
    }
    PENSTOCK_CUDA(status);
  }

  void destroy_graph() {
    if (graph_ != nullptr) {
      PENSTOCK_CUDA(cudaGraphDestroy(std::exchange(graph_, nullptr)));
    }
  }

  template <typename Work>
  static void attempt(const Work& work) {
    try {
      work();
    } catch (const std::exception& error) {
      log_warning("while a recorded step was given up: ", error.what());
    }
  }

  c10::DeviceIndex device_;
  cudaStream_t stream_;
  c10::MempoolId_t pool_{0, 0};
  bool has_pool_ = false;
  bool is_pool_open_ = false;  // allocations go to it
  bool is_recording_ = false;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

std::unique_ptr<StepGraph> make_step_graph(const Device& device) {
  if (!device.is_gpu()) {
    return nullptr;
  }
  return std::make_unique<GpuStepGraph>(device.where.index());
}

}  // namespace penstock::device
