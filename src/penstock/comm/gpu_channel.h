// Messages from the GPU of one rank to that of another: the bytes by a link between the GPUs, and a
// word with each through the group. The word is what the host waits for, so time-outs and failures
// of peers are told as everywhere; a stream waits for the bytes alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "penstock/comm/group.h"
#include "penstock/comm/nccl.h"

namespace penstock::comm {

// One end of a route. Belongs to the thread that runs its rank.
class GpuChannel {
 public:
  // The group and the stream must outlive it.
  GpuChannel(Group& group,
             int32_t from,
             int32_t to,
             int64_t channel,
             std::unique_ptr<GpuLink> link,
             CUstream_st* stream);

  // Both ends call it before the first message, and ranks with several routes in one order. A link
  // connects at its first use, and each end waits there for the other: here one byte of the GPU's
  // memory goes over it, so that no later send waits for the peer.
  void open(void* byte, const What& what);

  // The word must stay as it is until the ticket is done: it is the number of bytes.
  [[nodiscard]] Ticket send(const void* data, const int64_t& bytes, const What& what);
  // Throws InternalError where the peer sent another number of bytes.
  void receive(void* data, int64_t bytes, const What& what);

  int32_t peer() const { return group_.rank() == from_ ? to_ : from_; }

 private:
  Group& group_;
  const int32_t from_;
  const int32_t to_;
  const int64_t channel_;
  const std::unique_ptr<GpuLink> link_;
  CUstream_st* const stream_;
};

// Throws ConfigError where ranks are threads or share a GPU, which NCCL does not link. `gpus` has a
// number for the GPU of each rank.
void require_processes(const Group& group);
void require_own_gpus(std::span<const double> gpus);

}  // namespace penstock::comm
