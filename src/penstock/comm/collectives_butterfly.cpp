#include <bit>

#include "penstock/comm/collective_algorithms.h"

namespace penstock::comm {

Fold::Fold(int32_t size)
    : core_size(static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(size)))),
      num_surplus(size - core_size) {}

std::vector<int64_t> Fold::blocks(Cuts cuts) const {
  std::vector<int64_t> offsets;
  for (int32_t core = 0; core <= core_size; ++core) {
    offsets.push_back(cuts[static_cast<size_t>(rank_of(core))]);
  }
  return offsets;
}

namespace {

Range block_range(Cuts blocks, int32_t begin, int32_t end) {
  return chunks(blocks, begin, end);
}

// The surplus rank gives all it has, its partner adds it.
void fold_in(Exchange& exchange, const Fold& fold, Range all) {
  if (fold.is_surplus(exchange.rank())) {
    const int32_t partner = exchange.rank() - 1;
    exchange.swap_and_add({.to = partner, .out = all, .from = partner, .in = {}});
  } else if (fold.has_surplus(exchange.rank())) {
    const int32_t partner = exchange.rank() + 1;
    exchange.swap_and_add({.to = partner, .out = {}, .from = partner, .in = all});
  }
}

// From a rank of the core to the one that left it its share.
void hand_back(Exchange& exchange, const Fold& fold, Range range) {
  if (fold.has_surplus(exchange.rank())) {
    exchange.send(exchange.rank() + 1, range);
    exchange.finish_sends();
  } else if (fold.is_surplus(exchange.rank())) {
    exchange.receive(exchange.rank() - 1, range);
  }
}

// Partners in the two halves of ever smaller groups of ranks: each adds up the half that it stays
// in.
void halve(Exchange& exchange, const Fold& fold, Cuts blocks) {
  const int32_t core = fold.core_of(exchange.rank());
  for (int32_t width = fold.core_size / 2; width > 0; width /= 2) {
    const int32_t low = core & ~(2 * width - 1);
    const int32_t middle = low + width;
    const Range lower = block_range(blocks, low, middle);
    const Range upper = block_range(blocks, middle, middle + width);
    const bool is_lower = core < middle;
    const int32_t partner = fold.rank_of(core ^ width);
    exchange.swap_and_add({.to = partner,
                           .out = is_lower ? upper : lower,
                           .from = partner,
                           .in = is_lower ? lower : upper});
  }
}

void double_up(Exchange& exchange, const Fold& fold, Cuts blocks) {
  const int32_t core = fold.core_of(exchange.rank());
  for (int32_t width = 1; width < fold.core_size; width *= 2) {
    const int32_t mine = core & ~(width - 1);
    const int32_t theirs = mine ^ width;
    const int32_t partner = fold.rank_of(core ^ width);
    exchange.swap({.to = partner,
                   .out = block_range(blocks, mine, mine + width),
                   .from = partner,
                   .in = block_range(blocks, theirs, theirs + width)});
  }
}

}  // namespace

void butterfly_all_reduce(Exchange& exchange, Cuts blocks) {
  const Fold fold(exchange.size());
  fold_in(exchange, fold, whole(blocks));
  if (!fold.is_surplus(exchange.rank())) {
    halve(exchange, fold, blocks);
    double_up(exchange, fold, blocks);
  }
  hand_back(exchange, fold, whole(blocks));
}

void butterfly_reduce_scatter(Exchange& exchange, Cuts cuts) {
  const Fold fold(exchange.size());
  fold_in(exchange, fold, whole(cuts));
  if (!fold.is_surplus(exchange.rank())) {
    halve(exchange, fold, fold.blocks(cuts));
  }
  if (fold.has_surplus(exchange.rank())) {
    hand_back(exchange, fold, chunk(cuts, exchange.rank() + 1));
  } else if (fold.is_surplus(exchange.rank())) {
    hand_back(exchange, fold, chunk(cuts, exchange.rank()));
  }
}

void butterfly_all_gather(Exchange& exchange, Cuts cuts) {
  const Fold fold(exchange.size());
  const int32_t surplus = exchange.rank() | 1;
  if (fold.is_surplus(exchange.rank())) {
    exchange.send(surplus - 1, chunk(cuts, surplus));
    exchange.finish_sends();
  } else {
    if (fold.has_surplus(exchange.rank())) {
      exchange.receive(surplus, chunk(cuts, surplus));
    }
    double_up(exchange, fold, fold.blocks(cuts));
  }
  if (fold.is_surplus(exchange.rank()) || fold.has_surplus(exchange.rank())) {
    hand_back(exchange, fold, chunks(cuts, 0, surplus));
    hand_back(exchange, fold, chunks(cuts, surplus + 1, exchange.size()));
  }
}

}  // namespace penstock::comm
