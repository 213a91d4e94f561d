#include "penstock/plan/bare_pipeline.h"

#include <algorithm>

#include "penstock/base/error.h"
#include "penstock/program/verify.h"

namespace penstock::plan {

namespace {

CostTable bare_costs(int32_t stages, int32_t stages_per_rank, const BareTimes& times) {
  const double share = 1.0 / static_cast<double>(stages_per_rank);
  CostTable table;
  for (int32_t stage = 0; stage < stages; ++stage) {
    LayerCost layer;
    layer.name = cat("stage ", stage);
    layer.forward_s = times.forward * share;
    layer.backward_input_s = times.backward_input * share;
    layer.backward_weight_s = times.backward_weight * share;
    layer.weight_state_bytes = 0;
    layer.modes = {{.forward_s = layer.forward_s,
                    .backward_s = layer.backward_input_s + layer.backward_weight_s,
                    .needs_output = false}};
    table.layers.push_back(std::move(layer));
  }
  return table;
}

// Seconds from the first start to the last end of what a rank computes, at the longest.
double longest_rank(const program::Program& program, const program::Timeline& timeline) {
  double longest = 0;
  for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
    double first = timeline.seconds;
    double last = 0;
    for (const program::Span& span : timeline.ranks[rank].spans) {
      const program::Instruction& instruction =
          program.ranks[rank].instructions[static_cast<size_t>(span.instruction)];
      const bool is_phase = instruction.op == program::Op::Forward ||
                            instruction.op == program::Op::Backward ||
                            instruction.op == program::Op::BackwardInput ||
                            instruction.op == program::Op::BackwardWeight;
      if (is_phase) {
        first = std::min(first, span.start);
        last = std::max(last, span.end);
      }
    }
    longest = std::max(longest, last - first);
  }
  return longest;
}

}  // namespace

BarePipeline run_bare_pipeline(schedule::Kind kind,
                               const schedule::Sizes& sizes,
                               const BareTimes& times) {
  BarePipeline bare;
  bare.schedule = schedule::make_schedule(kind, sizes);
  const int32_t stages = bare.schedule.stages();
  const CostTable table = bare_costs(stages, schedule::stages_per_rank(kind, sizes.chunks), times);
  Pipeline pipeline{.schedule = bare.schedule, .link = {.latency_s = times.transfer}};
  for (int32_t cut = 0; cut <= stages; ++cut) {
    pipeline.cuts.push_back(cut);
  }
  pipeline.operations = keep_everything(table, pipeline.cuts, bare.schedule.micro_batches);
  pipeline.weight_bytes = weight_bytes_by_rank(table, pipeline);
  bare.program = lower_pipeline(table, pipeline, holdings_by_rank(table, pipeline), 0);
  const program::Verdict verdict = program::verify(bare.program);
  PENSTOCK_CHECK(verdict.is_sound(), "an unsound pipeline: ", verdict.violation->text);
  bare.timeline = program::simulate(bare.program);
  bare.step = bare.timeline.seconds / bare.schedule.updates;
  const double busy = static_cast<double>(bare.schedule.micro_batches) *
                      (times.forward + times.backward_input + times.backward_weight);
  const double longest = longest_rank(bare.program, bare.timeline);
  bare.bubble = longest > 0 ? (longest - busy) / longest : 0;
  bare.in_flight = schedule::most_in_flight(bare.schedule);
  return bare;
}

}  // namespace penstock::plan
