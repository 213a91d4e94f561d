#include "penstock/plan/machine.h"

#include <algorithm>

namespace penstock::plan {

LinkCost Machine::between(int32_t rank, int32_t other) const {
  return rank / ranks_per_node == other / ranks_per_node ? within_node : between_nodes;
}

LinkCost Machine::among(const std::vector<int32_t>& ranks) const {
  const bool is_one_node = std::all_of(ranks.begin(), ranks.end(), [&](int32_t rank) {
    return rank / ranks_per_node == ranks.front() / ranks_per_node;
  });
  return is_one_node ? within_node : between_nodes;
}

LinkCost Machine::along(const comm::Mesh& mesh, comm::Axis axis) const {
  return among(comm::members(mesh, comm::along(axis), 0));
}

}  // namespace penstock::plan
