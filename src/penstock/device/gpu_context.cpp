#include "penstock/device/gpu_context.h"

#include <algorithm>
#include <exception>

#include <cuda_runtime_api.h>

#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "penstock/base/log.h"
#include "penstock/gpu/check.h"
#include "penstock/gpu/events.h"
#include "penstock/memory/gpu_rank_account.h"

namespace penstock::device {

namespace {

// What a rank computes is one stream, what it copies another, what comes and goes a third.
constexpr std::array<int, program::kNumResourceKinds> kStreamOf = {
    0,  // Compute
    0,  // HostCompute: the host's own threads
    1,  // Copy
    1,  // Disk
    2,  // Link
    2,  // Inlet
    2,  // Line
};
constexpr int kNumStreams = 3;

}  // namespace

GpuContext::GpuContext(int index, const DeviceOptions& options)
    : where_(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)), options_(options) {
  PENSTOCK_CUDA(cudaSetDevice(index));
  // From LibTorch's pool, so that its allocator knows them; and not the default stream, which cannot
  // be captured in a graph.
  for (int i = 0; i < kNumStreams; ++i) {
    const c10::cuda::CUDAStream stream =
        c10::cuda::getStreamFromPool(/*isHighPriority=*/false, where_.index());
    if (i == 0) {
      c10::cuda::setCurrentCUDAStream(stream);
    }
    for (size_t kind = 0; kind < kStreamOf.size(); ++kind) {
      if (kStreamOf[kind] == i) {
        streams_[kind] = stream.stream();
      }
    }
  }
  if (options.is_one_of_several) {
    own_account_.reset(&memory::open_gpu_rank_account(index, compute()));
  }
  workspace_ = at::empty({gpu::Gemms::kWorkspaceBytes}, at::TensorOptions(where_).dtype(at::kByte));
  losses_ = at::zeros({kLossSlots}, at::TensorOptions(where_).dtype(at::kDouble));
  host_losses_ =
      at::zeros({kLossSlots}, at::TensorOptions().dtype(at::kDouble).pinned_memory(true));
  gemms_ = std::make_unique<gpu::Gemms>(workspace_.data_ptr(), options.allows_tf32);
  attention_ = std::make_unique<gpu::Attention>();
}

void GpuContext::CloseAccount::operator()(memory::Account* account) const {
  try {
    memory::close_gpu_rank_account(*account);
  } catch (const std::exception& error) {
    log_warning("while a rank left its GPU: ", error.what());  // a device that has failed
  }
}

gpu::Stream GpuContext::stream(program::ResourceKind resource) const {
  return streams_[static_cast<size_t>(resource)];
}

void GpuContext::set_timing(bool is_on) {
  is_timing_ = is_on;
  gemms_->set_timing(is_on);
}

bool GpuContext::prefers_first(const std::string& key,
                               const std::function<void()>& first,
                               const std::function<void()>& second) {
  const auto known = preferences_.find(key);
  if (known != preferences_.end()) {
    return known->second;
  }
  if (!is_timing_) {
    return true;
  }
  gpu::Event began, ended;
  const auto seconds = [&](const std::function<void()>& work) {
    constexpr int kRuns = 5;
    work();  // the algorithms of its GEMMs are chosen here
    began.record(compute());
    for (int i = 0; i < kRuns; ++i) {
      work();
    }
    ended.record(compute());
    ended.wait();
    return gpu::seconds_between(began, ended) / kRuns;
  };
  // Twice, for the first of two neighbours meets a cooler GPU.
  double one = seconds(first), other = seconds(second);
  one = std::min(one, seconds(first));
  other = std::min(other, seconds(second));
  return preferences_.emplace(key, one <= other).first->second;
}

GpuContext::LossSlot GpuContext::next_loss_slot() {
  const int64_t index = next_loss_++ % kLossSlots;
  double* slot = losses_.data_ptr<double>() + index;
  PENSTOCK_CUDA(cudaMemsetAsync(slot, 0, sizeof(double), compute()));
  return {slot, host_losses_.const_data_ptr<double>() + index};
}

void GpuContext::fetch(const LossSlot& slot) const {
  PENSTOCK_CUDA(cudaMemcpyAsync(const_cast<double*>(slot.on_host),
                                slot.on_device,
                                sizeof(double),
                                cudaMemcpyDeviceToHost,
                                compute()));
}

void GpuContext::wait() const {
  PENSTOCK_CUDA(cudaStreamSynchronize(compute()));
}

}  // namespace penstock::device
