#include "penstock/comm/collective_traffic.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "penstock/comm/collective_algorithms.h"

namespace penstock::comm {

namespace {

// Levels of a binomial tree.
int32_t num_levels(int32_t size) {
  return std::bit_width(static_cast<uint32_t>(size - 1));
}

// The tree of Naive or of Tree.
TreePlace place_of(Algorithm algorithm, int32_t rank, int32_t size) {
  return algorithm == Algorithm::Naive ? star_place(rank, size) : binomial_place(rank, size);
}

int32_t tree_steps(Algorithm algorithm, int32_t size) {
  return algorithm == Algorithm::Naive ? size - 1 : num_levels(size);
}

int64_t sent_up(const TreePlace& place, int64_t bytes) {
  return place.parent >= 0 ? bytes : 0;
}

int64_t sent_down(const TreePlace& place, int64_t bytes) {
  return bytes * static_cast<int64_t>(place.children.size());
}

// All chunks below the rank.
int64_t scattered(const TreePlace& place, Cuts cuts, int32_t rank) {
  return chunks(cuts, rank + 1, std::max(rank + 1, place.end)).bytes();
}

int32_t butterfly_steps(const Fold& fold) {
  return std::bit_width(static_cast<uint32_t>(fold.core_size)) - 1;
}

// Of every step one half is kept, down to the rank's own block.
int64_t halved(Cuts blocks, int32_t core) {
  return whole(blocks).bytes() - chunk(blocks, core).bytes();
}

int64_t doubled(Cuts blocks, int32_t core) {
  int64_t bytes = 0;
  for (int32_t width = 1; width < static_cast<int32_t>(blocks.size()) - 1; width *= 2) {
    const int32_t first = core / width * width;
    bytes += chunks(blocks, first, first + width).bytes();
  }
  return bytes;
}

Traffic butterfly_reduce_scatter_traffic(int32_t rank, Cuts cuts) {
  const Fold fold(static_cast<int32_t>(cuts.size()) - 1);
  const int32_t steps = butterfly_steps(fold) + (fold.num_surplus > 0 ? 2 : 0);
  if (fold.is_surplus(rank)) {
    return {whole(cuts).bytes(), steps};
  }
  const int64_t back = fold.has_surplus(rank) ? chunk(cuts, rank + 1).bytes() : 0;
  return {halved(fold.blocks(cuts), fold.core_of(rank)) + back, steps};
}

Traffic butterfly_all_gather_traffic(int32_t rank, Cuts cuts) {
  const Fold fold(static_cast<int32_t>(cuts.size()) - 1);
  const int32_t steps = butterfly_steps(fold) + (fold.num_surplus > 0 ? 2 : 0);
  if (fold.is_surplus(rank)) {
    return {chunk(cuts, rank).bytes(), steps};
  }
  const int64_t back =
      fold.has_surplus(rank) ? whole(cuts).bytes() - chunk(cuts, rank + 1).bytes() : 0;
  return {doubled(fold.blocks(cuts), fold.core_of(rank)) + back, steps};
}

Traffic butterfly_all_reduce_traffic(int32_t rank,
                                     int32_t size,
                                     int64_t count,
                                     int64_t bytes_each) {
  const Fold fold(size);
  const int32_t steps = 2 * butterfly_steps(fold) + (fold.num_surplus > 0 ? 2 : 0);
  const int64_t all = count * bytes_each;
  if (fold.is_surplus(rank)) {
    return {all, steps};
  }
  const std::vector<int64_t> blocks = even_cuts(count, fold.core_size);
  const int32_t core = fold.core_of(rank);
  const int64_t exchanged = bytes_each * (halved(blocks, core) + doubled(blocks, core));
  return {exchanged + (fold.has_surplus(rank) ? all : 0), steps};
}

}  // namespace

Traffic all_reduce_traffic(
    Algorithm algorithm, int32_t rank, int32_t size, int64_t count, Element element) {
  const int64_t bytes_each = element_bytes(element);
  switch (algorithm) {
    case Algorithm::Naive:
    case Algorithm::Tree: {
      const TreePlace place = place_of(algorithm, rank, size);
      const int64_t all = count * bytes_each;
      return {sent_up(place, all) + sent_down(place, all), 2 * tree_steps(algorithm, size)};
    }
    case Algorithm::Butterfly:
      return butterfly_all_reduce_traffic(rank, size, count, bytes_each);
    case Algorithm::Ring:
    case Algorithm::Direct:
    case Algorithm::Own:
      break;
  }
  const std::vector<int64_t> cuts = even_cuts(count, size);
  const Traffic first = reduce_scatter_traffic(algorithm, rank, cuts, element);
  const Traffic second = all_gather_traffic(algorithm, rank, cuts);
  return {first.bytes + bytes_each * second.bytes, first.steps + second.steps};
}

Traffic reduce_scatter_traffic(Algorithm algorithm,
                               int32_t rank,
                               std::span<const int64_t> cuts,
                               Element element) {
  const auto size = static_cast<int32_t>(cuts.size()) - 1;
  const auto in_bytes = [&](Traffic of_elements) {
    return Traffic{of_elements.bytes * element_bytes(element), of_elements.steps};
  };
  switch (algorithm) {
    case Algorithm::Naive:
    case Algorithm::Tree: {
      const TreePlace place = place_of(algorithm, rank, size);
      return in_bytes({sent_up(place, whole(cuts).bytes()) + scattered(place, cuts, rank),
                       2 * tree_steps(algorithm, size)});
    }
    case Algorithm::Butterfly:
      return in_bytes(butterfly_reduce_scatter_traffic(rank, cuts));
    case Algorithm::Ring:
    case Algorithm::Own:
      return in_bytes({whole(cuts).bytes() - chunk(cuts, rank).bytes(), size - 1});
    case Algorithm::Direct:
      return in_bytes({whole(cuts).bytes() - chunk(cuts, rank).bytes(), size > 1 ? 1 : 0});
  }
  return {};
}

Traffic all_gather_traffic(Algorithm algorithm, int32_t rank, std::span<const int64_t> byte_cuts) {
  const Cuts cuts = byte_cuts;
  const auto size = static_cast<int32_t>(cuts.size()) - 1;
  switch (algorithm) {
    case Algorithm::Naive:
    case Algorithm::Tree: {
      const TreePlace place = place_of(algorithm, rank, size);
      return {sent_up(place, chunks(cuts, rank, place.end).bytes()) +
                  sent_down(place, whole(cuts).bytes()),
              2 * tree_steps(algorithm, size)};
    }
    case Algorithm::Butterfly:
      return butterfly_all_gather_traffic(rank, cuts);
    case Algorithm::Ring:
    case Algorithm::Own:
      return {whole(cuts).bytes() - chunk(cuts, (rank + 1) % size).bytes(), size - 1};
    case Algorithm::Direct:
      return {chunk(cuts, rank).bytes() * (size - 1), size > 1 ? 1 : 0};
  }
  return {};
}

Traffic broadcast_traffic(
    Algorithm algorithm, int32_t root, int32_t rank, int32_t size, int64_t bytes) {
  const int32_t number = (rank - root + size) % size;
  const std::vector<int64_t> cuts = even_cuts(bytes, size);
  switch (algorithm) {
    case Algorithm::Naive:
    case Algorithm::Tree:
      return {sent_down(place_of(algorithm, number, size), bytes), tree_steps(algorithm, size)};
    case Algorithm::Butterfly: {
      const Traffic gathered = butterfly_all_gather_traffic(number, cuts);
      return {scattered(binomial_place(number, size), cuts, number) + gathered.bytes,
              num_levels(size) + gathered.steps};
    }
    case Algorithm::Ring:
    case Algorithm::Own:
      return {number + 1 < size ? bytes : 0, size - 1};
    case Algorithm::Direct: {
      const int64_t mine = chunk(cuts, number).bytes();
      return {number == 0 ? bytes - mine + mine * (size - 1) : mine * std::max(0, size - 2),
              size > 2   ? 2
              : size > 1 ? 1
                         : 0};
    }
  }
  return {};
}

}  // namespace penstock::comm
