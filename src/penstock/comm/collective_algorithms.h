// The algorithms behind collectives.h, one file each; only comm/ includes this. `cuts` are offsets
// in bytes, one more than there are ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "penstock/comm/exchange.h"

namespace penstock::comm {

using Cuts = std::span<const int64_t>;

inline Range chunk(Cuts cuts, int32_t rank) {
  const auto at = static_cast<size_t>(rank);
  return {cuts[at], cuts[at + 1]};
}
// Of all ranks from the one up to the other.
inline Range chunks(Cuts cuts, int32_t begin, int32_t end) {
  return {cuts[static_cast<size_t>(begin)], cuts[static_cast<size_t>(end)]};
}
inline Range whole(Cuts cuts) {
  return {cuts.front(), cuts.back()};
}

// A rank's place in a tree with rank 0 at the top, below which ranks follow each other: the ranks
// of a subtree are those from its top up to `end`.
struct TreePlace {
  struct Child {
    int32_t rank;
    int32_t end;
  };
  int32_t parent = -1;  // of rank 0: none
  int32_t end = 0;
  std::vector<Child> children;  // ascending
};
TreePlace star_place(int32_t rank, int32_t size);      // all below rank 0
TreePlace binomial_place(int32_t rank, int32_t size);  // as many levels as the count has bits
TreePlace chain_place(int32_t rank, int32_t size);     // each below the one before

void tree_reduce(Exchange& exchange, const TreePlace& place, Range range);  // to rank 0
void tree_broadcast(Exchange& exchange, const TreePlace& place, Range range);
void tree_scatter(Exchange& exchange, const TreePlace& place, Cuts cuts);
void tree_gather(Exchange& exchange, const TreePlace& place, Cuts cuts);

void ring_reduce_scatter(Exchange& exchange, Cuts cuts);
void ring_all_gather(Exchange& exchange, Cuts cuts);

void direct_reduce_scatter(Exchange& exchange, Cuts cuts);
void direct_all_gather(Exchange& exchange, Cuts cuts);
void direct_broadcast(Exchange& exchange, Cuts cuts);

// How a butterfly has a power of two of ranks, its core: where there are more, each of the first
// ones with an odd number leaves its share to the rank before it.
struct Fold {
  explicit Fold(int32_t size);

  bool is_surplus(int32_t rank) const { return rank < 2 * num_surplus && rank % 2 == 1; }
  bool has_surplus(int32_t rank) const { return rank < 2 * num_surplus && rank % 2 == 0; }
  int32_t core_of(int32_t rank) const {
    return rank < 2 * num_surplus ? rank / 2 : rank - num_surplus;
  }
  int32_t rank_of(int32_t core) const { return core < num_surplus ? 2 * core : core + num_surplus; }
  // The blocks of the core ranks: the chunks of those they stand for.
  std::vector<int64_t> blocks(Cuts cuts) const;

  int32_t core_size;
  int32_t num_surplus;
};
// `blocks` as even as the caller likes: one more than core_size.
void butterfly_all_reduce(Exchange& exchange, Cuts blocks);
void butterfly_reduce_scatter(Exchange& exchange, Cuts cuts);
void butterfly_all_gather(Exchange& exchange, Cuts cuts);

}  // namespace penstock::comm
