// Which rank has which layers of a chain.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/model/chain.h"
#include "penstock/program/program.h"

namespace penstock::run {

// In the order of the chain. Stage s has the layers cuts[s] .. cuts[s + 1] - 1, the last one the
// loss.
struct Stages {
  std::vector<int32_t> rank_of;
  std::vector<int32_t> cuts;
};

std::vector<model::Part> parts_of(const Stages& stages, int32_t ranks);
// Of each stage of ranks, by the work in their lists.
std::vector<model::Part> parts_of(const program::Program& program);

}  // namespace penstock::run
