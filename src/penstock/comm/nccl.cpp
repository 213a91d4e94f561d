#include "penstock/comm/nccl.h"

#include <chrono>
#include <string>
#include <thread>

#include <nccl.h>

#include "penstock/base/error.h"
#include "penstock/comm/wait.h"

namespace penstock::comm {

namespace {

// Aborted at its end, also where a link fails while it is made. Not the polite end, which waits for
// the peer: nothing is under way, for a step ends with all of it.
struct Communicator {
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator() {
    if (handle != nullptr) {
      ncclCommAbort(handle);
    }
  }

  ncclComm_t handle = nullptr;
};

class NcclLink final : public GpuLink {
 public:
  NcclLink(Group& group, int32_t from, int32_t to, int64_t channel)
      : group_(group), peer_(group.rank() == from ? to : from) {
    PENSTOCK_CHECK(group.rank() == from || group.rank() == to,
                   "rank ",
                   group.rank(),
                   " is no end of a link from ",
                   from,
                   " to ",
                   to);
    const What what = [&] { return cat("the link of GPUs from rank ", from, " to rank ", to); };
    const bool is_sender = group.rank() == from;
    ncclUniqueId id;
    if (is_sender) {
      check(ncclGetUniqueId(&id), what);
      Ticket ticket = group.send(to, channel, &id, sizeof(id));
      group.wait(ticket, what);
    } else {
      group.receive(from, channel, &id, sizeof(id), what);
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // so that a peer that does not come can be told
    config.maxCTAs = kMostBlocks;
    settle(ncclCommInitRankConfig(&link_.handle, 2, id, is_sender ? kSender : kReceiver, &config),
           what);
  }

  void send(const void* data, int64_t bytes, CUstream_st* stream, const What& what) override {
    settle(ncclSend(data, static_cast<size_t>(bytes), ncclUint8, kReceiver, link_.handle, stream),
           what);
  }
  void receive(void* data, int64_t bytes, CUstream_st* stream, const What& what) override {
    settle(ncclRecv(data, static_cast<size_t>(bytes), ncclUint8, kSender, link_.handle, stream),
           what);
  }

 private:
  static constexpr int kSender = 0;
  static constexpr int kReceiver = 1;
  // A transfer that waits for its peer keeps its blocks on the GPU, beside the layers' kernels.
  // Fewer also need fewer buffers.
  static constexpr int kMostBlocks = 4;

  void check(ncclResult_t result, const What& what) const {
    if (result != ncclSuccess && result != ncclInProgress) {
      throw Error(ExitCode::Internal,
                  cat("rank ",
                      group_.rank(),
                      " lost its link to the GPU of rank ",
                      peer_,
                      " (NCCL: ",
                      ncclGetErrorString(result),
                      "): ",
                      what()));
    }
  }

  // A call may go on in a thread of the library's; what it comes to is asked for.
  void settle(ncclResult_t result, const What& what) {
    check(result, what);
    Wait wait(group_.rank(), peer_, what);
    for (;;) {
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(link_.handle, &state), what);
      check(state, what);
      if (state == ncclSuccess) {
        return;
      }
      if (wait.seconds() > group_.timeout()) {
        throw Timeout(wait.timeout_line());
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  Group& group_;
  const int32_t peer_;
  Communicator link_;
};

}  // namespace

void require_nccl() {}

std::unique_ptr<GpuLink> connect_gpus(Group& group, int32_t from, int32_t to, int64_t channel) {
  return std::make_unique<NcclLink>(group, from, to, channel);
}

}  // namespace penstock::comm
