#include "penstock/plan/machine.h"

#include <algorithm>

namespace penstock::plan {

LinkCost Machine::among(const std::vector<int32_t>& ranks) const {
  const bool is_one_node = std::all_of(ranks.begin(), ranks.end(), [&](int32_t rank) {
    return rank / ranks_per_node == ranks.front() / ranks_per_node;
  });
  return is_one_node ? within_node : between_nodes;
}

LinkCost Machine::along(const comm::Mesh& mesh, comm::Axis axis) const {
  for (int32_t rank = 0; rank < mesh.ranks(); ++rank) {
    const std::vector<int32_t> group = comm::members(mesh, comm::along(axis), rank);
    const bool is_one_node = std::all_of(group.begin(), group.end(), [&](int32_t other) {
      return other / ranks_per_node == rank / ranks_per_node;
    });
    if (!is_one_node) {
      return between_nodes;
    }
  }
  return within_node;
}

}  // namespace penstock::plan
