#include "penstock/program/verify.h"

#include <utility>

#include "penstock/base/error.h"
#include "penstock/program/backwards.h"
#include "penstock/program/rank_check.h"
#include "penstock/program/rank_lives.h"
#include "penstock/program/replica_check.h"
#include "penstock/program/waits.h"

namespace penstock::program {

namespace {

// Ranks, updates, replicas and units, before any list is looked at.
std::optional<Violation> find_wrong_extent(const Program& program) {
  if (program.ranks.empty()) {
    return Violation{.text = "the program has no rank"};
  }
  if (program.updates < 1 || program.micro_batches % program.updates != 0) {
    return Violation{.text = cat("the program: ",
                                 program.updates,
                                 " updates of ",
                                 program.micro_batches,
                                 " micro-batches")};
  }
  return find_wrong_units(program);
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

// The ranks of one replica, which have all layers between them.
std::optional<Violation> check_replica(const Program& program,
                                       int32_t replica,
                                       std::vector<Peak>& peaks) {
  Backwards backwards(program);
  const int32_t end = static_cast<int32_t>(program.ranks.size());
  for (int32_t rank = replica; rank < end; rank += program.replicas) {
    peaks[static_cast<size_t>(rank)] = check_rank(program, rank, backwards);
  }
  return end > 1 ? find_gap(program, backwards) : std::nullopt;
}

}  // namespace

Verdict verify(const Program& program) {
  Verdict verdict{.violation = find_wrong_extent(program)};
  if (!verdict.is_sound()) {
    return verdict;
  }
  try {
    verdict.peaks.resize(program.ranks.size());
    for (int32_t replica = 0; replica < program.replicas; ++replica) {
      std::optional<Violation> gap = check_replica(program, replica, verdict.peaks);
      if (verdict.is_sound()) {
        verdict.violation = std::move(gap);
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
  int64_t live = rank.resident_bytes();
  live += rank.bytes_of(rank.given);
  Peak peak{live, -1};
  for (size_t i = 0; i < rank.instructions.size(); ++i) {
    const Instruction& instruction = rank.instructions[i];
    if (live + instruction.working_bytes > peak.bytes) {
      peak = {live + instruction.working_bytes, static_cast<int32_t>(i)};
    }
    live += rank.bytes_of(instruction.makes) - rank.bytes_of(instruction.frees);
  }
  return peak;
}

}  // namespace penstock::program
