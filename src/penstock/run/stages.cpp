#include "penstock/run/stages.h"

#include <algorithm>

namespace penstock::run {

std::vector<model::Part> parts_of(const Stages& stages, int32_t ranks) {
  std::vector<model::Part> parts(static_cast<size_t>(ranks), {.layers = {}, .has_loss = false});
  const size_t num_stages = stages.rank_of.size();
  for (size_t stage = 0; stage < num_stages; ++stage) {
    model::Part& part = parts[static_cast<size_t>(stages.rank_of[stage])];
    for (int32_t layer = stages.cuts[stage]; layer < stages.cuts[stage + 1]; ++layer) {
      part.layers.push_back(layer);
    }
    part.has_loss = part.has_loss || stage + 1 == num_stages;
  }
  for (model::Part& part : parts) {
    std::sort(part.layers.begin(), part.layers.end());
  }
  return parts;
}

std::vector<model::Part> parts_of(const program::Program& program) {
  std::vector<model::Part> parts(static_cast<size_t>(program.mesh.pipeline),
                                 {.layers = {}, .has_loss = false});
  for (int32_t rank = 0; rank < program.mesh.ranks(); ++rank) {
    model::Part& part = parts[static_cast<size_t>(program.stage_of(rank))];
    for (const program::Instruction& one : program.ranks[static_cast<size_t>(rank)].instructions) {
      if (one.op == program::Op::Loss) {
        part.has_loss = true;
      } else if (program::is_at_layer(one.op) &&
                 std::find(part.layers.begin(), part.layers.end(), one.layer) ==
                     part.layers.end()) {
        part.layers.push_back(one.layer);
      }
    }
    std::sort(part.layers.begin(), part.layers.end());
  }
  return parts;
}

}  // namespace penstock::run
