#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "penstock/device/step_graph.h"

namespace penstock::device {

namespace {

class GpuStepGraph final : public StepGraph {
 public:
  ~GpuStepGraph() override {
    // What it had is free for others at once, not only when they run out.
    graph_.reset();
    c10::cuda::CUDACachingAllocator::emptyCache();
  }

  void begin() override {
    // Blocks that unrecorded steps have left would stand beside the graph's own.
    c10::cuda::CUDACachingAllocator::emptyCache();
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  }
  void end() override { graph_.capture_end(); }
  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<StepGraph> make_step_graph(const Device& device) {
  if (!device.is_gpu()) {
    return nullptr;
  }
  return std::make_unique<GpuStepGraph>();
}

}  // namespace penstock::device
