// ROTOR for one stage of a pipeline. A micro-batch comes to a stage twice: its forward leaves what
// is held while it waits, its backward starts from there. docs/rotor.md has the recurrence.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/plan/pipeline.h"
#include "penstock/plan/rotor_needs.h"
#include "penstock/plan/stage_use.h"
#include "penstock/plan/step_function.h"

namespace penstock::plan {

// The most bytes that a micro-batch may have of its own at the stage, as StageUse counts them.
struct StageRoom {
  int64_t forward = 0;
  int64_t held = 0;
  int64_t backward = 0;
};

struct StageChoice {
  StageOperations operations;
  StageUse use;
};

class StageRotor {
 public:
  // splits: backward is split into input gradient and weight gradient. ConfigError where the stage
  // has too many layers to plan.
  StageRotor(const CostTable& table, const std::vector<int32_t>& cuts, int32_t stage, bool splits);

  // Nothing where no operations fit. Bytes are exact where there are few sizes; elsewhere some
  // levels of memory are not told apart, never to the cost of the limit.
  std::optional<StageChoice> fastest(const StageRoom& room) const;

  // All that are worth a thought: faster than any other with as little held and as low peaks, in
  // all or from the gradient's arrival on. In the order of their seconds.
  std::vector<StageChoice> choices() const;

 private:
  // Both phases have the bytes that are held and these.
  struct Free {
    int64_t forward = 0;
    int64_t backward = 0;
  };
  // Before the gradient is there, a rank may have nothing else to do: then forwards cost nothing.
  enum class Lead { Counts, IsFree };
  struct Spine {
    Free free;
    Lead lead = Lead::Counts;
    std::vector<StepFunction> from;  // by layer: seconds over the bytes that may be held
  };

  const StepFunction& segment(int32_t i, int32_t l, Lead lead = Lead::Counts) const;
  double keep_seconds(int32_t i, int32_t l, size_t mode, Lead lead) const;
  double sweep_seconds(int32_t i, int32_t j, Lead lead) const;
  int64_t work_after(int32_t l) const;
  int64_t gradient_bytes(int32_t l) const;
  int64_t backward_need(int32_t i, size_t mode) const;
  int64_t keep_need(int32_t i, int32_t l, size_t mode) const;
  int64_t held_of(int32_t i, size_t mode) const;
  int64_t targets() const;
  int64_t most_carried_bytes() const;

  StepFunction solve_segment(int32_t i, int32_t l, Lead lead) const;
  Spine solve_spine(const Free& free, Lead lead) const;
  StepFunction solve_spine_from(int32_t i, const Spine& spine) const;
  void unfold_segment(int32_t i, int32_t l, Lead lead, int64_t bytes, Operations& out) const;
  struct SpineStep {
    size_t mode = 0;       // in which layer i keeps
    int32_t jump_to = -1;  // or where a sweep that keeps nothing but its input ends
  };
  bool is_sent(int32_t j) const;
  int64_t stored_bytes(int32_t j) const;
  SpineStep best_step(const Spine& spine, int32_t i, int64_t held) const;
  StageOperations unfold_spine(const Spine& spine, int64_t held) const;
  StageChoice measured(StageOperations operations) const;
  std::vector<Free> worthwhile_free() const;

  const CostTable& table_;
  std::vector<int32_t> cuts_;
  int32_t stage_, first_, end_;
  bool is_last_, splits_;
  Needs needs_;
  size_t most_points_;
  std::vector<StepFunction> segments_[2];  // by Lead
};

}  // namespace penstock::plan
