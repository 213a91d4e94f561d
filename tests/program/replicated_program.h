// Sound programs of two replicas, small enough to break by hand.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "penstock/plan/pipeline.h"
#include "penstock/plan/shard.h"
#include "penstock/program/program.h"
#include "penstock/program/verify.h"

namespace penstock::test {

// Two layers "a" and "b", units 0 and 1 of their own and unit 2 "table", which layer 0 and the loss
// share. Of one rank, or of two, twice.
inline program::Program replicated_program(program::Shard shard,
                                           int32_t stages = 1,
                                           schedule::Kind kind = schedule::Kind::OneFOneB,
                                           int32_t micro_batches = 2) {
  plan::CostTable table;
  for (const char* name : {"a", "b"}) {
    plan::LayerCost layer{.name = name, .input_bytes = 4, .output_bytes = 4, .forward_s = 1};
    layer.ways = {{.forward_s = 1, .backward_s = 2, .saved_bytes = 10, .needs_output = false}};
    table.layers.push_back(layer);
  }
  table.loss.seconds = 1;
  table.target_bytes = 1;
  plan::Pipeline pipeline{
      .schedule = schedule::make_schedule(kind, stages, micro_batches),
      .cuts = stages == 1 ? std::vector<int32_t>{0, 2} : std::vector<int32_t>{0, 1, 2}};
  pipeline.operations = plan::keep_everything(table, pipeline.cuts, micro_batches);
  const std::vector<std::vector<program::Resident>> residents(static_cast<size_t>(stages));
  return plan::shard(
      plan::lower_pipeline(table, pipeline, residents, 0),
      {.replicas = 2,
       .shard = shard,
       .units = {{{"a", {0}}, 10, 10, 0.5, 0.25},
                 {{"b", {1}}, 20, 20, 0.5, 0.25},
                 {{"table", {0, 2}}, 40, 40, 0.5, 0.25}},
       .residents = std::vector<std::vector<program::Resident>>(2 * static_cast<size_t>(stages))});
}

// The n-th instruction of this kind in a rank's list.
inline size_t place_of(const program::RankProgram& rank, program::Op op, int n = 0) {
  for (size_t i = 0; i < rank.instructions.size(); ++i) {
    if (rank.instructions[i].op == op && n-- == 0) {
      return i;
    }
  }
  throw std::runtime_error("no such instruction");
}

inline program::ValueId value_named(const program::RankProgram& rank, const std::string& name) {
  const std::vector<std::string> names = value_names(rank);
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    throw std::runtime_error("no value " + name);
  }
  return static_cast<program::ValueId>(found - names.begin());
}

inline std::string fault_of(const program::Program& program) {
  const program::Verdict verdict = verify(program);
  return verdict.is_sound() ? "" : verdict.violation->text;
}

}  // namespace penstock::test
