#include "penstock/comm/collectives.h"

#include <algorithm>
#include <array>

#include "penstock/comm/collective_algorithms.h"
#include "penstock/comm/collective_traffic.h"

namespace penstock::comm {

namespace {

constexpr std::array<std::string_view, 6> kNames = {
    "naive", "tree", "butterfly", "ring", "direct", "own"};

std::vector<int64_t> in_bytes(std::span<const int64_t> cuts, Element element) {
  std::vector<int64_t> bytes(cuts.begin(), cuts.end());
  for (int64_t& cut : bytes) {
    cut *= element_bytes(element);
  }
  return bytes;
}

// Naive is a tree with all ranks below the first.
TreePlace place_in_tree(const Exchange& exchange, Algorithm algorithm) {
  return algorithm == Algorithm::Naive ? star_place(exchange.rank(), exchange.size())
                                       : binomial_place(exchange.rank(), exchange.size());
}

void run_all_reduce(Exchange& exchange, int64_t count, Element element, Algorithm algorithm) {
  const int32_t size = exchange.size();
  const Range all{0, count * element_bytes(element)};
  switch (algorithm) {
    case Algorithm::Naive:
    case Algorithm::Tree: {
      const TreePlace place = place_in_tree(exchange, algorithm);
      tree_reduce(exchange, place, all);
      return tree_broadcast(exchange, place, all);
    }
    case Algorithm::Butterfly:
      return butterfly_all_reduce(exchange,
                                  in_bytes(even_cuts(count, Fold(size).core_size), element));
    case Algorithm::Ring: {
      const std::vector<int64_t> cuts = in_bytes(even_cuts(count, size), element);
      ring_reduce_scatter(exchange, cuts);
      return ring_all_gather(exchange, cuts);
    }
    case Algorithm::Direct:
    case Algorithm::Own: {
      const std::vector<int64_t> cuts = in_bytes(even_cuts(count, size), element);
      direct_reduce_scatter(exchange, cuts);
      return direct_all_gather(exchange, cuts);
    }
  }
}

void run_reduce_scatter(Exchange& exchange, Cuts cuts, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::Naive:
    case Algorithm::Tree: {
      const TreePlace place = place_in_tree(exchange, algorithm);
      tree_reduce(exchange, place, whole(cuts));
      return tree_scatter(exchange, place, cuts);
    }
    case Algorithm::Butterfly:
      return butterfly_reduce_scatter(exchange, cuts);
    case Algorithm::Ring:
      return ring_reduce_scatter(exchange, cuts);
    case Algorithm::Direct:
    case Algorithm::Own:
      return direct_reduce_scatter(exchange, cuts);
  }
}

void run_all_gather(Exchange& exchange, Cuts cuts, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::Naive:
    case Algorithm::Tree: {
      const TreePlace place = place_in_tree(exchange, algorithm);
      tree_gather(exchange, place, cuts);
      return tree_broadcast(exchange, place, whole(cuts));
    }
    case Algorithm::Butterfly:
      return butterfly_all_gather(exchange, cuts);
    case Algorithm::Ring:
      return ring_all_gather(exchange, cuts);
    case Algorithm::Direct:
    case Algorithm::Own:
      return direct_all_gather(exchange, cuts);
  }
}

void run_broadcast(Exchange& exchange, int64_t bytes, Algorithm algorithm) {
  const int32_t rank = exchange.rank();
  const int32_t size = exchange.size();
  const std::vector<int64_t> cuts = even_cuts(bytes, size);
  switch (algorithm) {
    case Algorithm::Naive:
    case Algorithm::Tree:
      return tree_broadcast(exchange, place_in_tree(exchange, algorithm), whole(cuts));
    case Algorithm::Butterfly:
      tree_scatter(exchange, binomial_place(rank, size), cuts);
      return butterfly_all_gather(exchange, cuts);
    case Algorithm::Ring:
      return tree_broadcast(exchange, chain_place(rank, size), whole(cuts));
    case Algorithm::Direct:
    case Algorithm::Own:
      return direct_broadcast(exchange, cuts);
  }
}

}  // namespace

std::string_view algorithm_name(Algorithm algorithm) {
  return kNames[static_cast<size_t>(algorithm)];
}

std::optional<Algorithm> parse_algorithm(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) {
    return std::nullopt;
  }
  return static_cast<Algorithm>(found - kNames.begin());
}

