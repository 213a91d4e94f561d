// What a run has to work with beside the model: the devices' memory and the links between ranks, by
// level. Probed (train/machine.h) or read from a plan's file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/comm/mesh.h"
#include "penstock/plan/link_cost.h"
#include "penstock/plan/link_costs.h"

namespace penstock::plan {

struct Machine {
  // What one allocation takes is a multiple of this.
  int64_t block_bytes = 1;
  // A limit bounds the pages that a device's allocator takes, and it may leave so much of them unused.
  int64_t spare_page_bytes = 0;
  // What tensors may take under a limit; 0: there is none.
  int64_t tensor_limit(int64_t limit_bytes) const {
    return limit_bytes == 0 ? 0 : std::max<int64_t>(1, limit_bytes - spare_page_bytes);
  }

  // Ranks of one node are neighbours in number, as launchers place them.
  int32_t ranks_per_node = 1 << 20;
  LinkCost within_node;
  LinkCost between_nodes;
  bool ranks_are_threads = true;
  // Collectives as they were measured (plan.links); nothing: by the links.
  std::optional<LinkCosts> collectives = {};

  int64_t block(int64_t bytes) const {
    return (bytes + block_bytes - 1) / block_bytes * block_bytes;
  }
  // The slowest that some of the ranks have between them.
  LinkCost among(const std::vector<int32_t>& ranks) const;
  // The slowest that the groups along an axis have.
  LinkCost along(const comm::Mesh& mesh, comm::Axis axis) const;

  bool operator==(const Machine&) const = default;
};

}  // namespace penstock::plan
