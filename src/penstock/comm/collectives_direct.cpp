#include <algorithm>

#include "penstock/comm/collective_algorithms.h"

namespace penstock::comm {

// All sends are started before anything is waited for, as far as Exchange::kAhead reaches. Each
// rank starts with the next one, so that not all send to rank 0 at once.
void direct_reduce_scatter(Exchange& exchange, Cuts cuts) {
  const int32_t rank = exchange.rank();
  const int32_t size = exchange.size();
  int64_t most_parts = 0;
  for (int32_t one = 0; one < size; ++one) {
    most_parts = std::max(most_parts, exchange.num_parts(chunk(cuts, one)));
  }
  const Range mine = chunk(cuts, rank);
  int64_t num_sent = 0;
  for (int64_t i = 0; i < most_parts; ++i) {
    for (; num_sent < std::min(i + Exchange::kAhead, most_parts); ++num_sent) {
      for (int32_t step = 1; step < size; ++step) {
        const int32_t owner = (rank + step) % size;
        exchange.send(owner, exchange.part(chunk(cuts, owner), num_sent));
      }
    }
    exchange.add_in_order(exchange.part(mine, i));
    exchange.finish_sends(static_cast<size_t>(Exchange::kAhead * (size - 1)));
  }
  exchange.finish_sends();
}

void direct_all_gather(Exchange& exchange, Cuts cuts) {
  const int32_t rank = exchange.rank();
  const int32_t size = exchange.size();
  for (int32_t step = 1; step < size; ++step) {
    exchange.send((rank + step) % size, chunk(cuts, rank));
  }
  for (int32_t step = 1; step < size; ++step) {
    const int32_t peer = (rank + size - step) % size;
    exchange.receive(peer, chunk(cuts, peer));
  }
  exchange.finish_sends();
}

// Rank 0 deals out the chunks, each of the others sends its own to the rest.
void direct_broadcast(Exchange& exchange, Cuts cuts) {
  const int32_t rank = exchange.rank();
  const int32_t size = exchange.size();
  if (rank == 0) {
    for (int32_t peer = 1; peer < size; ++peer) {
      exchange.send(peer, chunk(cuts, peer));
    }
    for (int32_t peer = 1; peer < size; ++peer) {
      exchange.send(peer, chunk(cuts, 0));
    }
    exchange.finish_sends();
    return;
  }
  exchange.receive(0, chunk(cuts, rank));
  for (int32_t step = 1; step < size; ++step) {
    if (const int32_t peer = (rank + step) % size; peer != 0) {
      exchange.send(peer, chunk(cuts, rank));
    }
  }
  for (int32_t step = 1; step < size; ++step) {
    const int32_t peer = (rank + size - step) % size;
    exchange.receive(peer, chunk(cuts, peer));
  }
  exchange.finish_sends();
}

}  // namespace penstock::comm
