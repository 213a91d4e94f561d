// Tensors between ranks that share a GPU: never read before they are made, never overwritten before
// they are copied, whatever the streams do meanwhile.
#include "penstock/run/transfers.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/base/text.h"

#include "gpu/gpu_ranks.h"

namespace penstock::run {

namespace {

using test::run_gpu_ranks;
using test::what;

enum class Transport { DeviceToDevice, Staged };

std::unique_ptr<Transfers> make(Transport transport,
                                comm::Group& group,
                                const device::Device& device) {
  return transport == Transport::Staged ? make_staged_transfers(group, device)
                                        : make_gpu_transfers(group, device);
}

// Keeps the compute stream busy for some milliseconds.
void dawdle(const device::Device& device) {
  const at::TensorOptions options = at::TensorOptions(device.where).dtype(at::kFloat);
  at::Tensor x = at::ones({2048, 2048}, options);
  for (int i = 0; i < 10; ++i) {
    x = at::mm(x, x).mul_(1e-4);
  }
}

std::string name_of(const testing::TestParamInfo<Transport>& transport) {
  return transport.param == Transport::Staged ? "Staged" : "DeviceToDevice";
}

class GpuTransfers : public test::OnGpu<testing::TestWithParam<Transport>> {};

}  // namespace

// The host is far ahead of the device when it sends, and when it overwrites what it has sent.
TEST_P(GpuTransfers, BringWhatWasThereWhenItWasSent) {
  run_gpu_ranks(2, [&](comm::Group& group, const device::Device& device) {
    const auto transfers = make(GetParam(), group, device);
    const at::TensorOptions options = at::TensorOptions(device.where).dtype(at::kFloat);
    for (int64_t round = 0; round < 20; ++round) {
      const int64_t count = int64_t{1} << (round % 11 * 2);  // to 4 MiB
      const float value = static_cast<float>(round + 1);
      if (group.rank() == 0) {
        at::Tensor tensor = at::zeros({count}, options);
        dawdle(device);
        tensor.fill_(value);
        const auto sent = transfers->send(1, 7, tensor);
        transfers->wait(*sent, what("a send"));
        tensor.fill_(-1);  // right behind the copy
      } else {
        dawdle(device);
        const at::Tensor into = at::full({count}, -2, options);
        transfers->receive(0, 7, into, what("it"));
        EXPECT_TRUE(at::all(into == value).item<bool>()) << "round " << round;
      }
    }
  });
}

// Freed memory goes to the next tensor of the stream at once: the copy must be ordered before that.
TEST_P(GpuTransfers, LetTheSenderFreeAndAllocateAgain) {
  run_gpu_ranks(2, [&](comm::Group& group, const device::Device& device) {
    const auto transfers = make(GetParam(), group, device);
    const at::TensorOptions options = at::TensorOptions(device.where).dtype(at::kInt);
    constexpr int64_t kCount = int64_t{1} << 20;
    for (int round = 0; round < 50; ++round) {
      if (group.rank() == 0) {
        {
          const at::Tensor tensor = at::full({kCount}, round, options);
          const auto sent = transfers->send(1, 0, tensor);
          transfers->wait(*sent, what("a send"));
        }
        const at::Tensor next = at::full({kCount}, -1, options);
      } else {
        const at::Tensor into = at::empty({kCount}, options);
        transfers->receive(0, 0, into, what("it"));
        EXPECT_TRUE(at::all(into == round).item<bool>()) << "round " << round;
      }
    }
  });
}

// Both send before they receive, on several channels that are received in another order.
TEST_P(GpuTransfers, CrossEachOtherAndKeepTheirChannels) {
  run_gpu_ranks(2, [&](comm::Group& group, const device::Device& device) {
    const auto transfers = make(GetParam(), group, device);
    const int32_t peer = 1 - group.rank();
    const at::TensorOptions options = at::TensorOptions(device.where).dtype(at::kLong);
    for (int64_t round = 0; round < 10; ++round) {
      std::vector<at::Tensor> tensors;
      std::vector<std::unique_ptr<Sent>> sent;
      for (int64_t channel = 0; channel < 4; ++channel) {
        tensors.push_back(at::full({1000 + channel}, 100 * group.rank() + channel, options));
        sent.push_back(transfers->send(peer, channel, tensors.back()));
      }
      for (int64_t channel = 3; channel >= 0; --channel) {
        const at::Tensor into = at::empty({1000 + channel}, options);
        transfers->receive(peer, channel, into, what("it"));
        EXPECT_TRUE(at::all(into == 100 * peer + channel).item<bool>());
      }
      for (const auto& one : sent) {
        transfers->wait(*one, what("a send"));
      }
    }
  });
}

TEST_P(GpuTransfers, OfAnotherSizeAreAnErrorThatNamesBoth) {
  try {
    run_gpu_ranks(2, [&](comm::Group& group, const device::Device& device) {
      const auto transfers = make(GetParam(), group, device);
      const at::TensorOptions options = at::TensorOptions(device.where).dtype(at::kByte);
      if (group.rank() == 0) {
        const at::Tensor tensor = at::zeros({512}, options);
        const auto sent = transfers->send(1, 0, tensor);
        transfers->wait(*sent, what("a send"));
      } else {
        transfers->receive(0, 0, at::empty({513}, options), what("the parcel"));
      }
    });
    ADD_FAILURE() << "513 bytes were made of 512";
  } catch (const Error& error) {
    const std::string line = error.what();
    for (const char* part : {"rank 1", "rank 0", "512", "513", "the parcel"}) {
      EXPECT_NE(line.find(part), std::string::npos) << line;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Transports,
                         GpuTransfers,
                         testing::Values(Transport::DeviceToDevice, Transport::Staged),
                         name_of);

}  // namespace penstock::run
