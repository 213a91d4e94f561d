#include "penstock/gpu/events.h"

#include <utility>

#include <cuda_runtime.h>

#include "penstock/gpu/check.h"

namespace penstock::gpu {

Event::Event() {
  PENSTOCK_CUDA(cudaEventCreate(&event_));
}

Event::~Event() {
  if (event_ != nullptr) {
    cudaEventDestroy(event_);
  }
}

Event::Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}

void Event::record(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  PENSTOCK_CUDA(cudaStreamIsCapturing(stream, &status));
  const bool is_captured = status != cudaStreamCaptureStatusNone;
  PENSTOCK_CUDA(cudaEventRecordWithFlags(
      event_, stream, is_captured ? cudaEventRecordExternal : cudaEventRecordDefault));
}

void Event::wait() const {
  PENSTOCK_CUDA(cudaEventSynchronize(event_));
}

void Event::hold_up(Stream stream) const {
  PENSTOCK_CUDA(cudaStreamWaitEvent(stream, event_, cudaEventWaitDefault));
}

double seconds_between(const Event& first, const Event& second) {
  float milliseconds = 0;
  PENSTOCK_CUDA(cudaEventElapsedTime(&milliseconds, first.get(), second.get()));
  return static_cast<double>(milliseconds) / 1e3;
}

}  // namespace penstock::gpu
