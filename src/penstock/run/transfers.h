// Tensors between the ranks of a group, wherever they lie. CPU tensors go as their bytes. On GPUs
// ranks that are threads of one process copy from device memory to device memory, in the order of
// their streams; those that are processes go by way of pinned memory, or where run.links says so by
// NCCL.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "penstock/comm/group.h"
#include "penstock/device/device.h"

namespace penstock::run {

// A tensor on its way to a peer, as its Transfers see it.
class Sent {
 public:
  virtual ~Sent() = default;
};

// Belongs to the thread that runs its rank.
class Transfers {
 public:
  virtual ~Transfers() = default;

  // Starts to send what the device's compute stream has made by now. The tensor, contiguous and on
  // this rank's device, must stay as it is until it was waited for; drop the answer before it.
  // Never waits for the peer.
  [[nodiscard]] virtual std::unique_ptr<Sent> send(int32_t peer,
                                                   int64_t channel,
                                                   const at::Tensor& tensor) = 0;

  // Until the tensor may be changed or freed: by the host on the CPU, by work on the compute stream
  // on a GPU.
  virtual void wait(Sent& sent, const comm::What& what) = 0;

  // Waits until the peer has sent. The bytes are there for what comes next on the compute stream.
  virtual void receive(int32_t peer,
                       int64_t channel,
                       const at::Tensor& into,
                       const comm::What& what) = 0;
};

// What goes from one rank to another on one channel.
struct Route {
  int32_t from = 0;
  int32_t to = 0;
  int64_t channel = 0;

  auto operator<=>(const Route&) const = default;
};
// Called by all ranks at the same time with all their routes, sorted: on a device opened for NCCL
// each gets a link, and ranks that share a GPU then get a ConfigError. Group and device must outlive
// the answer.
std::unique_ptr<Transfers> make_transfers(comm::Group& group,
                                          const device::Device& device,
                                          const std::vector<Route>& routes);

std::unique_ptr<Transfers> make_cpu_transfers(comm::Group& group);

// For tensors of a GPU, in builds with CUDA. The first copies on the device between threads, and is
// the second between processes; that one goes by way of pinned memory.
std::unique_ptr<Transfers> make_gpu_transfers(comm::Group& group, const device::Device& device);
std::unique_ptr<Transfers> make_staged_transfers(comm::Group& group, const device::Device& device);

}  // namespace penstock::run
