// The least bytes that any stretch of a chain can do with, and the least with which nothing is run twice.
// For the solvers alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/plan/rotor_needs.h"

namespace penstock::plan {

inline size_t pair_index(int32_t i, int32_t l, int32_t last) {
  // Row i of the upper triangle comes after rows of last + 1, last, ... entries.
  const int64_t before = static_cast<int64_t>(i) * (2 * (int64_t{last} + 1) - i + 1) / 2;
  return static_cast<size_t>(before + l - i);
}

// The least bytes with which layers i .. l can be done at all, exactly, and the seconds above the
// fastest that the schedule behind it takes.
struct Least {
  int64_t bytes = kNoSchedule;
  double overhead = 0;

  void offer(int64_t other_bytes, double other_overhead) {
    if (other_bytes < bytes || (other_bytes == bytes && other_overhead < overhead)) {
      bytes = other_bytes;
      overhead = other_overhead;
    }
  }
};

class LeastTable {
 public:
  explicit LeastTable(const Needs& needs) : last_(needs.layers) {
    const size_t width = static_cast<size_t>(last_) + 1;
    table_.resize(width * (width + 1) / 2);
    for (int32_t length = 0; length <= last_; ++length) {
      for (int32_t i = 0; i + length <= last_; ++i) {
        fill(needs, i, i + length);
      }
    }
  }

  const Least& at(int32_t i, int32_t l) const { return table_[pair_index(i, l, last_)]; }

 private:
  void fill(const Needs& needs, int32_t i, int32_t l) {
    Least& least = table_[pair_index(i, l, last_)];
    if (i == last_) {
      least = {needs.loss, 0};
      return;
    }
    for (const ModeNeed& need : needs.mode(i)) {
      const int64_t own = needs.keeping(i, l, need);
      if (i == l) {
        least.offer(own, need.last_overhead);
      } else {
        const Least& rest = at(i + 1, l);
        least.offer(std::max(own, need.kept + rest.bytes), need.overhead + rest.overhead);
      }
    }
    SweepPeak sweep(needs, i, needs.gradient(l + 1));
    for (int32_t j = i + 1; j <= l; ++j) {
      const Least& right = at(j, l);
      const Least& left = at(i, j - 1);
      least.offer(std::max({sweep.until(j), needs.size(j) + right.bytes, left.bytes}),
                  needs.forward_between(i, j) + right.overhead + left.overhead);
    }
  }

  int32_t last_;
  std::vector<Least> table_;
};

// The least bytes with which every one of layers i .. l keeps in its fastest save mode, exactly: with more
// there is nothing to gain.
class WholeTable {
 public:
  explicit WholeTable(const Needs& needs) : last_(needs.layers) {
    const size_t width = static_cast<size_t>(last_) + 1;
    table_.resize(width * (width + 1) / 2, kNoSchedule);
    for (int32_t l = 0; l <= last_; ++l) {
      for (int32_t i = l; i >= 0; --i) {
        table_[pair_index(i, l, last_)] = bytes_of(needs, i, l);
      }
    }
  }

  // kNoSchedule where keeping is not the fastest: a strange table, in which running twice is faster.
  int64_t at(int32_t i, int32_t l) const { return table_[pair_index(i, l, last_)]; }

 private:
  int64_t bytes_of(const Needs& needs, int32_t i, int32_t l) const {
    if (i == last_) {
      return needs.loss;
    }
    int64_t least = kNoSchedule;
    const int64_t rest = i == l ? 0 : at(i + 1, l);
    for (const ModeNeed& need : needs.mode(i)) {
      if (needs.forward_between(i, i + 1) + need.last_overhead < 0) {
        return kNoSchedule;
      }
      if ((i == l ? need.last_overhead : need.overhead) <= 0 && rest != kNoSchedule) {
        const int64_t own = needs.keeping(i, l, need);
        least = std::min(least, i == l ? own : std::max(own, need.kept + rest));
      }
    }
    return least;
  }

  int32_t last_;
  std::vector<int64_t> table_;
};

}  // namespace penstock::plan
