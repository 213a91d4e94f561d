#include "penstock/report/peak_values.h"

#include <algorithm>
#include <set>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/report/memory_events.h"
#include "penstock/report/table.h"
#include "penstock/report/value_legend.h"

namespace penstock::report {

namespace {

using program::Instruction;
using program::ValueId;

struct Live {
  std::set<ValueId> values;
  std::set<size_t> running;  // instructions

  void add(const std::vector<ValueId>& ids) { values.insert(ids.begin(), ids.end()); }
};

// Follows the events up to the one, from 1 on, at which most is held; 0: before the first.
size_t event_of_peak(const program::RankProgram& rank, const std::vector<MemoryEvent>& events) {
  int64_t held = 0, most = 0;
  size_t peak = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    const Instruction& one = rank.instructions[events[i].instruction];
    held += events[i].is_start
                ? one.working_bytes
                : rank.bytes_of(one.makes) - rank.bytes_of(one.frees) - one.working_bytes;
    if (held > most) {
      most = held;
      peak = i + 1;
    }
  }
  return peak;
}

Live live_after(const program::RankProgram& rank,
                const std::vector<MemoryEvent>& events,
                size_t num_events) {
  Live live;
  live.add(rank.persistent);
  live.add(rank.given);
  for (size_t i = 0; i < num_events; ++i) {
    const Instruction& one = rank.instructions[events[i].instruction];
    if (events[i].is_start) {
      live.running.insert(events[i].instruction);
      continue;
    }
    live.running.erase(events[i].instruction);
    live.add(one.makes);
    for (const ValueId id : one.frees) {
      live.values.erase(id);
    }
  }
  return live;
}

std::string layer_text(const program::Program& program, int32_t layer) {
  return layer == program.loss_index()
             ? "loss"
             : cat("layer ", layer, ", ", program.layers.at(static_cast<size_t>(layer)).name);
}

std::string owner_text(const program::Program& program,
                       const program::RankProgram& rank,
                       const program::Value& value) {
  if (value.label >= 0) {
    return rank.labels.at(static_cast<size_t>(value.label));
  }
  if (value.unit >= 0) {
    return cat("unit ", value.unit, ", ", program.units.at(static_cast<size_t>(value.unit)).name);
  }
  if (value.element >= 0) {
    return program.carried.at(static_cast<size_t>(value.element)).name;
  }
  return value.kind == program::ValueKind::Targets ? "loss"
         : value.layer >= 0                        ? layer_text(program, value.layer)
                                                   : "";
}

std::string micro_batch_text(int32_t micro_batch) {
  return micro_batch >= 0 ? cat(micro_batch) : "";
}

}  // namespace

PeakValues values_at_peak(const program::Program& program,
                          size_t index,
                          const program::RankTimeline& predicted) {
  const program::RankProgram& rank = program.ranks.at(index);
  const std::vector<MemoryEvent> events = memory_events(predicted);
  const size_t peak = event_of_peak(rank, events);
  const Live live = live_after(rank, events, peak);
  const std::vector<std::string> names = program::value_names(rank);
  PeakValues found;
  found.instruction = peak == 0 ? -1 : static_cast<int32_t>(events[peak - 1].instruction);
  for (const ValueId id : live.values) {
    const program::Value& value = rank.value(id);
    if (value.bytes > 0 && value.tier == program::Tier::Device) {
      found.values.push_back({names[static_cast<size_t>(id)],
                              std::string(value_noun(value.kind)),
                              owner_text(program, rank, value),
                              value.micro_batch,
                              value.bytes});
    }
  }
  for (const size_t running : live.running) {
    const Instruction& one = rank.instructions[running];
    if (one.working_bytes > 0) {
      const std::string work = program::describe(program, one);
      found.values.push_back({"", "working memory", work, one.micro_batch, one.working_bytes});
    }
  }
  std::stable_sort(found.values.begin(),
                   found.values.end(),
                   [](const HeldValue& a, const HeldValue& b) { return a.bytes > b.bytes; });
  for (const HeldValue& value : found.values) {
    found.bytes += value.bytes;
  }
  return found;
}

std::string peak_values_text(const program::Program& program,
                             size_t rank,
                             const program::RankTimeline& predicted,
                             size_t most) {
  const PeakValues peak = values_at_peak(program, rank, predicted);
  std::string head = cat("rank ", rank, " holds most, ", format_bytes(peak.bytes));
  if (peak.instruction >= 0) {
    const auto at = static_cast<size_t>(peak.instruction);
    head += cat(", in ", program::describe(program, program.ranks[rank].instructions[at]));
  }
  Table table(
      {{"value"}, {"what"}, {"of"}, {"micro-batch", Align::Right}, {"bytes", Align::Right}});
  const size_t shown = std::min(most, peak.values.size());
  int64_t others = peak.bytes;
  for (size_t i = 0; i < shown; ++i) {
    const HeldValue& value = peak.values[i];
    table.add_row({value.name,
                   value.what,
                   value.of,
                   micro_batch_text(value.micro_batch),
                   format_bytes(value.bytes)});
    others -= value.bytes;
  }
  if (shown < peak.values.size()) {
    table.add_row({"", cat(peak.values.size() - shown, " more"), "", "", format_bytes(others)});
  }
  return cat(head, "\n\n", table.text());
}

}  // namespace penstock::report
