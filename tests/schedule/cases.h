// The sizes that the schedules are tested at.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "penstock/base/text.h"
#include "penstock/schedule/schedule.h"

namespace penstock::schedule::test {

struct Case {
  Kind kind = Kind::GPipe;
  int32_t ranks = 1;
  int32_t micro_batches = 1;
  int32_t chunks = 1;

  Schedule make() const { return make_schedule(kind, ranks, micro_batches, chunks); }
  std::string name() const {
    return cat(kind_name(kind),
               ", ",
               ranks,
               " ranks, ",
               micro_batches,
               " micro-batches, ",
               chunks,
               " chunks");
  }
};

// All kinds with 1 to 8 ranks and 13, 1 to 20 micro-batches and some more, and 1 to 4 chunks; of
// asynchronous ones a single update (asynchronous_test.cpp has several).
inline std::vector<Case> all_cases() {
  std::vector<int32_t> micro_batches(20);
  std::iota(micro_batches.begin(), micro_batches.end(), 1);
  micro_batches.insert(micro_batches.end(), {31, 32, 33, 67});
  std::vector<Case> cases;
  for (const std::string& name : kind_names()) {
    const Kind kind = parse_kind(name);
    const int32_t most_chunks = kind == Kind::Interleaved ? 4 : 1;
    for (const int32_t ranks : {1, 2, 3, 4, 5, 6, 7, 8, 13}) {
      for (const int32_t count : micro_batches) {
        if (kind == Kind::PipeDream2BW && count < ranks) {
          continue;
        }
        for (int32_t chunks = 1; chunks <= most_chunks; ++chunks) {
          cases.push_back({kind, ranks, count, chunks});
        }
      }
    }
  }
  return cases;
}

}  // namespace penstock::schedule::test
