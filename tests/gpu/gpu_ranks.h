// Ranks that are threads of the test and share its first GPU.
#pragma once

#include <functional>

#include <cuda_runtime_api.h>

#include "penstock/comm/local.h"
#include "penstock/device/gpu_context.h"
#include "penstock/memory/account.h"

#include "gpu/gpu_model.h"

namespace penstock::test {

// Each rank has its GPU open, its account as the thread's, and no limit.
inline void run_gpu_ranks(int32_t ranks,
                          const std::function<void(comm::Group&, const device::Device&)>& work) {
  comm::run_local(ranks, [&](comm::Group& group) {
    group.set_timeout(60);
    const device::Device device =
        device::open_gpu({.is_deterministic = true, .index = 0, .is_one_of_several = true});
    const memory::AccountScope scope(device.account());
    work(group, device);
    PENSTOCK_CUDA(cudaDeviceSynchronize());
  });
}

inline comm::What what(const char* text) {
  return [text] { return std::string(text); };
}

}  // namespace penstock::test
