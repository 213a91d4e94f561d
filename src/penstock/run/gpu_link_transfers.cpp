#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <cuda_runtime_api.h>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/philox.h"
#include "penstock/comm/gpu_channel.h"
#include "penstock/comm/nccl.h"
#include "penstock/comm/wait.h"
#include "penstock/device/gpu_context.h"
#include "penstock/gpu/check.h"
#include "penstock/gpu/events.h"
#include "penstock/run/transfers.h"

namespace penstock::run {

namespace {

// A number for the GPU of this rank, the same for all that share it and for no others; as a
// double, which is what ranks can gather.
double gpu_number(const device::Device& device) {
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

class SentByGpu final : public Sent {
 public:
  int64_t bytes = 0;  // the word that goes with it
  gpu::Event is_sent;
  comm::Ticket ticket;
};

// Every rank has a GPU of its own. Routes go from GPU to GPU, each on a link and a stream of its
// own: channels do not hold up each other.
class LinkTransfers final : public Transfers {
 public:
  LinkTransfers(comm::Group& group, const device::Device& device, const std::vector<Route>& routes)
      : group_(group), device_(device) {
    const at::Tensor byte = at::zeros({1}, at::TensorOptions(device.where).dtype(at::kByte));
    device.gpu->wait();
    for (const Route& route : routes) {
      if (route.from == group.rank() || route.to == group.rank()) {
        connect(route, byte);
      }
    }
  }

  std::unique_ptr<Sent> send(int32_t peer, int64_t channel, const at::Tensor& tensor) override {
    Link& link = find({group_.rank(), peer, channel});
    gpu::Event is_made;
    is_made.record(device_.gpu->compute());
    is_made.hold_up(link.stream->get());
    auto sent = std::make_unique<SentByGpu>();
    sent->bytes = static_cast<int64_t>(tensor.nbytes());
    sent->ticket = link.channel->send(
        tensor.const_data_ptr(), sent->bytes, [&] { return cat("a send to rank ", peer); });
    sent->is_sent.record(link.stream->get());
    return sent;
  }

  void wait(Sent& sent, const comm::What& what) override {
    auto& mine = static_cast<SentByGpu&>(sent);
    group_.wait(mine.ticket, what);
    mine.is_sent.hold_up(device_.gpu->compute());
  }

  void receive(int32_t peer,
               int64_t channel,
               const at::Tensor& into,
               const comm::What& what) override {
    Link& link = find({peer, group_.rank(), channel});
    gpu::Event is_free, is_there;
    is_free.record(device_.gpu->compute());  // what the memory was used for before is past
    is_free.hold_up(link.stream->get());
    link.channel->receive(into.data_ptr(), static_cast<int64_t>(into.nbytes()), what);
    is_there.record(link.stream->get());
    is_there.hold_up(device_.gpu->compute());
  }

 private:
  struct Link {
    std::unique_ptr<OwnStream> stream;
    std::unique_ptr<comm::GpuChannel> channel;
  };

  // Called in the same order at both ends, and by ranks with several routes in the order of all.
  void connect(const Route& route, const at::Tensor& byte) {
    Link& link = links_[route];
    link.stream = std::make_unique<OwnStream>();
    link.channel = std::make_unique<comm::GpuChannel>(
        group_,
        route.from,
        route.to,
        route.channel,
        comm::connect_gpus(group_, route.from, route.to, route.channel),
        link.stream->get());
    const comm::What what = [&] {
      return cat("the first byte between the GPUs of ranks ", route.from, " and ", route.to);
    };
    link.channel->open(byte.data_ptr(), what);
    comm::Wait wait(group_.rank(), link.channel->peer(), what);
    for (;;) {
      const cudaError_t state = cudaStreamQuery(link.stream->get());
      if (state != cudaErrorNotReady) {
        PENSTOCK_CUDA(state);
        return;
      }
      cudaGetLastError();  // would answer "not ready" after the next launch
      if (wait.seconds() > group_.timeout()) {
        throw comm::Timeout(wait.timeout_line());
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  Link& find(const Route& route) {
    const auto found = links_.find(route);
    PENSTOCK_CHECK(found != links_.end(),
                   "no link from rank ",
                   route.from,
                   " to rank ",
                   route.to,
                   " for channel ",
                   route.channel);
    return found->second;
  }

  comm::Group& group_;
  const device::Device& device_;
  std::map<Route, Link> links_;
};

}  // namespace

std::unique_ptr<Transfers> make_transfers(comm::Group& group,
                                          const device::Device& device,
                                          const std::vector<Route>& routes) {
  if (!device.is_gpu()) {
    return make_cpu_transfers(group);
  }
  if (!device.gpu->options().uses_nccl) {
    return make_gpu_transfers(group, device);
  }
  const double number = gpu_number(device);
  const std::vector<double> numbers = group.all_gather(
      std::span(&number, 1), [] { return std::string("which GPU each rank has"); });
  comm::require_own_gpus(numbers);
  return std::make_unique<LinkTransfers>(group, device, routes);
}

}  // namespace penstock::run
