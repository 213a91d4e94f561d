#include "penstock/report/trace.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/report/held_bytes.h"

namespace penstock::report {

namespace {

using nlohmann::ordered_json;
using program::Instruction;

// One rank in one timeline.
struct Process {
  size_t rank = 0;
  bool is_measured = false;

  // From 1 on: viewers take 0 for the idle task.
  size_t id() const { return 2 * rank + (is_measured ? 1 : 0) + 1; }
  std::string name() const { return cat("rank ", rank, is_measured ? " measured" : " predicted"); }
};

// Event by event, as the whole document is ten times larger in memory than as text.
class TraceWriter {
 public:
  void add(const ordered_json& event) {
    out_ += out_.empty() ? "{\"traceEvents\":[\n" : ",\n";
    out_ += event.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  }
  void add_metadata(size_t process, size_t thread, const char* name, const ordered_json& args) {
    add({{"ph", "M"}, {"name", name}, {"pid", process}, {"tid", thread}, {"args", args}});
  }
  std::string finish(const std::string& title) {
    const std::string begin = out_.empty() ? "{\"traceEvents\":[" : out_;
    const ordered_json text = title;
    return begin + "\n],\"displayTimeUnit\":\"ms\",\"otherData\":{\"title\":" +
           text.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "}}\n";
  }

 private:
  std::string out_;
};

size_t thread_of(const std::vector<program::Resource>& resources, program::Resource resource) {
  return static_cast<size_t>(std::find(resources.begin(), resources.end(), resource) -
                             resources.begin()) +
         1;
}

void add_names(const StepPicture& picture,
               const Process& process,
               const std::vector<program::Resource>& resources,
               TraceWriter& trace) {
  const size_t id = process.id();
  trace.add_metadata(id, 0, "process_name", {{"name", process.name()}});
  trace.add_metadata(id, 0, "process_sort_index", {{"sort_index", id}});
  const int64_t limit = picture.program.ranks[process.rank].limit_bytes;
  if (limit > 0) {
    trace.add_metadata(id, 0, "process_labels", {{"labels", cat("limit ", format_bytes(limit))}});
  }
  for (const program::Resource resource : resources) {
    trace.add_metadata(id,
                       thread_of(resources, resource),
                       "thread_name",
                       {{"name", resource_name(picture.program, resource)}});
  }
}

ordered_json arguments(const StepPicture& picture,
                       const Instruction& instruction,
                       BarKind kind,
                       const HeldBytes& held) {
  ordered_json args = {{"kind", bar_style(kind).name}};
  if (instruction.layer >= 0) {
    args["layer"] = instruction.layer;
  }
  if (const int32_t unit = only_unit(instruction); unit >= 0) {
    args["unit"] = unit;
  }
  if (instruction.micro_batch >= 0) {
    args["micro_batch"] = instruction.micro_batch;
  }
  if (instruction.op == program::Op::Forward) {
    args["keep"] = keep_name(picture.program, instruction);
  }
  args["bytes_before"] = held.before;
  args["bytes_during"] = held.during;
  args["bytes_after"] = held.after;
  return args;
}

void add_process(const StepPicture& picture, const Process& process, TraceWriter& trace) {
  const program::RankProgram& rank = picture.program.ranks[process.rank];
  const program::RankTimeline& timeline =
      (process.is_measured ? *picture.measured : picture.predicted).ranks[process.rank];
  const std::vector<program::Resource> resources = resources_of(rank);
  const std::vector<BarKind> kinds = bar_kinds(rank);
  const std::vector<HeldBytes> held =
      process.is_measured ? measured_bytes(timeline) : predicted_bytes(rank, timeline);
  add_names(picture, process, resources, trace);
  constexpr double kMicroseconds = 1e6;
  for (size_t i = 0; i < timeline.spans.size(); ++i) {
    const Instruction& instruction = rank.instructions[i];
    trace.add({{"ph", "X"},
               {"name", program::describe(picture.program, instruction)},
               {"cat", program::op_name(instruction.op)},
               {"pid", process.id()},
               {"tid", thread_of(resources, instruction.resource)},
               {"ts", timeline.spans[i].start * kMicroseconds},
               {"dur", duration(timeline.spans[i]) * kMicroseconds},
               {"args", arguments(picture, instruction, kinds[i], held[i])}});
  }
  for (const program::MemoryPoint& point : timeline.memory) {
    trace.add({{"ph", "C"},
               {"name", "memory"},
               {"pid", process.id()},
               {"ts", point.seconds * kMicroseconds},
               {"args", {{"bytes", point.bytes}}}});
  }
}

}  // namespace

std::string trace_json(const StepPicture& picture) {
  check_picture(picture);
  TraceWriter trace;
  for (size_t rank = 0; rank < picture.program.ranks.size(); ++rank) {
    add_process(picture, {rank, false}, trace);
    if (picture.measured != nullptr) {
      add_process(picture, {rank, true}, trace);
    }
  }
  return trace.finish(picture.title);
}

}  // namespace penstock::report
