#include "penstock/comm/exchange.h"

#include <algorithm>

#include "penstock/kernels/sums.h"

namespace penstock::comm {

namespace {

// Longer parts do not stay in a core's cache between arrival and addition; shorter ones cost more
// messages than that saves.
constexpr int64_t kMostPartBytes = int64_t{512} << 10;
constexpr int64_t kCacheLine = 64;

int64_t part_bytes(int64_t staging_bytes) {
  return std::min(staging_bytes / 2, kMostPartBytes) / kCacheLine * kCacheLine;
}

}  // namespace

Exchange::Exchange(const Setting& setting, void* data, Element element, int32_t first)
    : group_(setting.group),
      channel_(setting.channel),
      part_bytes_(part_bytes(static_cast<int64_t>(setting.staging.size()))),
      first_staging_(setting.staging.data()),
      second_staging_(setting.staging.data() + part_bytes_),
      what_(setting.what),
      sent_bytes_(setting.sent_bytes),
      data_(static_cast<std::byte*>(data)),
      element_(element),
      first_(first),
      size_(group_.size()),
      rank_((group_.rank() - first + size_) % size_) {}

int64_t Exchange::num_parts(Range range) const {
  return (range.bytes() + part_bytes_ - 1) / part_bytes_;
}

Range Exchange::part(Range range, int64_t index) const {
  const int64_t begin = std::min(range.begin + index * part_bytes_, range.end);
  return {begin, std::min(begin + part_bytes_, range.end)};
}

void Exchange::send(int32_t peer, Range range) {
  if (range.bytes() > 0) {
    tickets_.push_back(group_.send(group_rank(peer), channel_, data_ + range.begin, range.bytes()));
    sent_bytes_ += range.bytes();
  }
}

void Exchange::receive(int32_t peer, Range range) {
  receive_to(peer, data_ + range.begin, range.bytes());
}

void Exchange::add_received(int32_t peer, Range range) {
  add_received_to(peer, data_ + range.begin, range.bytes());
}

void Exchange::finish_sends(size_t left) {
  while (tickets_.size() > left) {
    group_.wait(tickets_.front(), what_);
    tickets_.pop_front();
  }
}

void Exchange::swap(const Swap& swap) {
  send(swap.to, swap.out);
  receive(swap.from, swap.in);
  finish_sends();
}

// No circle of ranks can wait for sends: each waits for one that was further behind.
void Exchange::swap_and_add(const Swap& swap) {
  const int64_t num_out = num_parts(swap.out);
  const int64_t num_in = num_parts(swap.in);
  int64_t num_sent = 0;
  for (int64_t i = 0; i < std::max(num_out, num_in); ++i) {
    for (; num_sent < std::min(i + kAhead, num_out); ++num_sent) {
      send(swap.to, part(swap.out, num_sent));
    }
    add_received(swap.from, part(swap.in, i));
    finish_sends(kAhead);
  }
  finish_sends();
}

void Exchange::add_in_order(Range part) {
  std::byte* const mine = data_ + part.begin;
  const int64_t bytes = part.bytes();
  if (rank_ > 0) {
    receive_to(0, second_staging_, bytes);
    for (int32_t peer = 1; peer < rank_; ++peer) {
      add_received_to(peer, second_staging_, bytes);
    }
    add(mine, second_staging_, bytes);
  }
  for (int32_t peer = rank_ + 1; peer < size_; ++peer) {
    add_received_to(peer, mine, bytes);
  }
}

void Exchange::receive_to(int32_t peer, std::byte* to, int64_t bytes) {
  if (bytes > 0) {
    group_.receive(group_rank(peer), channel_, to, bytes, what_);
  }
}

void Exchange::add_received_to(int32_t peer, std::byte* sum, int64_t bytes) {
  if (bytes == 0) {
    return;
  }
  if (group_.shares_memory()) {
    group_.receive_in_place(group_rank(peer), channel_, bytes, what_, [&](const void* values) {
      add(sum, values, bytes);
    });
    return;
  }
  receive_to(peer, first_staging_, bytes);
  add(sum, first_staging_, bytes);
}

void Exchange::add(std::byte* sum, const void* values, int64_t bytes) const {
  const int64_t count = bytes / element_bytes(element_);
  if (element_ == Element::Float32) {
    kernels::add(reinterpret_cast<float*>(sum), static_cast<const float*>(values), count);
  } else {
    kernels::add(
        reinterpret_cast<kernels::Bf16*>(sum), static_cast<const kernels::Bf16*>(values), count);
  }
}

}  // namespace penstock::comm
