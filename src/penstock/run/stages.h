// Which rank has which layers of a chain.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/model/chain.h"

namespace penstock::run {

// In the order of the chain. Stage s has the layers cuts[s] .. cuts[s + 1] - 1, the last one the
// loss.
struct Stages {
  std::vector<int32_t> rank_of;
  std::vector<int32_t> cuts;
};

std::vector<model::Part> parts_of(const Stages& stages, int32_t ranks);

}  // namespace penstock::run
