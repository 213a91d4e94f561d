#include "penstock/device/stopwatch.h"

#include <chrono>
#include <vector>

namespace penstock::device {

namespace {

class CpuStopwatch final : public Stopwatch {
 public:
  int64_t mark() override {
    marks_.push_back(Clock::now());
    return static_cast<int64_t>(marks_.size()) - 1;
  }
  void wait() override {}
  void restart(int64_t kept) override { marks_.resize(static_cast<size_t>(kept)); }
  double seconds(int64_t from, int64_t to) const override {
    const auto span = marks_[static_cast<size_t>(to)] - marks_[static_cast<size_t>(from)];
    return std::chrono::duration<double>(span).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::vector<Clock::time_point> marks_;
};

}  // namespace

std::unique_ptr<Stopwatch> make_stopwatch(c10::Device where) {
  if (where.is_cpu()) {
    return std::make_unique<CpuStopwatch>();
  }
  return make_gpu_stopwatch();
}

}  // namespace penstock::device
