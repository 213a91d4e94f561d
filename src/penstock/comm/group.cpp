#include "penstock/comm/group.h"

#include <algorithm>

namespace penstock::comm {

Group::Group(int32_t rank, int32_t size) : rank_(rank), size_(size) {
  PENSTOCK_CHECK(0 <= rank && rank < size, "rank ", rank, " of ", size);
}

void Group::check_message(int32_t peer, int64_t channel, const void* data, int64_t bytes) const {
  PENSTOCK_CHECK(0 <= peer && peer < size_, "rank ", peer, " of ", size_);
  PENSTOCK_CHECK(0 <= channel && channel < kNumChannels, "channel ", channel);
  PENSTOCK_CHECK(bytes >= 0 && (data != nullptr || bytes == 0), bytes, " bytes");
}

Ticket Group::send(int32_t peer, int64_t channel, const void* data, int64_t bytes) {
  check_message(peer, channel, data, bytes);
  count_sent(bytes);
  return Ticket(start_send(peer, channel, data, bytes));
}

bool Group::is_done(Ticket& ticket) {
  if (ticket.sending_ != nullptr && is_sent(*ticket.sending_)) {
    ticket.sending_.reset();
  }
  return ticket.sending_ == nullptr;
}

void Group::wait(Ticket& ticket, const What& what) {
  if (ticket.sending_ != nullptr) {
    finish_send(*ticket.sending_, what);
    ticket.sending_.reset();
  }
}

void Group::receive(int32_t peer, int64_t channel, void* data, int64_t bytes, const What& what) {
  check_message(peer, channel, data, bytes);
  take(peer, channel, data, bytes, what);
}

void Group::receive_in_place(
    int32_t peer, int64_t channel, int64_t bytes, const What& what, const Use& use) {
  check_message(peer, channel, &use, bytes);
  take_in_place(peer, channel, bytes, what, use);
}

void Group::take_in_place(int32_t, int64_t, int64_t, const What& what, const Use&) {
  throw InternalError(cat("ranks of several processes cannot read each other's memory: ", what()));
}

Ticket Group::send_to_group(int32_t peer, const void* data, int64_t bytes) {
  count_sent(bytes);
  return Ticket(start_send(peer, kNumChannels, data, bytes));
}

void Group::barrier(const What& what) {
  all_gather({}, what);
}

std::vector<double> Group::all_gather(std::span<const double> values, const What& what) {
  const auto bytes = static_cast<int64_t>(values.size_bytes());
  std::vector<double> all(values.size() * static_cast<size_t>(size_));
  std::vector<Ticket> tickets;
  // Each rank starts with the next one, so that not all send to rank 0 at once.
  for (int32_t step = 1; step < size_; ++step) {
    tickets.push_back(send_to_group((rank_ + step) % size_, values.data(), bytes));
  }
  for (int32_t peer = 0; peer < size_; ++peer) {
    double* const place = all.data() + values.size() * static_cast<size_t>(peer);
    if (peer == rank_) {
      std::copy(values.begin(), values.end(), place);
    } else {
      take(peer, kNumChannels, place, bytes, what);
    }
  }
  for (Ticket& ticket : tickets) {
    wait(ticket, what);
  }
  return all;
}

void Group::broadcast(int32_t root, void* data, int64_t bytes, const What& what) {
  check_message(root, 0, data, bytes);
  if (rank_ != root) {
    take(root, kNumChannels, data, bytes, what);
    return;
  }
  std::vector<Ticket> tickets;
  for (int32_t step = 1; step < size_; ++step) {
    tickets.push_back(send_to_group((rank_ + step) % size_, data, bytes));
  }
  for (Ticket& ticket : tickets) {
    wait(ticket, what);
  }
}

InternalError Group::wrong_size(int32_t peer,
                                int64_t expected_bytes,
                                const std::string& sent_bytes,
                                const What& what) const {
  return InternalError(cat("rank ",
                           rank_,
                           " expected a message of ",
                           expected_bytes,
                           " bytes, but rank ",
                           peer,
                           " sent ",
                           sent_bytes,
                           ": ",
                           what()));
}

void Group::set_timeout(double seconds) {
  PENSTOCK_CHECK(seconds > 0, "a time-out of ", seconds, " s");
  timeout_ = seconds;
}

}  // namespace penstock::comm
