#include <map>
#include <memory>
#include <span>
#include <string>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/philox.h"
#include "penstock/comm/nccl.h"
#include "penstock/device/gpu_context.h"
#include "penstock/gpu/check.h"
#include "penstock/gpu/events.h"
#include "penstock/run/transfers.h"

namespace penstock::run {

namespace {

// A number for the card of this rank, the same for all that share it and for no others; as a double,
// which is what ranks can gather.
double card_number(const device::Device& device) {
  cudaDeviceProp properties{};
  PENSTOCK_CUDA(cudaGetDeviceProperties(&properties, device.where.index()));
  std::string name(256, '\0');
  gethostname(name.data(), name.size() - 1);
  name.append(properties.uuid.bytes, sizeof(properties.uuid.bytes));
  return static_cast<double>(hash_name(name) >> 12);
}

class OwnStream {
 public:
  OwnStream() { PENSTOCK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~OwnStream() { cudaStreamDestroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  gpu::Stream get() const { return stream_; }

 private:
  gpu::Stream stream_ = nullptr;
};

class SentByCard final : public Sent {
 public:
  int64_t bytes = 0;  // the word that goes with it
  gpu::Event is_sent;
  comm::Ticket ticket;
};

// Routes between different cards go from GPU to GPU, each on a link and a stream of its own: channels do
// not hold up each other. A word through the group goes with each tensor. It is what the host waits for,
// so time-outs and failures of peers are told as everywhere; the stream then waits for the bytes alone.
class CardTransfers final : public Transfers {
 public:
  CardTransfers(comm::Group& group,
                const device::Device& device,
                const std::vector<Route>& routes,
                const std::vector<double>& cards)
      : group_(group), device_(device), staged_(make_staged_transfers(group, device)) {
    for (const Route& route : routes) {
      const bool is_mine = route.from == group.rank() || route.to == group.rank();
      if (is_mine &&
          cards[static_cast<size_t>(route.from)] != cards[static_cast<size_t>(route.to)]) {
        Link& link = links_[route];
        link.stream = std::make_unique<OwnStream>();
        link.cards = comm::connect_cards(group, route.from, route.to, route.channel);
      }
    }
  }

  std::unique_ptr<Sent> send(int32_t peer, int64_t channel, const at::Tensor& tensor) override {
    Link* const link = find({group_.rank(), peer, channel});
    if (link == nullptr) {
      return staged_->send(peer, channel, tensor);
    }
    gpu::Event is_made;
    is_made.record(device_.gpu->compute());
    is_made.hold_up(link->stream->get());
    auto sent = std::make_unique<SentByCard>();
    sent->bytes = static_cast<int64_t>(tensor.nbytes());
    link->cards->send(tensor.const_data_ptr(), sent->bytes, link->stream->get(), [&] {
      return cat("a send to rank ", peer);
    });
    sent->is_sent.record(link->stream->get());
    sent->ticket = group_.send(peer, channel, &sent->bytes, sizeof(sent->bytes));
    return sent;
  }

  void wait(Sent& sent, const comm::What& what) override {
    auto* const mine = dynamic_cast<SentByCard*>(&sent);
    if (mine == nullptr) {
      return staged_->wait(sent, what);
    }
    group_.wait(mine->ticket, what);
    mine->is_sent.hold_up(device_.gpu->compute());
  }

  void receive(int32_t peer,
               int64_t channel,
               const at::Tensor& into,
               const comm::What& what) override {
    Link* const link = find({peer, group_.rank(), channel});
    if (link == nullptr) {
      return staged_->receive(peer, channel, into, what);
    }
    int64_t bytes = 0;
    group_.receive(peer, channel, &bytes, sizeof(bytes), what);
    PENSTOCK_CHECK(bytes == static_cast<int64_t>(into.nbytes()),
                   "rank ",
                   peer,
                   " sent ",
                   bytes,
                   " bytes for ",
                   into.nbytes(),
                   ": ",
                   what());
    gpu::Event is_free, is_there;
    is_free.record(device_.gpu->compute());  // what the memory was used for before is past
    is_free.hold_up(link->stream->get());
    link->cards->receive(into.data_ptr(), bytes, link->stream->get(), what);
    is_there.record(link->stream->get());
    is_there.hold_up(device_.gpu->compute());
  }

 private:
  struct Link {
    std::unique_ptr<OwnStream> stream;
    std::unique_ptr<comm::CardLink> cards;
  };

  Link* find(const Route& route) {
    const auto found = links_.find(route);
    return found == links_.end() ? nullptr : &found->second;
  }

  comm::Group& group_;
  const device::Device& device_;
  std::unique_ptr<Transfers> staged_;
  std::map<Route, Link> links_;
};

}  // namespace

std::unique_ptr<Transfers> make_gpu_transfers(comm::Group& group,
                                              const device::Device& device,
                                              const std::vector<Route>& routes) {
  if (group.shares_memory() || !comm::has_nccl()) {
    return make_gpu_transfers(group, device);
  }
  const double card = card_number(device);
  const std::vector<double> cards =
      group.all_gather(std::span(&card, 1), [] { return std::string("which GPU each rank has"); });
  return std::make_unique<CardTransfers>(group, device, routes, cards);
}

}  // namespace penstock::run
