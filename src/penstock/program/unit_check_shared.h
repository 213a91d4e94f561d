// What the files of the check of units share; for them alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "penstock/program/program.h"

namespace penstock::program {

inline bool is_ascending(const std::vector<int32_t>& list) {
  return std::adjacent_find(list.begin(), list.end(), std::greater_equal<>()) == list.end();
}

// The slices that a rank's step moves; nothing where it does not hold the unit.
const std::vector<Slice>* owned_slices(const RankProgram& rank, int32_t unit);

}  // namespace penstock::program
