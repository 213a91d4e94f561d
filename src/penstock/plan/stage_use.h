// What a micro-batch's operations at one stage take: found by replaying them, so that it does not
// depend on how they were planned.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/plan/pipeline.h"

namespace penstock::plan {

// Bytes are the micro-batch's own at this stage: its input counts from the beginning of the
// forward, its targets likewise at the last stage, an arriving gradient from the beginning of the
// backward. What is sent on is no longer its own when the phase has ended, unless backward needs
// it. A carried element that the stage makes or reads is its own, with one exception: its gradient
// when it has left the stage. One that goes on to other stages is held until the first backward.
struct StageUse {
  int64_t forward_peak = 0;
  int64_t held = 0;  // between forward and backward
  int64_t backward_peak = 0;
  int64_t weight_held = 0;  // between input gradient and weight gradient
  int64_t weight_peak = 0;
  double forward_s = 0;
  double backward_s = 0;  // of the input gradient where backward is split
  double lead_s = 0;      // the part of it that can be over before the gradient arrives
  double weight_s = 0;

  double seconds() const { return forward_s + backward_s + weight_s; }
};

// splits: backward is split into input gradient and weight gradient.
StageUse use_of(const CostTable& table,
                const std::vector<int32_t>& cuts,
                int32_t stage,
                const StageOperations& operations,
                bool splits);

// Forwards beyond the one that each layer of the stage needs.
int64_t recomputed_forwards(const std::vector<int32_t>& cuts,
                            int32_t stage,
                            const StageOperations& operations);

}  // namespace penstock::plan
