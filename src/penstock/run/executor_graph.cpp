// The executor on a device that can record: the step as one graph.
#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/parameters.h"
#include "penstock/run/executor_step.h"

namespace penstock::run {

bool Executor::run_recorded(Step& step) {
  const double scale = step.scales[0] * step.input.loss_scale;
  // The loss's scale is a number in the recorded kernels: another scale needs another graph.
  if (!graph_ || graph_scale_ != scale) {
    graph_.reset();
    graph_ = device::make_step_graph(parameters_.device());
    begin_record();
    try {
      memory::refuse_over_limit([&] { graph_->begin(); });
      stopwatch_->restart();
      stopwatch_->mark();
      run_instructions(0, update_at_, step);
      graph_->end();
      graph_->replay();
    } catch (const OutOfMemory& error) {
      // A graph has its memory to itself, so it may fail where a plain step fits. Nothing has run
      // yet.
      log_warning("the step is not recorded as a graph: ", error.what());
      step.slots = std::vector<Slot>(rank_.values.size());
      graph_.reset();
      inputs_.forget_fixed();
      uses_graph_ = false;
      give_inputs(step);
      return false;
    } catch (...) {
      graph_.reset();
      throw;
    }
    graph_scale_ = scale;
    graph_losses_ = step.losses;
  } else {
    // Its memory is that of the step that was recorded, up to the update.
    program::RankTimeline& record = measured_.ranks.front();
    record.spans.clear();
    record.busy_seconds.clear();
    record.memory.resize(2 * update_at_ + 1);
    step.losses = graph_losses_;
    stopwatch_->restart(static_cast<int64_t>(update_at_) + 1);
    graph_->replay();
  }
  return true;
}

void Executor::use_graph() {
  for (int64_t i = 0; i < chain_.size(); ++i) {
    PENSTOCK_CHECK(!chain_.layer(i).is_random(), "a step with random layers cannot be recorded");
  }
  // A device that cannot record has none: every step then runs its list.
  uses_graph_ = device::make_step_graph(parameters_.device()) != nullptr;
}

void Executor::release_graph() {
  graph_.reset();
}

}  // namespace penstock::run
