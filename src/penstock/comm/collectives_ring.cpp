#include "penstock/comm/collective_algorithms.h"

namespace penstock::comm {

// In step s a rank passes on the sum of chunk (rank - 1 - s), to which s ranks before it have
// added; after size - 1 steps its own chunk comes by, complete but for its own share.
void ring_reduce_scatter(Exchange& exchange, Cuts cuts) {
  const int32_t size = exchange.size();
  const int32_t next = (exchange.rank() + 1) % size;
  const int32_t before = (exchange.rank() + size - 1) % size;
  for (int32_t step = 0; step + 1 < size; ++step) {
    const int32_t out = (exchange.rank() + 2 * size - 1 - step) % size;
    const int32_t in = (out + size - 1) % size;
    exchange.swap_and_add(
        {.to = next, .out = chunk(cuts, out), .from = before, .in = chunk(cuts, in)});
  }
}

void ring_all_gather(Exchange& exchange, Cuts cuts) {
  const int32_t size = exchange.size();
  const int32_t next = (exchange.rank() + 1) % size;
  const int32_t before = (exchange.rank() + size - 1) % size;
  for (int32_t step = 0; step + 1 < size; ++step) {
    const int32_t out = (exchange.rank() + size - step) % size;
    const int32_t in = (out + size - 1) % size;
    exchange.swap({.to = next, .out = chunk(cuts, out), .from = before, .in = chunk(cuts, in)});
  }
}

}  // namespace penstock::comm
