// What a rank holds at its predicted peak, value by value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/program/program.h"
#include "penstock/program/simulate.h"

namespace penstock::report {

struct HeldValue {
  std::string name;          // "s3.0"; empty for what an instruction works with
  std::string what;          // "saved"
  std::string of;            // "layer 3, block 1 mlp"
  int32_t micro_batch = -1;  // -1: of none
  int64_t bytes = 0;
};

struct PeakValues {
  int64_t bytes = 0;              // the sum of all
  int32_t instruction = -1;       // at which it is reached; -1: before the first
  std::vector<HeldValue> values;  // the largest first, without those of no bytes
};

// On the device. What running instructions make is a part of what they work with.
PeakValues values_at_peak(const program::Program& program,
                          size_t rank,
                          const program::RankTimeline& predicted);

// For a terminal: the `most` largest, and what the others are together.
std::string peak_values_text(const program::Program& program,
                             size_t rank,
                             const program::RankTimeline& predicted,
                             size_t most);

}  // namespace penstock::report
