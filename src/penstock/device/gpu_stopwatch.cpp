#include <vector>

#include <c10/cuda/CUDAStream.h>

#include "penstock/device/stopwatch.h"
#include "penstock/gpu/events.h"

namespace penstock::device {

namespace {

class GpuStopwatch final : public Stopwatch {
 public:
  int64_t mark() override {
    if (next_ == static_cast<int64_t>(events_.size())) {
      events_.emplace_back();
    }
    events_[static_cast<size_t>(next_)].record(c10::cuda::getCurrentCUDAStream().stream());
    return next_++;
  }
  void wait() override {
    if (next_ > 0) {
      events_[static_cast<size_t>(next_ - 1)].wait();
    }
  }
  void restart(int64_t kept) override { next_ = kept; }  // events are used again
  double seconds(int64_t from, int64_t to) const override {
    return gpu::seconds_between(events_[static_cast<size_t>(from)],
                                events_[static_cast<size_t>(to)]);
  }

 private:
  std::vector<gpu::Event> events_;
  int64_t next_ = 0;
};

}  // namespace

std::unique_ptr<Stopwatch> make_gpu_stopwatch() {
  return std::make_unique<GpuStopwatch>();
}

}  // namespace penstock::device
