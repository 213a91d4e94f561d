// Where the time on the device goes: every kernel, copy and memset between construction and stop(),
// through CUPTI's activity records.
//
// Tracing costs the host a little at each launch, and CUPTI stays attached to the process after
// stop(): measure the rate of a step first, then trace. While one lives, no other profiler (Nsight,
// torch's) may trace this process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::gpu {

struct KernelTime {
  std::string name;  // short_kernel_name(), "memset" or "memcpy host to device"
  int64_t count = 0;
  double seconds = 0;  // all of them together
};

class KernelTrace {
 public:
  // Waits for the device, then traces. Throws GpuError where CUPTI cannot, InternalError where
  // another trace is alive.
  KernelTrace();
  ~KernelTrace();  // an unstopped trace is dropped, without waiting

  KernelTrace(const KernelTrace&) = delete;
  KernelTrace& operator=(const KernelTrace&) = delete;

  // Waits for the device and ends the trace; once. The most time first. Throws GpuError, also when
  // CUPTI lost records: a table with holes would mislead.
  std::vector<KernelTime> stop();

  // After stop(). Busy counts overlapping work once; span goes from the start of the first kernel
  // or copy to the end of the last, so span - busy is the time in which the device waited.
  double busy_seconds() const { return busy_seconds_; }
  double span_seconds() const { return span_seconds_; }

 private:
  struct Records;
  int end_collecting();

  std::unique_ptr<Records> records_;
  bool is_collecting_ = false;
  double busy_seconds_ = 0;
  double span_seconds_ = 0;
};

// A kernel's symbol as a table can show it: demangled, without arguments, template arguments and
// namespaces. What only wraps another (cutlass::Kernel2<...>, at::native::elementwise_kernel<...>)
// keeps the name of what it wraps; cublas* and cudnn* keep their namespace.
std::string short_kernel_name(std::string_view symbol);

}  // namespace penstock::gpu
