// One collective under way at one rank: its data, and messages of parts of it. What the algorithms
// are written in; only comm/ includes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "penstock/comm/group.h"
#include "penstock/comm/own_collectives.h"

namespace penstock::comm {

// Bytes of the data, from one offset to another.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t bytes() const { return end - begin; }
};

class Exchange {
 public:
  struct Setting {
    Group& group;
    int64_t channel;
    std::span<std::byte> staging;
    const What& what;
    int64_t& sent_bytes;
  };

  // Ranks are numbered from `first` on, round the group: a broadcast comes from number 0.
  Exchange(const Setting& setting, void* data, Element element, int32_t first = 0);

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }

  // A message that is to be added goes in parts of this many bytes, two of which fit into the
  // staging; so does one that is passed on, so that the next rank need not wait for all of it.
  int64_t num_parts(Range range) const;
  Range part(Range range, int64_t index) const;

  // The ranges of a message are the same at both ends, and so is whether it goes in parts. Empty
  // ones are not sent.
  void send(int32_t peer, Range range);  // starts it
  void receive(int32_t peer, Range range);
  void add_received(int32_t peer, Range range);  // of one part
  // Waits until at most so many sends are under way. What was sent must not change before.
  void finish_sends(size_t left = 0);

  // Sends one range and receives another, whole.
  struct Swap {
    int32_t to;
    Range out;
    int32_t from;
    Range in;
  };
  void swap(const Swap& swap);
  // The same in parts, and adds what comes.
  void swap_and_add(const Swap& swap);

  // Sums the part over all ranks in their order: ((0 + 1) + 2) + ...
  void add_in_order(Range part);

  // How many parts a sender is ahead of what it waits for.
  static constexpr int64_t kAhead = 8;

 private:
  int32_t group_rank(int32_t number) const { return (number + first_) % size_; }
  void receive_to(int32_t peer, std::byte* to, int64_t bytes);
  void add_received_to(int32_t peer, std::byte* sum, int64_t bytes);
  void add(std::byte* sum, const void* values, int64_t bytes) const;

  Group& group_;
  const int64_t channel_;
  const int64_t part_bytes_;
  std::byte* const first_staging_;
  std::byte* const second_staging_;
  const What& what_;
  int64_t& sent_bytes_;
  std::byte* const data_;
  const Element element_;
  const int32_t first_;
  const int32_t size_;
  const int32_t rank_;
  std::deque<Ticket> tickets_;
};

}  // namespace penstock::comm
