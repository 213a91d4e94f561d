#include "penstock/run/transfers.h"

#include <utility>

namespace penstock::run {

namespace {

class SentBytes final : public Sent {
 public:
  explicit SentBytes(comm::Ticket its_ticket) : ticket(std::move(its_ticket)) {}

  comm::Ticket ticket;
};

class CpuTransfers final : public Transfers {
 public:
  explicit CpuTransfers(comm::Group& group) : group_(group) {}

  std::unique_ptr<Sent> send(int32_t peer, int64_t channel, const at::Tensor& tensor) override {
    return std::make_unique<SentBytes>(
        group_.send(peer, channel, tensor.const_data_ptr(), static_cast<int64_t>(tensor.nbytes())));
  }

  void wait(Sent& sent, const comm::What& what) override {
    group_.wait(static_cast<SentBytes&>(sent).ticket, what);
  }

  void receive(int32_t peer,
               int64_t channel,
               const at::Tensor& into,
               const comm::What& what) override {
    group_.receive(peer, channel, into.data_ptr(), static_cast<int64_t>(into.nbytes()), what);
  }

 private:
  comm::Group& group_;
};

}  // namespace

std::unique_ptr<Transfers> make_cpu_transfers(comm::Group& group) {
  return std::make_unique<CpuTransfers>(group);
}

}  // namespace penstock::run
