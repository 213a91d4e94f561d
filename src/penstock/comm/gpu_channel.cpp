#include "penstock/comm/gpu_channel.h"

#include <cstddef>
#include <utility>

#include "penstock/base/error.h"

namespace penstock::comm {

GpuChannel::GpuChannel(Group& group,
                       int32_t from,
                       int32_t to,
                       int64_t channel,
                       std::unique_ptr<GpuLink> link,
                       CUstream_st* stream)
    : group_(group),
      from_(from),
      to_(to),
      channel_(channel),
      link_(std::move(link)),
      stream_(stream) {}

void GpuChannel::open(void* byte, const What& what) {
  if (group_.rank() == from_) {
    link_->send(byte, 1, stream_, what);
  } else {
    link_->receive(byte, 1, stream_, what);
  }
}

// The word goes first: the peer puts its receive on a stream only when it has heard of the message.
Ticket GpuChannel::send(const void* data, const int64_t& bytes, const What& what) {
  Ticket ticket = group_.send(to_, channel_, &bytes, sizeof(bytes));
  link_->send(data, bytes, stream_, what);
  return ticket;
}

void GpuChannel::receive(void* data, int64_t bytes, const What& what) {
  int64_t sent = 0;
  group_.receive(from_, channel_, &sent, sizeof(sent), what);
  PENSTOCK_CHECK(sent == bytes, "rank ", from_, " sent ", sent, " bytes for ", bytes, ": ", what());
  link_->receive(data, bytes, stream_, what);
}

void require_processes(const Group& group) {
  if (group.shares_memory()) {
    throw ConfigError(
        "run.links = \"nccl\" links ranks that are processes, and these are threads of one; start "
        "them with mpirun or srun, or try run.links = \"auto\"");
  }
}

void require_own_gpus(std::span<const double> gpus) {
  for (size_t i = 0; i < gpus.size(); ++i) {
    for (size_t j = i + 1; j < gpus.size(); ++j) {
      if (gpus[i] == gpus[j]) {
        throw ConfigError(cat("run.links = \"nccl\" needs a GPU for each rank, and ranks ",
                              i,
                              " and ",
                              j,
                              " share one; start as many ranks on a machine as it has GPUs, or try "
                              "run.links = \"auto\""));
      }
    }
  }
}

}  // namespace penstock::comm
