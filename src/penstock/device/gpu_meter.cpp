#include "penstock/base/log.h"
#include "penstock/device/meter.h"
#include "penstock/gpu/kernel_trace.h"
#include "penstock/gpu/nvml.h"

namespace penstock::device {

namespace {

class GpuMeter final : public Meter {
 public:
  explicit GpuMeter(int device) {
    std::string why_not;
    power_ = gpu::PowerMeter::open(device, &why_not);
    if (!power_) {
      log_warning("no figures of energy and clock: ", why_not);
    }
  }

  std::optional<double> joules() const override { return power_ ? power_->joules() : std::nullopt; }
  std::optional<double> clock_mhz() const override {
    return power_ ? power_->clock_mhz() : std::nullopt;
  }
  std::string name() const override { return power_ ? power_->name().value_or("a GPU") : "a GPU"; }

  void begin_trace() override { trace_ = std::make_unique<gpu::KernelTrace>(); }
  Trace end_trace() override {
    Trace trace;
    for (const gpu::KernelTime& kernel : trace_->stop()) {
      trace.kernels.push_back({kernel.name, kernel.count, kernel.seconds});
    }
    trace.busy_s = trace_->busy_seconds();
    trace.span_s = trace_->span_seconds();
    trace_.reset();
    return trace;
  }

 private:
  std::optional<gpu::PowerMeter> power_;
  std::unique_ptr<gpu::KernelTrace> trace_;
};

}  // namespace

std::unique_ptr<Meter> open_meter(const Device& device) {
  if (!device.is_gpu()) {
    return nullptr;
  }
  return std::make_unique<GpuMeter>(device.where.index());
}

}  // namespace penstock::device
