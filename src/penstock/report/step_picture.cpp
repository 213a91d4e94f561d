#include "penstock/report/step_picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <set>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/base/units.h"

namespace penstock::report {

namespace {

using program::Instruction;
using program::Op;

// Okabe and Ito's colours, told apart with any colour vision, and greys for what is not a layer's
// work. All are seen on white and on near black.
constexpr std::array<BarStyle, kNumBarKinds> kStyles = {{
    {"forward", "#0072b2", "#ffffff"},
    {"forward, keeps nothing", "#56b4e9", "#10222e"},
    {"recomputed forward", "#cc79a7", "#2a1220"},
    {"backward", "#e69f00", "#2a1d00"},
    {"backward, input", "#d55e00", "#ffffff"},
    {"backward, weight", "#f0e442", "#2a2700"},
    {"loss", "#009e73", "#ffffff"},
    {"step", "#6b7280", "#ffffff"},
    {"drop", "#c4c9d0", "#14181d"},
    {"send", "#44566c", "#ffffff"},
    {"receive", "#8ba0b8", "#10181f"},
    {"stash", "#8c7a5b", "#ffffff"},
    {"gather", "#7a5195", "#ffffff"},
    {"reduce", "#3f7d20", "#ffffff"},
    {"add", "#a3abb6", "#14181d"},
    {"squares", "#b3a394", "#14181d"},
    {"decide", "#768a7c", "#ffffff"},
    {"sketch", "#cbb9a8", "#14181d"},
    {"prepare", "#57606b", "#ffffff"},
    {"exchange", "#8f4a2b", "#ffffff"},
}};

void check_timeline(const program::Program& program, const program::Timeline& timeline) {
  PENSTOCK_CHECK(timeline.ranks.size() == program.ranks.size(),
                 timeline.ranks.size(),
                 " ranks in the timeline of a program of ",
                 program.ranks.size());
  for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
    const std::vector<program::Span>& spans = timeline.ranks[rank].spans;
    PENSTOCK_CHECK(spans.size() == program.ranks[rank].instructions.size(),
                   spans.size(),
                   " spans for ",
                   program.ranks[rank].instructions.size(),
                   " instructions of rank ",
                   rank);
    for (size_t i = 0; i < spans.size(); ++i) {
      const program::Span& span = spans[i];
      PENSTOCK_CHECK(static_cast<size_t>(span.instruction) == i && span.start >= 0 &&
                         span.end >= span.start && std::isfinite(span.end),
                     "span ",
                     i,
                     " of rank ",
                     rank,
                     " is instruction ",
                     span.instruction,
                     " from ",
                     span.start,
                     " to ",
                     span.end);
    }
  }
}

BarKind forward_kind(const Instruction& instruction, bool has_run) {
  if (has_run) {
    return BarKind::ForwardAgain;
  }
  return instruction.keep == program::kKeepNothing ? BarKind::ForwardKeepsNothing
                                                   : BarKind::Forward;
}

// In the order of Op.
constexpr program::OpTable<BarKind> kKinds = program::op_table<BarKind>({
    {program::Op::Forward, BarKind::Forward},
    {program::Op::Loss, BarKind::Loss},
    {program::Op::Backward, BarKind::Backward},
    {program::Op::BackwardInput, BarKind::BackwardInput},
    {program::Op::BackwardWeight, BarKind::BackwardWeight},
    {program::Op::Send, BarKind::Send},
    {program::Op::Receive, BarKind::Receive},
    {program::Op::Drop, BarKind::Drop},
    {program::Op::Stash, BarKind::Stash},
    {program::Op::Gather, BarKind::Gather},
    {program::Op::Reduce, BarKind::Reduce},
    {program::Op::Add, BarKind::Add},
    {program::Op::Sketch, BarKind::Sketch},
    {program::Op::Squares, BarKind::Squares},
    {program::Op::Decide, BarKind::Decide},
    {program::Op::Prepare, BarKind::Prepare},
    {program::Op::Exchange, BarKind::Exchange},
    {program::Op::Merge, BarKind::Exchange},
    {program::Op::Step, BarKind::Step},
});

}  // namespace

void check_picture(const StepPicture& picture) {
  check_timeline(picture.program, picture.predicted);
  if (picture.measured != nullptr) {
    check_timeline(picture.program, *picture.measured);
  }
}

bool is_bare(const program::Program& program) {
  const auto has_bytes = [](const program::RankProgram& rank) {
    return std::any_of(rank.values.begin(),
                       rank.values.end(),
                       [](const program::Value& value) { return value.bytes > 0; }) ||
           std::any_of(rank.instructions.begin(),
                       rank.instructions.end(),
                       [](const Instruction& one) { return one.working_bytes > 0; });
  };
  return std::none_of(program.ranks.begin(), program.ranks.end(), has_bytes);
}

