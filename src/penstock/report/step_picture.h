// What the pictures of a training step are made from, and what they share: kinds of bars with their
// colours, and lanes. Drawn by timeline_svg, timeline_html, trace and layer_table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/program/program.h"
#include "penstock/program/simulate.h"

namespace penstock::report {

struct StepPicture {
  std::string title;
  const program::Program& program;
  const program::Timeline& predicted;
  const program::Timeline* measured = nullptr;  // of the same program
  // Axes at least this long: that of another picture beside it.
  double shown_seconds = 0;
  int64_t shown_bytes = 0;

  const program::Timeline& last() const { return measured != nullptr ? *measured : predicted; }
};

// Throws InternalError unless each timeline has a span for every instruction, in order, with times
// that can be drawn.
void check_picture(const StepPicture& picture);

// Nothing in it has bytes: a pipeline of bare numbers, whose times have no unit.
bool is_bare(const program::Program& program);

// "12.3 ms"; where there is no unit the number alone.
std::string time_text(double seconds, bool is_bare);

std::string percent_text(double share);  // "12.3%"

// "step", "evaluation", "3 updates": what the time from beginning to end is of.
std::string step_noun(const program::Program& program);

// The title, and how long the step took; how long it is predicted to take where it was not measured.
std::string heading_text(const StepPicture& picture);

// A recomputed forward is a kind of its own, whatever it keeps: it is the time that saving memory
// costs.
enum class BarKind {
  Forward,
  ForwardKeepsNothing,
  ForwardAgain,
  Backward,
  BackwardInput,
  BackwardWeight,
  Loss,
  Step,
  Drop,
  Send,
  Receive,
  Stash,
  Gather,
  Reduce,
  Add,
  Squares,
  Decide,
  Sketch,
  Prepare,
  Exchange
};
inline constexpr size_t kNumBarKinds = static_cast<size_t>(BarKind::Exchange) + 1;

struct BarStyle {
  std::string_view name, fill, text_fill;
};

const BarStyle& bar_style(BarKind kind);

// One for each instruction.
std::vector<BarKind> bar_kinds(const program::RankProgram& rank);

// The unit that a gather, reduce or sum is of; -1: none. A step is of all units that it moves.
int32_t only_unit(const program::Instruction& instruction);

// Those that the rank's instructions use, in order: its lanes.
std::vector<program::Resource> resources_of(const program::RankProgram& rank);

// "compute", "copy 0", "link to rank 3", "inlet from rank 3", "line of data"
std::string resource_name(const program::Program& program, program::Resource resource);

// The name of a lane beside its bars: "rank 2" where several ranks compute, "to rank 3".
std::string lane_name(const program::Program& program, size_t rank, program::Resource resource);

// What does nothing that takes time, in either timeline, has no lane.
bool is_empty_lane(const StepPicture& picture, size_t rank, program::Resource resource);

// What goes between ranks is beside the work: its lanes are low.
bool is_low_lane(program::Resource resource);

// The part of the ranks' time in which they compute; the rest is waiting. 0 for a step of no time.
double computing_share(const program::Timeline& timeline);

// The name of the save mode of a Forward; "nothing" for none.
std::string keep_name(const program::Program& program, const program::Instruction& instruction);

inline double duration(const program::Span& span) {
  return span.end - span.start;
}

}  // namespace penstock::report
