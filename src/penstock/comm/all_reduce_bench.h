// How long an all-reduce takes between the ranks of a group, by each algorithm.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "penstock/comm/collectives.h"
#include "penstock/comm/group.h"

namespace penstock::comm {

struct AllReduceTime {
  Algorithm algorithm = Algorithm::Ring;
  int64_t bytes = 0;   // of the message
  double seconds = 0;  // of the slowest rank; the median of several runs
};

struct AllReduceBench {
  std::vector<int64_t> sizes;  // bytes, multiples of the element's
  Element element = Element::Float32;
  double seconds_per_size = 1;  // about; each algorithm runs a few times at least
  // Called on every rank before each size, with its number.
  std::function<void(size_t)> on_size = [](size_t) {};
  // Whether to stop before the next size; all ranks stop if one does.
  std::function<bool()> is_stopped = [] { return false; };
};

// All ranks call it; all get the same times. Sizes ascending, and for each the algorithms in their
// order. The runs of one size go round the algorithms, so that a disturbance meets all of them. Own
// is left out where it is Direct.
std::vector<AllReduceTime> measure_all_reduce(Group& group, const AllReduceBench& bench);

}  // namespace penstock::comm
