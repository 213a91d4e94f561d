#include "penstock/program/verify.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/program/backwards.h"
#include "penstock/program/carried_check.h"
#include "penstock/program/rank_check.h"
#include "penstock/program/rank_lives.h"
#include "penstock/program/unit_check.h"
#include "penstock/program/waits.h"

namespace penstock::program {

namespace {

// Ranks, updates, axes and units, before any list is looked at.
std::optional<Violation> find_wrong_extent(const Program& program) {
  const auto refuse = [](const auto&... parts) {
    return Violation{.text = cat("the program: ", parts...)};
  };
  if (program.ranks.empty()) {
    return Violation{.text = "the program has no rank"};
  }
  for (const comm::Axis axis : comm::kAxes) {
    if (program.mesh.degree(axis) < 1) {
      return refuse(
          "the axis ", comm::axis_name(axis), " has ", program.mesh.degree(axis), " ranks");
    }
  }
  for (const comm::Axis axis : {comm::Axis::Tensor, comm::Axis::Context}) {
    if (program.mesh.degree(axis) > 1) {
      return refuse("the axis ", comm::axis_name(axis), " has ranks, and no layer is cut along it");
    }
  }
  if (static_cast<size_t>(program.mesh.ranks()) != program.ranks.size()) {
    return refuse(program.ranks.size(), " ranks in a mesh of ", program.mesh.ranks());
  }
  // Of a step the exchanges of its gradients tell.
  if (program.is_evaluation() && (program.mesh.tensor > 1 || program.mesh.context > 1)) {
    return refuse("an evaluation whose layers nobody has cut along the axes tensor and context");
  }
  if (program.updates < 0 || program.micro_batches < 1 ||
      (!program.is_evaluation() && program.micro_batches % program.updates != 0)) {
    return refuse(program.updates, " updates of ", program.micro_batches, " micro-batches");
  }
  for (const comm::RankGroup& group : program.groups) {
    const std::vector<int32_t>& stages = group.stages;
    if (std::adjacent_find(stages.begin(), stages.end(), std::greater_equal<>()) != stages.end() ||
        (!stages.empty() && (stages.front() < 0 || stages.back() >= program.mesh.pipeline))) {
      return refuse("the stages of group ", group.name, " are out of order or out of range");
    }
  }
  std::optional<Violation> wrong = find_wrong_carried(program);
  return wrong ? wrong : find_wrong_units(program);
}

// What no rank does.
std::optional<Violation> find_gap(const Program& program, const Backwards& backwards) {
  for (size_t layer = 0; layer < backwards.layers; ++layer) {
    if (backwards.rank_of[layer] == Backwards::kNone) {
      return Violation{.text = cat("the program: no rank has ", program.layers[layer].name)};
    }
  }
  if (backwards.loss_rank == Backwards::kNone) {
    return Violation{.text = "the program: no rank has the loss"};
  }
  return std::nullopt;
}

// Of an evaluation: a training step asks for it at its update.
std::optional<Violation> find_missing_loss(const Program& program, const Backwards& backwards) {
  const auto missing = std::find(backwards.losses.begin(), backwards.losses.end(), 0);
  if (!program.is_evaluation() || missing == backwards.losses.end()) {
    return std::nullopt;
  }
  return Violation{.text = cat("the program: the loss of micro-batch ",
                               missing - backwards.losses.begin(),
                               " is missing")};
}

// The ranks of one pipeline, which have all layers between them: they differ in their stage alone.
std::optional<Violation> check_pipeline(const Program& program,
                                        int32_t first,
                                        std::vector<Peak>& peaks) {
  Backwards backwards(program);
  for (const int32_t rank : comm::members(program.mesh, comm::along(comm::Axis::Pipeline), first)) {
    peaks[static_cast<size_t>(rank)] = check_rank(program, rank, backwards);
  }
  std::optional<Violation> gap =
      program.ranks.size() > 1 ? find_gap(program, backwards) : std::nullopt;
  gap = gap ? gap : find_missing_loss(program, backwards);
  return gap ? gap : find_wrong_message(program, backwards.carried);
}

}  // namespace

Verdict verify(const Program& program) {
  Verdict verdict{.violation = find_wrong_extent(program)};
  if (!verdict.is_sound()) {
    return verdict;
  }
  try {
    verdict.peaks.resize(program.ranks.size());
    for (int32_t rank = 0; rank < program.mesh.ranks(); ++rank) {
      if (program.stage_of(rank) == 0) {
        std::optional<Violation> gap = check_pipeline(program, rank, verdict.peaks);
        if (verdict.is_sound()) {
          verdict.violation = std::move(gap);
        }
      }
    }
    if (program.ranks.size() > 1 && verdict.is_sound()) {
      verdict.violation = find_endless_wait(program);
    }
  } catch (Refusal& refusal) {
    verdict.violation = std::move(refusal.violation);
    verdict.peaks.clear();
  }
  return verdict;
}

Peak replay_peak(const RankProgram& rank) {
  Peak peak;
  for (const Tier tier : tiers_of(rank)) {
    const bool is_device = tier == Tier::Device;
    int64_t live = rank.persistent_bytes(tier) + rank.bytes_of(rank.given, tier);
    int64_t& most = peak.tier_bytes[static_cast<size_t>(tier)];
    most = live;
    for (size_t i = 0; i < rank.instructions.size(); ++i) {
      const Instruction& instruction = rank.instructions[i];
      const int64_t made = rank.bytes_of(instruction.makes, tier);
      const int64_t held = live + (is_device ? instruction.working_bytes : made);
      if (held > most) {
        most = held;
        peak.instruction = is_device ? static_cast<int32_t>(i) : peak.instruction;
      }
      live += made - rank.bytes_of(instruction.frees, tier);
    }
  }
  peak.bytes = peak.tier_bytes[0];
  return peak;
}

}  // namespace penstock::program
