// Bytes from the memory of one GPU to that of another, between ranks that are processes: NCCL.
// Where it was not found when Penstock was built, no_nccl.cpp stands in.
#pragma once

#include <cstdint>
#include <memory>

#include "penstock/comm/group.h"

struct CUstream_st;

namespace penstock::comm {

// One direction between two ranks with a GPU each that no other rank of the link has.
class GpuLink {
 public:
  virtual ~GpuLink() = default;

  // The first at the sender, the second at the receiver, as often and with the same sizes. They put
  // the transfer on a stream of CUDA's, which holds up the stream until the other end has done so
  // too.
  virtual void send(const void* data, int64_t bytes, CUstream_st* stream, const What& what) = 0;
  virtual void receive(void* data, int64_t bytes, CUstream_st* stream, const What& what) = 0;
};

void require_nccl();  // throws ConfigError in builds without it

// Both ranks call it, on the thread and with the GPU that will use it; pairs that connect several
// links do so in the same order. Throws Timeout after the group's time.
std::unique_ptr<GpuLink> connect_gpus(Group& group, int32_t from, int32_t to, int64_t channel);

}  // namespace penstock::comm
