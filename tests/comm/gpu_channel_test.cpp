#include "penstock/comm/gpu_channel.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/comm/local.h"

#include "comm/traffic.h"

namespace penstock::comm {
namespace {

using test::words;

// What two ends share. Like NCCL's, it connects at its first use: that send waits until the peer
// receives. Later sends do not wait.
struct FakeWire {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::vector<uint8_t>> messages;
  std::vector<int64_t> sizes;  // of all messages, in order
  int64_t num_receives = 0;    // that were begun
  bool waits_always = false;   // every send waits for its receive
};

class FakeLink final : public GpuLink {
 public:
  explicit FakeLink(FakeWire& wire) : wire_(wire) {}

  void send(const void* data, int64_t bytes, CUstream_st*, const What& what) override {
    std::unique_lock lock(wire_.mutex);
    const auto* first = static_cast<const uint8_t*>(data);
    wire_.messages.emplace_back(first, first + bytes);
    wire_.sizes.push_back(bytes);
    wire_.changed.notify_all();
    const int64_t wanted = wire_.waits_always ? static_cast<int64_t>(wire_.sizes.size()) : 1;
    wait(lock, what, [&] { return wire_.num_receives >= wanted; });
  }

  void receive(void* data, int64_t bytes, CUstream_st*, const What& what) override {
    std::unique_lock lock(wire_.mutex);
    ++wire_.num_receives;
    wire_.changed.notify_all();
    wait(lock, what, [&] { return !wire_.messages.empty(); });
    ASSERT_EQ(static_cast<int64_t>(wire_.messages.front().size()), bytes);
    std::memcpy(data, wire_.messages.front().data(), static_cast<size_t>(bytes));
    wire_.messages.pop_front();
  }

 private:
  template <typename Condition>
  void wait(std::unique_lock<std::mutex>& lock, const What& what, const Condition& condition) {
    if (!wire_.changed.wait_for(lock, std::chrono::seconds(5), condition)) {
      throw Timeout("a link waits for its other end: " + what());
    }
  }

  FakeWire& wire_;
};

GpuChannel make_channel(Group& group, FakeWire& wire) {
  return {group, /*from=*/0, /*to=*/1, /*channel=*/7, std::make_unique<FakeLink>(wire), nullptr};
}

int64_t receive_number(GpuChannel& channel) {
  int64_t number = 0;
  channel.receive(&number, sizeof(number), words("a number"));
  return number;
}

TEST(GpuChannel, SendsWaitForNobodyOnceItIsOpen) {
  FakeWire wire;
  run_local(2, [&](Group& group) {
    GpuChannel channel = make_channel(group, wire);
    EXPECT_EQ(channel.peer(), 1 - group.rank());
    uint8_t byte = group.rank() == 0 ? 42 : 0;
    channel.open(&byte, words("the first byte"));
    EXPECT_EQ(byte, 42);
    if (group.rank() == 0) {
      const int64_t numbers[] = {3, 5};
      const int64_t bytes = sizeof(int64_t);
      Ticket first = channel.send(&numbers[0], bytes, words("the first"));
      Ticket second = channel.send(&numbers[1], bytes, words("the second"));
      group.barrier(words("the sends"));  // the peer receives after it
      group.wait(first, words("the first"));
      group.wait(second, words("the second"));
    } else {
      group.barrier(words("the sends"));
      EXPECT_EQ(receive_number(channel), 3);
      EXPECT_EQ(receive_number(channel), 5);
    }
  });
  EXPECT_EQ(wire.sizes, (std::vector<int64_t>{1, 8, 8}));
}

// A receiver comes to the link only when it has heard of the message.
TEST(GpuChannel, TellsOfAMessageBeforeItGoesOverTheLink) {
  FakeWire wire;
  wire.waits_always = true;
  run_local(2, [&](Group& group) {
    GpuChannel channel = make_channel(group, wire);
    if (group.rank() == 0) {
      const int64_t number = 9, bytes = sizeof(number);
      Ticket ticket = channel.send(&number, bytes, words("a send"));
      group.wait(ticket, words("a send"));
    } else {
      EXPECT_EQ(receive_number(channel), 9);
    }
  });
}

TEST(GpuChannel, RefusesAMessageOfAnotherSize) {
  FakeWire wire;
  std::string line;
  try {
    run_local(2, [&](Group& group) {
      GpuChannel channel = make_channel(group, wire);
      uint8_t byte = 0;
      channel.open(&byte, words("the first byte"));
      if (group.rank() == 0) {
        const int64_t number = 9, bytes = 4;
        Ticket ticket = channel.send(&number, bytes, words("a send"));
        group.wait(ticket, words("a send"));
      } else {
        receive_number(channel);
      }
    });
  } catch (const Error& error) {
    line = error.what();
  }
  EXPECT_NE(line.find("rank 0 sent 4 bytes for 8: a number"), std::string::npos) << line;
}

std::string config_error(const std::function<void()>& work) {
  try {
    work();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(GpuChannel, IsNotForRanksThatShareAGpu) {
  EXPECT_EQ(config_error([] { require_own_gpus(std::vector<double>{4, 5, 6}); }), "");
  EXPECT_EQ(config_error([] {
              require_own_gpus(std::vector<double>{4, 5, 4});
            }),
            "run.links = \"nccl\" needs a GPU for each rank, and ranks 0 and 2 share one; start as "
            "many ranks on a machine as it has GPUs, or try run.links = \"auto\"");
}

TEST(GpuChannel, IsNotForThreads) {
  run_local(2, [](Group& group) {
    EXPECT_EQ(config_error([&] { require_processes(group); }),
              "run.links = \"nccl\" links ranks that are processes, and these are threads of one; "
              "start them with mpirun or srun, or try run.links = \"auto\"");
  });
}

}  // namespace
}  // namespace penstock::comm
