// Two programs side by side: what differs in numbers, and both timelines on the same axes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/report/step_picture.h"

namespace penstock::report {

// What is compared, as predicted.
struct StepFigures {
  double seconds = 0;               // of an update
  double bubble = 0;                // the share of the ranks' time in which they do not compute
  std::vector<int64_t> peak_bytes;  // of each rank
  int64_t recomputed_forwards = 0;
  int64_t sent_bytes = 0;                                   // by all ranks
  std::array<int64_t, program::kNumOps> instructions = {};  // by op

  int64_t num_instructions() const;
};

StepFigures figures_of(const StepPicture& picture);

// A row for each number: its name, that of A, that of B, B - A, B / A. Numbers that are 0 in both
// have none, and bytes none where both are bare.
struct DifferenceTable {
  std::vector<std::string> headings;
  std::vector<std::vector<std::string>> rows;
};
DifferenceTable difference_table(const StepPicture& a, const StepPicture& b);

// Both are bare, or none is.
std::string comparison_text(const StepPicture& a, const StepPicture& b);
std::string comparison_svg(const StepPicture& a, const StepPicture& b);
std::string comparison_html(const StepPicture& a, const StepPicture& b);

}  // namespace penstock::report
