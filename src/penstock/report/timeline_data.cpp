#include "penstock/report/timeline_data.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "penstock/base/text.h"
#include "penstock/report/bubbles.h"
#include "penstock/report/held_bytes.h"
#include "penstock/report/layer_table.h"
#include "penstock/report/peak_values.h"
#include "penstock/report/step_scale.h"
#include "penstock/report/value_legend.h"

namespace penstock::report {

namespace {

using nlohmann::json;
using program::Instruction;

// Times in the page are whole ticks: these take fewer letters than seconds do.
class Clock {
 public:
  explicit Clock(const StepPicture& picture) {
    const double end = std::max(picture.last().seconds, picture.shown_seconds);
    if (is_bare(picture.program) && end > 0) {  // as many digits, whatever the numbers
      ticks_per_second_ = std::pow(10, 9 - std::floor(std::log10(end)));
    }
  }
  double ticks_per_second() const { return ticks_per_second_; }
  int64_t ticks(double seconds) const { return std::llround(seconds * ticks_per_second_); }
  json pair(SecondsPair seconds) const {
    return {ticks(seconds.predicted), ticks(seconds.measured)};
  }

 private:
  double ticks_per_second_ = 1e9;  // nanoseconds: they lose nothing that a clock can tell
};

json kinds_json() {
  json kinds = json::array();
  for (size_t i = 0; i < kNumBarKinds; ++i) {
    const BarStyle& style = bar_style(static_cast<BarKind>(i));
    kinds.push_back({{"name", style.name}, {"fill", style.fill}, {"text", style.text_fill}});
  }
  return kinds;
}

// Names by number, as instructions have the number.
json ops_json() {
  json names = json::array();
  for (size_t op = 0; op < program::kNumOps; ++op) {
    names.push_back(program::op_name(static_cast<program::Op>(op)));
  }
  return names;
}

json layers_json(const StepPicture& picture, const StepSums& sums, const Clock& clock) {
  json layers = json::array();
  for (size_t i = 0; i < sums.layers.size(); ++i) {
    const LayerRow& row = sums.layers[i];
    json modes = json::array();
    for (const program::SaveMode& mode : picture.program.layers[i].modes) {
      modes.push_back(mode.name);
    }
    layers.push_back({{"name", row.name},
                      {"modes", modes},
                      {"forwards", row.num_forwards},
                      {"again", row.num_again},
                      {"kept", kept_text(picture, i, row)},
                      {"forward", clock.pair(row.forward)},
                      {"backward", clock.pair(row.backward)}});
  }
  return layers;
}

json rows_json(const std::vector<OpRow>& rows, const Clock& clock) {
  json out = json::array();
  for (const OpRow& row : rows) {
    out.push_back({{"name", row.name}, {"seconds", clock.pair(row.seconds)}});
  }
  return out;
}

json sums_json(const StepSums& sums, const Clock& clock) {
  return {{"others", rows_json(sums.others, clock)},
          {"transfers", rows_json(sums.transfers, clock)},
          {"step_name", sums.step_name()},
          {"forward", clock.pair(sums.forward)},
          {"backward", clock.pair(sums.backward)},
          {"all", clock.pair(sums.all)},
          {"again", clock.pair(sums.again)}};
}

json bubbles_json(const program::RankProgram& rank,
                  const program::RankTimeline& timeline,
                  const Clock& clock) {
  const Bubbles bubbles = bubbles_of(rank, timeline);
  json start = json::array(), end = json::array();
  for (const Bubble& bubble : bubbles.all) {
    start.push_back(clock.ticks(bubble.start));
    end.push_back(clock.ticks(bubble.end));
  }
  return {{"share", with_bubble_share("", bubbles)}, {"start", start}, {"end", end}};
}

// Columns instead of objects: the page has one number per instruction and column, and no names.
json timeline_json(const program::RankProgram& rank,
                   const program::RankTimeline& timeline,
                   const std::vector<HeldBytes>& held,
                   const Clock& clock) {
  json start = json::array(), duration_ns = json::array();
  json before = json::array(), during = json::array(), after = json::array();
  for (size_t i = 0; i < held.size(); ++i) {
    start.push_back(clock.ticks(timeline.spans[i].start));
    duration_ns.push_back(clock.ticks(duration(timeline.spans[i])));
    before.push_back(held[i].before);
    during.push_back(held[i].during);
    after.push_back(held[i].after);
  }
  json memory_at = json::array(), memory_bytes = json::array();
  for (const program::MemoryPoint& point : timeline.memory) {
    memory_at.push_back(clock.ticks(point.seconds));
    memory_bytes.push_back(point.bytes);
  }
  return {{"start", start},
          {"duration", duration_ns},
          {"before", before},
          {"during", during},
          {"after", after},
          {"memory_at", memory_at},
          {"memory_bytes", memory_bytes},
          {"bubbles", bubbles_json(rank, timeline, clock)},
          {"peak", timeline.peak_bytes},
          {"peak_instruction", timeline.peak_instruction}};
}

json instructions_json(const program::RankProgram& rank,
                       const std::vector<program::Resource>& resources) {
  json columns = {{"op", json::array()},
                  {"layer", json::array()},
                  {"units", json::array()},
                  {"group", json::array()},
                  {"micro_batch", json::array()},
                  {"keep", json::array()},
                  {"kind", json::array()},
                  {"resource", json::array()},
                  {"reads", json::array()},
                  {"makes", json::array()},
                  {"sets", json::array()},
                  {"updates", json::array()},
                  {"frees", json::array()}};
  const std::vector<BarKind> kinds = bar_kinds(rank);
  for (size_t i = 0; i < kinds.size(); ++i) {
    const Instruction& instruction = rank.instructions[i];
    const auto resource = std::find(resources.begin(), resources.end(), instruction.resource);
    columns["op"].push_back(static_cast<int>(instruction.op));
    columns["layer"].push_back(instruction.layer);
    columns["units"].push_back(instruction.units);
    columns["group"].push_back(instruction.group);
    columns["micro_batch"].push_back(instruction.micro_batch);
    columns["keep"].push_back(instruction.keep);
    columns["kind"].push_back(static_cast<int>(kinds[i]));
    columns["resource"].push_back(resource - resources.begin());
    columns["reads"].push_back(instruction.reads);
    columns["makes"].push_back(instruction.makes);
    columns["sets"].push_back(instruction.sets);
    columns["updates"].push_back(instruction.updates);
    columns["frees"].push_back(instruction.frees);
  }
  return columns;
}

json units_json(const program::Program& program) {
  json units = json::array();
  for (const program::Unit& unit : program.units) {
    units.push_back({{"name", unit.name}});
  }
  return units;
}

json groups_json(const program::Program& program) {
  json groups = json::array();
  for (const comm::RankGroup& group : program.groups) {
    groups.push_back({{"name", group.name}});
  }
  return groups;
}

json values_json(const program::RankProgram& rank) {
  json bytes = json::array();
  for (const program::Value& value : rank.values) {
    bytes.push_back(value.bytes);
  }
  return {{"names", program::value_names(rank)}, {"bytes", bytes}};
}

json peak_json(const StepPicture& picture, size_t index) {
  const PeakValues peak = values_at_peak(picture.program, index, picture.predicted.ranks[index]);
  json values = json::array();
  for (const HeldValue& value : peak.values) {
    values.push_back({value.name, value.what, value.of, value.micro_batch, value.bytes});
  }
  return {{"bytes", peak.bytes}, {"instruction", peak.instruction}, {"values", values}};
}

json rank_json(const StepPicture& picture, size_t index, const Clock& clock) {
  const program::RankProgram& rank = picture.program.ranks[index];
  const std::vector<program::Resource> resources = resources_of(rank);
  json names = json::array(), lanes = json::array();
  for (const program::Resource resource : resources) {
    names.push_back(resource_name(picture.program, resource));
    lanes.push_back({{"name", lane_name(picture.program, index, resource)},
                     {"is_low", is_low_lane(resource)},
                     {"is_empty", is_empty_lane(picture, index, resource)},
                     {"has_bubbles", resource == program::Resource{}}});
  }
  json residents = json::array();
  for (const program::Held& resident : program::held_by_name(rank)) {
    residents.push_back({{"name", resident.name}, {"bytes", resident.bytes}});
  }
  const program::RankTimeline& predicted = picture.predicted.ranks[index];
  json sides = {
      {"predicted", timeline_json(rank, predicted, predicted_bytes(rank, predicted), clock)}};
  if (picture.measured != nullptr) {
    const program::RankTimeline& measured = picture.measured->ranks[index];
    sides["measured"] = timeline_json(rank, measured, measured_bytes(measured), clock);
  }
  return {{"limit", rank.limit_bytes},
          {"shows_limit", shows_limit(picture, index)},
          {"residents", residents},
          {"resources", names},
          {"lanes", lanes},
          {"values", values_json(rank)},
          {"instructions", instructions_json(rank, resources)},
          {"alive_at_peak", peak_json(picture, index)},
          {"sides", sides}};
}

json names_json(const program::Program& program) {
  json names = json::array();
  for (const NameMeaning& one : name_meanings(program, false)) {
    names.push_back({one.name, one.meaning});
  }
  return names;
}

json computing_json(const StepPicture& picture) {
  json share = {{"predicted", computing_share(picture.predicted)}};
  if (picture.measured != nullptr) {
    share["measured"] = computing_share(*picture.measured);
  }
  return share;
}

json step_json(const StepPicture& picture, const Clock& clock) {
  json step = {{"predicted", clock.ticks(picture.predicted.seconds)}};
  if (picture.measured != nullptr) {
    step["measured"] = clock.ticks(picture.measured->seconds);
  }
  return step;
}

}  // namespace

std::string embedded_json(const json& value) {
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (const char letter : text) {
    letter == '<' ? out += "\\u003c" : out += letter;
  }
  return out;
}

// Rank by rank, as JSON values take much more memory than their text.
std::string timeline_data(const StepPicture& picture) {
  check_picture(picture);
  const Clock clock(picture);
  const StepSums sums = step_sums(picture);
  std::vector<std::string> parts;
  const auto add = [&](std::string_view name, const json& value) {
    parts.push_back(cat("\"", name, "\":", embedded_json(value)));
  };
  add("title", picture.title);
  add("heading", heading_text(picture));
  add("is_bare", is_bare(picture.program));
  add("ticks_per_second", clock.ticks_per_second());
  add("shown", {{"time", clock.ticks(picture.shown_seconds)}, {"bytes", picture.shown_bytes}});
  add("micro_batches", picture.program.micro_batches);
  add("step", step_json(picture, clock));
  add("step_noun", step_noun(picture.program));
  add("computing", computing_json(picture));
  add("names", names_json(picture.program));
  add("ops", ops_json());
  add("kinds", kinds_json());
  add("layers", layers_json(picture, sums, clock));
  add("units", units_json(picture.program));
  add("groups", groups_json(picture.program));
  add("sums", sums_json(sums, clock));
  std::vector<std::string> ranks;
  for (size_t i = 0; i < picture.program.ranks.size(); ++i) {
    ranks.push_back(embedded_json(rank_json(picture, i, clock)));
  }
  return cat("{", join(parts, ",\n"), ",\n\"ranks\":[", join(ranks, ",\n"), "]}");
}

}  // namespace penstock::report
