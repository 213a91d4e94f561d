// What the work on one GPU shares: streams, GEMMs, attention, and pinned memory for numbers on
// their way to the host. Only in builds with CUDA.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "penstock/device/device.h"
#include "penstock/gpu/attention.h"
#include "penstock/gpu/gemm.h"
#include "penstock/program/program.h"

namespace penstock::device {

class GpuContext {
 public:
  GpuContext(int index, const DeviceOptions& options);

  // The one place where a program's resources become streams.
  gpu::Stream stream(program::ResourceKind resource) const;
  gpu::Stream compute() const { return stream(program::ResourceKind::Compute); }

  c10::Device where() const { return where_; }
  const DeviceOptions& options() const { return options_; }
  memory::Account* own_account() const { return own_account_.get(); }  // of one of several ranks
  gpu::Gemms& gemms() { return *gemms_; }
  gpu::Attention& attention() { return *attention_; }

  // Which of two ways to the same end is faster here: timed where a shape is seen for the first
  // time while timing is on (and kept), else the first.
  bool prefers_first(const std::string& key,
                     const std::function<void()>& first,
                     const std::function<void()>& second);
  void set_timing(bool is_on);

  // A double on the device's side of the step and the pinned one that it is copied to: the answer
  // of `fetch` is right once the stream has been waited for. They are used in turn, so a step has no
  // more micro-batches than kLossSlots.
  static constexpr int64_t kLossSlots = 16384;
  struct LossSlot {
    double* on_device;
    const double* on_host;
  };
  LossSlot next_loss_slot();  // set to zero
  void fetch(const LossSlot& slot) const;

  void wait() const;  // for the compute stream

 private:
  struct CloseAccount {
    void operator()(memory::Account* account) const;
  };

  c10::Device where_;
  DeviceOptions options_;
  std::array<gpu::Stream, program::kNumResourceKinds> streams_ = {};  // by resource
  at::Tensor workspace_, losses_, host_losses_;
  std::unique_ptr<gpu::Gemms> gemms_;
  std::unique_ptr<gpu::Attention> attention_;
  int64_t next_loss_ = 0;
  bool is_timing_ = false;
  std::map<std::string, bool> preferences_;
  // The last member, so that it is closed before what was counted goes; also where the constructor
  // fails.
  std::unique_ptr<memory::Account, CloseAccount> own_account_;
};

}  // namespace penstock::device
