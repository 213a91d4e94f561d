// Messages of random sizes between all ranks, whose every byte follows from where they belong; the
// same for ranks that are threads and ranks that are processes.
#pragma once

#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "penstock/comm/group.h"

namespace penstock::comm::test {

inline What words(const std::string& text) {
  return [text] { return text; };
}

struct Message {
  int32_t from;
  int32_t to;
  int64_t channel;
  int64_t number;
  int64_t bytes;
};

inline std::vector<Message> random_messages(int32_t ranks, int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t end) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
  };
  std::vector<Message> messages;
  for (int64_t number = 0; number < count; ++number) {
    const auto from = static_cast<int32_t>(below(ranks));
    const auto to = static_cast<int32_t>(below(ranks));
    const int64_t most = int64_t{1} << below(18);  // most messages are small
    messages.push_back({from, to, below(3), number, below(most + 1)});
  }
  return messages;
}

inline std::vector<uint8_t> content(const Message& message) {
  std::vector<uint8_t> bytes(static_cast<size_t>(message.bytes));
  auto value = static_cast<uint32_t>(message.number * 2654435761 + message.from * 97 + message.to);
  for (uint8_t& byte : bytes) {
    value = value * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(value >> 24);
  }
  return bytes;
}

inline void receive_and_compare(Group& group, const Message& message) {
  // One byte more than it needs, to see that nothing is written past the end.
  std::vector<uint8_t> bytes(static_cast<size_t>(message.bytes) + 1, 0xA5);
  const What what = words(cat("message ", message.number));
  group.receive(message.from, message.channel, bytes.data(), message.bytes, what);
  std::vector<uint8_t> expected = content(message);
  expected.push_back(0xA5);
  if (bytes != expected) {
    throw std::runtime_error(cat("message ", message.number, " is not what was sent"));
  }
}

// Every rank starts all its sends, then receives channel by channel, the last channel first: what
// was sent first has to stay out of the way.
inline void swap_messages(Group& group, const std::vector<Message>& messages) {
  std::vector<std::vector<uint8_t>> sent;
  std::vector<Ticket> tickets;
  for (const Message& message : messages) {
    if (message.from == group.rank()) {
      sent.push_back(content(message));
      const void* const data = sent.back().data();
      tickets.push_back(group.send(message.to, message.channel, data, message.bytes));
    }
  }
  for (int64_t channel = 2; channel >= 0; --channel) {
    for (const Message& message : messages) {
      if (message.to == group.rank() && message.channel == channel) {
        receive_and_compare(group, message);
      }
    }
  }
  for (Ticket& ticket : tickets) {
    group.wait(ticket, words("the end of a send"));
    if (!group.is_done(ticket)) {
      throw std::runtime_error("a ticket that was waited for is not done");
    }
  }
}

inline void random_traffic(Group& group, int64_t rounds) {
  for (int64_t round = 0; round < rounds; ++round) {
    swap_messages(group, random_messages(group.size(), 40, static_cast<uint64_t>(round)));
  }
}

}  // namespace penstock::comm::test
