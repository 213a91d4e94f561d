// A step of two replicas to draw: layers "a" and "b", units of their own, and a table that the first
// layer and the loss share.
#pragma once

#include <vector>

#include "penstock/plan/pipeline.h"
#include "penstock/plan/shard.h"

#include "plan/small_model.h"

namespace penstock::report {

inline program::Program replicas_program(program::Shard shard) {
  plan::CostTable table;
  for (const char* name : {"a", "b"}) {
    plan::LayerCost layer{.name = name, .input_bytes = 4, .output_bytes = 4, .forward_s = 1};
    layer.modes = {{.forward_s = 1, .backward_s = 2, .saved_bytes = 10, .needs_output = false}};
    table.layers.push_back(layer);
  }
  table.loss.seconds = 1;
  plan::Pipeline pipeline{.schedule = schedule::make_schedule(schedule::Kind::OneFOneB, 1, 2),
                          .cuts = {0, 2}};
  pipeline.operations = plan::keep_everything(table, pipeline.cuts, 2);
  std::vector<program::Unit> units{test::own_unit(0), test::own_unit(1), test::table_unit({0, 2})};
  units[0].name = "a";
  units[1].name = "b";
  plan::Sharding sharding = test::two_replicas(shard, units);
  for (plan::UnitCost& unit : sharding.units) {
    unit.gathered_bytes = unit.bucket_bytes = 10;
    unit.gather_s = 0.5;
    unit.reduce_s = 0.25;
  }
  const plan::RankHoldings held = test::held_units({{.unit = 0}, {.unit = 1}, {.unit = 2}});
  return plan::finish_program(plan::shard(plan::write_turns(table, pipeline), sharding),
                              test::both_replicas(shard, units, {held}),
                              pipeline.link,
                              /*limit_bytes=*/0);
}

}  // namespace penstock::report