std::vector<int64_t> even_cuts(int64_t count, int32_t chunks) {
  std::vector<int64_t> cuts{0};
  for (int32_t i = 0; i < chunks; ++i) {
    cuts.push_back(cuts.back() + count / chunks + (i < count % chunks ? 1 : 0));
  }
  return cuts;
}

Collectives::Collectives(Group& group, int64_t channel, std::span<std::byte> staging)
    : group_(group), channel_(channel), staging_(staging) {
  PENSTOCK_CHECK(static_cast<int64_t>(staging.size()) >= kLeastStaging &&
                     reinterpret_cast<uintptr_t>(staging.data()) % alignof(float) == 0,
                 staging.size(),
                 " bytes of staging at ",
                 staging.data());
}

void Collectives::all_reduce(
    void* data, int64_t count, Element element, Algorithm algorithm, const What& what) {
  PENSTOCK_CHECK(count >= 0, count, " elements");
  if (group_.size() == 1 || count == 0) {
    return;
  }
  if (is_own(algorithm)) {
    group_.own_collectives()->all_reduce(data, count, element, what);
    count_own(all_reduce_traffic(algorithm, group_.rank(), group_.size(), count, element).bytes);
    return;
  }
  Exchange exchange({group_, channel_, staging_, what, sent_bytes_}, data, element);
  run_all_reduce(exchange, count, element, algorithm);
}

void Collectives::reduce_scatter(void* data,
                                 std::span<const int64_t> cuts,
                                 Element element,
                                 Algorithm algorithm,
                                 const What& what) {
  check_cuts(cuts);
  if (group_.size() == 1 || cuts.back() == 0) {
    return;
  }
  if (is_own(algorithm)) {
    group_.own_collectives()->reduce_scatter(data, cuts, element, what);
    count_own(reduce_scatter_traffic(algorithm, group_.rank(), cuts, element).bytes);
    return;
  }
  Exchange exchange({group_, channel_, staging_, what, sent_bytes_}, data, element);
  run_reduce_scatter(exchange, in_bytes(cuts, element), algorithm);
}

void Collectives::all_gather(void* data,
                             std::span<const int64_t> byte_cuts,
                             Algorithm algorithm,
                             const What& what) {
  check_cuts(byte_cuts);
  if (group_.size() == 1 || byte_cuts.back() == 0) {
    return;
  }
  if (is_own(algorithm)) {
    group_.own_collectives()->all_gather(data, byte_cuts, what);
    count_own(all_gather_traffic(algorithm, group_.rank(), byte_cuts).bytes);
    return;
  }
  Exchange exchange({group_, channel_, staging_, what, sent_bytes_}, data, Element::Float32);
  run_all_gather(exchange, byte_cuts, algorithm);
}

void Collectives::broadcast(
    int32_t root, void* data, int64_t bytes, Algorithm algorithm, const What& what) {
  PENSTOCK_CHECK(0 <= root && root < group_.size() && bytes >= 0,
                 bytes,
                 " bytes from rank ",
                 root,
                 " of ",
                 group_.size());
  if (group_.size() == 1 || bytes == 0) {
    return;
  }
  if (is_own(algorithm)) {
    group_.own_collectives()->broadcast(root, data, bytes, what);
    count_own(broadcast_traffic(algorithm, root, group_.rank(), group_.size(), bytes).bytes);
    return;
  }
  Exchange exchange({group_, channel_, staging_, what, sent_bytes_}, data, Element::Float32, root);
  run_broadcast(exchange, bytes, algorithm);
}

void Collectives::count_own(int64_t bytes) {
  sent_bytes_ += bytes;
  group_.count_sent(bytes);
}

bool Collectives::is_own(Algorithm algorithm) const {
  return algorithm == Algorithm::Own && group_.own_collectives() != nullptr;
}

void Collectives::check_cuts(std::span<const int64_t> cuts) const {
  PENSTOCK_CHECK(static_cast<int64_t>(cuts.size()) == group_.size() + 1 && cuts.front() == 0 &&
                     std::is_sorted(cuts.begin(), cuts.end()),
                 cuts.size(),
                 " cuts for ",
                 group_.size(),
                 " ranks, or not ascending from 0");
}

}  // namespace penstock::comm
