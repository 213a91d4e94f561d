#include <deque>
#include <exception>
#include <memory>
#include <utility>

#include <cuda_runtime_api.h>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/device/gpu_context.h"
#include "penstock/gpu/check.h"
#include "penstock/gpu/events.h"
#include "penstock/run/transfers.h"

namespace penstock::run {

namespace {

// ---- Ranks that are threads: from device memory to device memory. ----

// The message: where the tensor lies, and since when it is there. The receiver leaves a mark behind
// its copy. It does so while the group counts the message as under way, so that the sender never
// looks before.
struct Offer {
  const void* data;
  int64_t bytes;
  int device;
  gpu::Event is_made;
  mutable std::unique_ptr<gpu::Event> is_copied;  // of the receiver's device
};

// Of a run that fails: nobody may reuse what a send was given while `event` is ahead.
void wait_for_end(const gpu::Event& event) {
  try {
    event.wait();
  } catch (const std::exception& error) {
    log_warning("while a send was given up: ", error.what());
  }
}

class SentOffer final : public Sent {
 public:
  ~SentOffer() override {
    ticket = comm::Ticket();  // goes first: after it nobody looks at the offer
    if (offer.is_copied != nullptr) {
      wait_for_end(*offer.is_copied);  // the receiver still copies from the tensor
    }
  }

  Offer offer;
  comm::Ticket ticket;
};

class ThreadTransfers final : public Transfers {
 public:
  ThreadTransfers(comm::Group& group, const device::Device& device)
      : group_(group), device_(device) {}

  std::unique_ptr<Sent> send(int32_t peer, int64_t channel, const at::Tensor& tensor) override {
    auto sent = std::make_unique<SentOffer>();
    sent->offer.data = tensor.const_data_ptr();
    sent->offer.bytes = static_cast<int64_t>(tensor.nbytes());
    sent->offer.device = device_.where.index();
    sent->offer.is_made.record(compute());
    sent->ticket = group_.send(peer, channel, &sent->offer, sizeof(Offer));
    return sent;
  }

  void wait(Sent& sent, const comm::What& what) override {
    auto& mine = static_cast<SentOffer&>(sent);
    group_.wait(mine.ticket, what);
    if (mine.offer.is_copied != nullptr) {
      mine.offer.is_copied->hold_up(compute());
      mine.offer.is_copied.reset();
    }
  }

  // On the compute stream: what the tensor's memory was used for before is past by then.
  void receive(int32_t peer,
               int64_t channel,
               const at::Tensor& into,
               const comm::What& what) override {
    group_.receive_in_place(peer, channel, sizeof(Offer), what, [&](const void* sent) {
      const Offer& offer = *static_cast<const Offer*>(sent);
      PENSTOCK_CHECK(offer.bytes == static_cast<int64_t>(into.nbytes()),
                     "rank ",
                     group_.rank(),
                     " expected ",
                     into.nbytes(),
                     " bytes, but rank ",
                     peer,
                     " sent ",
                     offer.bytes,
                     ": ",
                     what());
      offer.is_made.hold_up(compute());
      copy(into.data_ptr(), offer);
      auto is_copied = std::make_unique<gpu::Event>();
      is_copied->record(compute());
      offer.is_copied = std::move(is_copied);
    });
  }

 private:
  gpu::Stream compute() const { return device_.gpu->compute(); }

  void copy(void* to, const Offer& offer) const {
    const int here = device_.where.index();
    const size_t bytes = static_cast<size_t>(offer.bytes);
    if (offer.device == here) {
      PENSTOCK_CUDA(cudaMemcpyAsync(to, offer.data, bytes, cudaMemcpyDeviceToDevice, compute()));
    } else {
      PENSTOCK_CUDA(cudaMemcpyPeerAsync(to, here, offer.data, offer.device, bytes, compute()));
    }
  }

  comm::Group& group_;
  const device::Device& device_;
};

// ---- Ranks that are processes: by way of pinned memory. ----

class SentStaged final : public Sent {
 public:
  explicit SentStaged(std::deque<SentStaged*>& waiting) : waiting_(waiting) {
    waiting_.push_back(this);
  }
  ~SentStaged() override {
    if (!is_staged) {
      std::erase(waiting_, this);
      wait_for_end(is_copied);  // the copy still writes to the pinned memory
    }
  }

  int32_t peer = 0;
  int64_t channel = 0;
  at::Tensor staged;  // pinned, from LibTorch's cache of such blocks
  gpu::Event is_copied;
  bool is_staged = false;  // the host has seen that mark, and the message is on its way
  comm::Ticket ticket;

 private:
  std::deque<SentStaged*>& waiting_;
};

// A message can leave only when its copy to the host is done, which must not hold up the host: it
// has work to give to the device. So copies are started in order, and their messages leave before
// the next wait for a peer.
class StagedTransfers final : public Transfers {
 public:
  StagedTransfers(comm::Group& group, const device::Device& device)
      : group_(group), device_(device) {}

  std::unique_ptr<Sent> send(int32_t peer, int64_t channel, const at::Tensor& tensor) override {
    const gpu::Stream link = device_.gpu->stream(program::ResourceKind::Link);
    gpu::Event is_made;
    is_made.record(device_.gpu->compute());
    is_made.hold_up(link);
    auto sent = std::make_unique<SentStaged>(waiting_);
    sent->peer = peer;
    sent->channel = channel;
    sent->staged =
        at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.dtype()).pinned_memory(true));
    PENSTOCK_CUDA(cudaMemcpyAsync(sent->staged.data_ptr(),
                                  tensor.const_data_ptr(),
                                  tensor.nbytes(),
                                  cudaMemcpyDeviceToHost,
                                  link));
    sent->is_copied.record(link);
    return sent;
  }

  void wait(Sent& sent, const comm::What& what) override {
    let_leave();
    group_.wait(static_cast<SentStaged&>(sent).ticket, what);
  }

  void receive(int32_t peer,
               int64_t channel,
               const at::Tensor& into,
               const comm::What& what) override {
    let_leave();
    const at::Tensor staged =
        at::empty(into.sizes(), at::TensorOptions().dtype(into.dtype()).pinned_memory(true));
    group_.receive(peer, channel, staged.data_ptr(), static_cast<int64_t>(staged.nbytes()), what);
    // LibTorch's copy has its cache of pinned blocks wait for it, so `staged` can go.
    at::Tensor(into).copy_(staged, /*non_blocking=*/true);
  }

 private:
  void let_leave() {
    while (!waiting_.empty()) {
      SentStaged& sent = *waiting_.front();
      waiting_.pop_front();
      sent.is_copied.wait();
      sent.is_staged = true;
      sent.ticket = group_.send(sent.peer,
                                sent.channel,
                                sent.staged.const_data_ptr(),
                                static_cast<int64_t>(sent.staged.nbytes()));
    }
  }

  comm::Group& group_;
  const device::Device& device_;
  std::deque<SentStaged*> waiting_;  // their messages have not left
};

}  // namespace

std::unique_ptr<Transfers> make_gpu_transfers(comm::Group& group, const device::Device& device) {
  if (group.shares_memory()) {
    return std::make_unique<ThreadTransfers>(group, device);
  }
  return make_staged_transfers(group, device);
}

std::unique_ptr<Transfers> make_staged_transfers(comm::Group& group, const device::Device& device) {
  return std::make_unique<StagedTransfers>(group, device);
}

}  // namespace penstock::run
