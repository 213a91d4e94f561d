// The executor on a GPU: inputs by way of pinned memory, and the step as one recorded graph.
#include <cstring>

#include <ATen/ATen.h>

#include "penstock/base/error.h"
#include "penstock/base/log.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/parameters.h"
#include "penstock/run/executor_step.h"

namespace penstock::run {

// By way of pinned memory, from which a copy to the device needs no waiting. The memory can be used
// again at the next step, for every step ends with the device's work done.
at::Tensor Executor::upload(size_t given, const at::Tensor& part) {
  staged_inputs_.resize(rank_.given.size());
  graph_inputs_.resize(rank_.given.size());
  at::Tensor& staged = staged_inputs_[given];
  const bool is_new = !staged.defined() || staged.sizes() != part.sizes();
  PENSTOCK_CHECK(!staged.defined() || !is_new || program_.is_evaluation(),
                 "the batches of a step have one size");
  if (is_new) {
    staged = at::empty(part.sizes(), part.options().pinned_memory(true));
  }
  std::memcpy(staged.data_ptr(), part.contiguous().const_data_ptr(), part.nbytes());
  at::Tensor& fixed = graph_inputs_[given];
  if (uses_graph_ && fixed.defined()) {
    return fixed.copy_(staged, /*non_blocking=*/true);
  }
  const at::Tensor made = staged.to(parameters_.device().where, /*non_blocking=*/true);
  if (uses_graph_) {
    fixed = made;
  }
  return made;
}

bool Executor::run_recorded(Step& step) {
  const double scale = step.scales[0] * step.input.loss_scale;
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
      graph_inputs_.clear();
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
  uses_graph_ = parameters_.device().is_gpu();
}

void Executor::release_graph() {
  graph_.reset();
}

}  // namespace penstock::run
