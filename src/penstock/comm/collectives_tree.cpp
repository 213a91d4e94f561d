#include <algorithm>
#include <bit>

#include "penstock/comm/collective_algorithms.h"

namespace penstock::comm {

TreePlace star_place(int32_t rank, int32_t size) {
  if (rank > 0) {
    return {.parent = 0, .end = rank + 1};
  }
  TreePlace place{.end = size};
  for (int32_t child = 1; child < size; ++child) {
    place.children.push_back({child, child + 1});
  }
  return place;
}

// A rank's parent is the one without its lowest bit.
TreePlace binomial_place(int32_t rank, int32_t size) {
  const int32_t lowest =
      rank == 0 ? static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(size))) : rank & -rank;
  TreePlace place{.parent = rank == 0 ? -1 : rank - lowest, .end = std::min(rank + lowest, size)};
  for (int32_t bit = 1; bit < lowest && rank + bit < size; bit *= 2) {
    place.children.push_back({rank + bit, std::min(rank + 2 * bit, size)});
  }
  return place;
}

TreePlace chain_place(int32_t rank, int32_t size) {
  TreePlace place{.parent = rank - 1, .end = size};
  if (rank + 1 < size) {
    place.children.push_back({rank + 1, size});
  }
  return place;
}

void tree_reduce(Exchange& exchange, const TreePlace& place, Range range) {
  for (int64_t i = 0; i < exchange.num_parts(range); ++i) {
    const Range part = exchange.part(range, i);
    for (const TreePlace::Child& child : place.children) {
      exchange.add_received(child.rank, part);
    }
    if (place.parent >= 0) {
      exchange.send(place.parent, part);
      exchange.finish_sends(Exchange::kAhead);
    }
  }
  exchange.finish_sends();
}

// The child with the largest subtree first: it has most to pass on.
void tree_broadcast(Exchange& exchange, const TreePlace& place, Range range) {
  for (int64_t i = 0; i < exchange.num_parts(range); ++i) {
    const Range part = exchange.part(range, i);
    if (place.parent >= 0) {
      exchange.receive(place.parent, part);
    }
    for (auto child = place.children.rbegin(); child != place.children.rend(); ++child) {
      exchange.send(child->rank, part);
    }
    exchange.finish_sends(Exchange::kAhead * place.children.size());
  }
  exchange.finish_sends();
}

void tree_scatter(Exchange& exchange, const TreePlace& place, Cuts cuts) {
  if (place.parent >= 0) {
    exchange.receive(place.parent, chunks(cuts, exchange.rank(), place.end));
  }
  for (auto child = place.children.rbegin(); child != place.children.rend(); ++child) {
    exchange.send(child->rank, chunks(cuts, child->rank, child->end));
  }
  exchange.finish_sends();
}

void tree_gather(Exchange& exchange, const TreePlace& place, Cuts cuts) {
  for (const TreePlace::Child& child : place.children) {
    exchange.receive(child.rank, chunks(cuts, child.rank, child.end));
  }
  if (place.parent >= 0) {
    exchange.send(place.parent, chunks(cuts, exchange.rank(), place.end));
  }
  exchange.finish_sends();
}

}  // namespace penstock::comm
