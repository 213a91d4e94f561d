// What a run has to work with beside the model: the devices' memory and the links between ranks, by
// level. Probed (train/machine.h) or read from a plan's file.
#pragma once

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
  // What a device's allocator may leave unused of the pages it has taken, under a limit.
  int64_t spare_page_bytes = 0;

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