std::string time_text(double seconds, bool is_bare) {
  if (!is_bare) {
    return format_seconds(seconds);
  }
  std::array<char, 32> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%.6g", seconds);
  return buffer.data();
}

std::string percent_text(double share) {
  return cat(format_number(std::round(1000 * share) / 10), "%");
}

std::string step_noun(const program::Program& program) {
  return program.is_evaluation() ? "evaluation"
         : program.updates == 1  ? "step"
                                 : cat(program.updates, " updates");
}

std::string heading_text(const StepPicture& picture) {
  return cat(picture.title,
             picture.title.empty() ? "" : "; ",
             step_noun(picture.program),
             " ",
             time_text(picture.last().seconds, is_bare(picture.program)),
             picture.measured != nullptr ? " measured" : " predicted");
}

const BarStyle& bar_style(BarKind kind) {
  return kStyles[static_cast<size_t>(kind)];
}

std::vector<BarKind> bar_kinds(const program::RankProgram& rank) {
  std::set<std::pair<int32_t, int32_t>> done;  // layer, micro-batch
  std::vector<BarKind> kinds;
  kinds.reserve(rank.instructions.size());
  for (const Instruction& instruction : rank.instructions) {
    if (instruction.op == Op::Forward) {
      const bool is_first = done.insert({instruction.layer, instruction.micro_batch}).second;
      kinds.push_back(forward_kind(instruction, !is_first));
    } else {
      kinds.push_back(program::row_of(kKinds, instruction.op));
    }
  }
  return kinds;
}

int32_t only_unit(const Instruction& instruction) {
  return instruction.op != Op::Step && instruction.units.size() == 1 ? instruction.units[0] : -1;
}

std::vector<program::Resource> resources_of(const program::RankProgram& rank) {
  std::set<program::Resource> used;
  for (const Instruction& instruction : rank.instructions) {
    used.insert(instruction.resource);
  }
  return {used.begin(), used.end()};
}

std::string resource_name(const program::Program& program, program::Resource resource) {
  switch (resource.kind) {
    case program::ResourceKind::Compute:
      return "compute";
    case program::ResourceKind::HostCompute:
      return "host";
    case program::ResourceKind::Copy:
      return cat("copy ", resource.index);
    case program::ResourceKind::Disk:
      return cat("disk ", resource.index);
    case program::ResourceKind::Link:
      return cat("link to rank ", resource.index);
    case program::ResourceKind::Inlet:
      return cat("inlet from rank ", resource.index);
    case program::ResourceKind::Line:
      return cat("line of ", program.groups.at(static_cast<size_t>(resource.index)).name);
  }
  throw InternalError("no such resource");
}

std::string lane_name(const program::Program& program, size_t rank, program::Resource resource) {
  switch (resource.kind) {
    case program::ResourceKind::Compute:
      return program.ranks.size() > 1 ? cat("rank ", rank) : resource_name(program, resource);
    case program::ResourceKind::Link:
      return cat("to rank ", resource.index);
    case program::ResourceKind::Inlet:
      return cat("from rank ", resource.index);
    case program::ResourceKind::Line:
      return program.groups.at(static_cast<size_t>(resource.index)).name;
    default:
      return resource_name(program, resource);
  }
}

bool is_empty_lane(const StepPicture& picture, size_t rank, program::Resource resource) {
  const std::vector<Instruction>& list = picture.program.ranks[rank].instructions;
  for (size_t i = 0; i < list.size(); ++i) {
    const bool takes_time =
        duration(picture.predicted.ranks[rank].spans[i]) > 0 ||
        (picture.measured != nullptr && duration(picture.measured->ranks[rank].spans[i]) > 0);
    if (list[i].resource == resource && takes_time) {
      return false;
    }
  }
  return true;
}

bool is_low_lane(program::Resource resource) {
  return resource.kind == program::ResourceKind::Link ||
         resource.kind == program::ResourceKind::Inlet ||
         resource.kind == program::ResourceKind::Line;
}

double computing_share(const program::Timeline& timeline) {
  double seconds = 0;
  for (const program::RankTimeline& rank : timeline.ranks) {
    seconds += rank.compute_seconds();
  }
  const double all = timeline.seconds * static_cast<double>(timeline.ranks.size());
  return all > 0 ? seconds / all : 0;
}

std::string keep_name(const program::Program& program, const Instruction& instruction) {
  if (instruction.keep == program::kKeepNothing) {
    return "nothing";
  }
  const auto& modes = program.layers.at(static_cast<size_t>(instruction.layer)).modes;
  return modes.at(static_cast<size_t>(instruction.keep)).name;
}

}  // namespace penstock::report
