// Proves a program before it runs: every value is made before it is used, freed exactly once and
// not used after; every layer goes backward exactly once per micro-batch; the gradients are
// complete before the optimizer's step, and all that is done with a micro-batch at a layer is done
// with the same weights (unless the program says that it mixes them); gradients are added up over
// all ranks that have parts of them before they are used, and weights are whole and of now where
// layers see them; each tier stays within its limit at every instruction; what ranks send, receive,
// gather and reduce matches, and they never wait for each other in a circle (waits.h). An evaluation
// has one loss for each micro-batch, no gradient, and changes nothing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/program/program.h"

namespace penstock::program {

struct Violation {
  int32_t rank = 0;
  int32_t instruction = -1;  // index in the rank's list; -1: the end of the list, or the program
  std::string text;          // one line that names instruction and value
};

// Of the device, and what each tier held at its most.
struct Peak {
  int64_t bytes = 0;
  int32_t instruction = -1;  // where it is reached first; -1: before the first one
  std::array<int64_t, kNumTiers> tier_bytes = {};
};

struct Verdict {
  std::optional<Violation> violation;  // the first one found; nothing: the program is sound
  std::vector<Peak> peaks;             // per rank; only for programs whose lifetimes are right

  bool is_sound() const { return !violation.has_value(); }
};

Verdict verify(const Program& program);

// The peak of one rank by its file alone: what is live before an instruction plus its
// working_bytes, at its highest. For programs that verify() accepts.
Peak replay_peak(const RankProgram& rank);

}  // namespace penstock::program
