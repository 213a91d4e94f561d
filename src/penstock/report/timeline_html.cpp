#include "penstock/report/timeline_html.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/report/held_bytes.h"
#include "penstock/report/layer_table.h"
#include "penstock/report/step_scale.h"
#include "penstock/report/svg.h"
#include "penstock/report/timeline_page.h"

namespace penstock::report {

namespace {

using nlohmann::json;
using program::Instruction;

// Whole nanoseconds take fewer letters than seconds do, and lose nothing that a clock can tell.
int64_t nanoseconds(double seconds) {
  return std::llround(seconds * 1e9);
}

// JSON that can stand in a script element: without "<" nothing in it can end the element, and
// outside of strings JSON has none.
std::string embedded(const json& value) {
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (const char letter : text) {
    letter == '<' ? out += "\\u003c" : out += letter;
  }
  return out;
}

json pair_json(SecondsPair seconds) {
  return {nanoseconds(seconds.predicted), nanoseconds(seconds.measured)};
}

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

json layers_json(const StepPicture& picture, const StepSums& sums) {
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
                      {"forward", pair_json(row.forward)},
                      {"backward", pair_json(row.backward)}});
  }
  return layers;
}

json rows_json(const std::vector<OpRow>& rows) {
  json out = json::array();
  for (const OpRow& row : rows) {
    out.push_back({{"name", row.name}, {"seconds", pair_json(row.seconds)}});
  }
  return out;
}

json sums_json(const StepSums& sums) {
  return {{"others", rows_json(sums.others)},
          {"transfers", rows_json(sums.transfers)},
          {"step_name", sums.step_name()},
          {"forward", pair_json(sums.forward)},
          {"backward", pair_json(sums.backward)},
          {"all", pair_json(sums.all)},
          {"again", pair_json(sums.again)}};
}

// Columns instead of objects: the page has one number per instruction and column, and no names.
json timeline_json(const program::RankTimeline& timeline, const std::vector<HeldBytes>& held) {
  json start = json::array(), duration_ns = json::array();
  json before = json::array(), during = json::array(), after = json::array();
  for (size_t i = 0; i < held.size(); ++i) {
    start.push_back(nanoseconds(timeline.spans[i].start));
    duration_ns.push_back(nanoseconds(duration(timeline.spans[i])));
    before.push_back(held[i].before);
    during.push_back(held[i].during);
    after.push_back(held[i].after);
  }
  json memory_at = json::array(), memory_bytes = json::array();
  for (const program::MemoryPoint& point : timeline.memory) {
    memory_at.push_back(nanoseconds(point.seconds));
    memory_bytes.push_back(point.bytes);
  }
  return {{"start", start},
          {"duration", duration_ns},
          {"before", before},
          {"during", during},
          {"after", after},
          {"memory_at", memory_at},
          {"memory_bytes", memory_bytes},
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

json rank_json(const StepPicture& picture, size_t index) {
  const program::RankProgram& rank = picture.program.ranks[index];
  const std::vector<program::Resource> resources = resources_of(rank);
  json names = json::array(), lanes = json::array();
  for (const program::Resource resource : resources) {
    names.push_back(resource_name(picture.program, resource));
    lanes.push_back(
        {{"name", lane_name(picture.program, index, resource)}, {"is_low", is_low_lane(resource)}});
  }
  json residents = json::array();
  for (const program::Held& resident : program::held_by_name(rank)) {
    residents.push_back({{"name", resident.name}, {"bytes", resident.bytes}});
  }
  const program::RankTimeline& predicted = picture.predicted.ranks[index];
  json sides = {{"predicted", timeline_json(predicted, predicted_bytes(rank, predicted))}};
  if (picture.measured != nullptr) {
    const program::RankTimeline& measured = picture.measured->ranks[index];
    sides["measured"] = timeline_json(measured, measured_bytes(measured));
  }
  return {{"limit", rank.limit_bytes},
          {"shows_limit", shows_limit(picture, index)},
          {"residents", residents},
          {"resources", names},
          {"lanes", lanes},
          {"values", values_json(rank)},
          {"instructions", instructions_json(rank, resources)},
          {"sides", sides}};
}

json computing_json(const StepPicture& picture) {
  json share = {{"predicted", computing_share(picture.predicted)}};
  if (picture.measured != nullptr) {
    share["measured"] = computing_share(*picture.measured);
  }
  return share;
}

json step_json(const StepPicture& picture) {
  json step = {{"predicted", nanoseconds(picture.predicted.seconds)}};
  if (picture.measured != nullptr) {
    step["measured"] = nanoseconds(picture.measured->seconds);
  }
  return step;
}

// Rank by rank, as JSON values take much more memory than their text.
std::string data_json(const StepPicture& picture) {
  const StepSums sums = step_sums(picture);
  std::vector<std::string> ranks;
  for (size_t i = 0; i < picture.program.ranks.size(); ++i) {
    ranks.push_back(embedded(rank_json(picture, i)));
  }
  return cat("{\"title\":",
             embedded(picture.title),
             ",\n\"micro_batches\":",
             picture.program.micro_batches,
             ",\n\"step\":",
             embedded(step_json(picture)),
             ",\n\"computing\":",
             embedded(computing_json(picture)),
             ",\n\"ops\":",
             embedded(ops_json()),
             ",\n\"kinds\":",
             embedded(kinds_json()),
             ",\n\"layers\":",
             embedded(layers_json(picture, sums)),
             ",\n\"units\":",
             embedded(units_json(picture.program)),
             ",\n\"groups\":",
             embedded(groups_json(picture.program)),
             ",\n\"sums\":",
             embedded(sums_json(sums)),
             ",\n\"ranks\":[",
             join(ranks, ",\n"),
             "]}");
}

}  // namespace

std::string timeline_html(const StepPicture& picture) {
  check_picture(picture);
  const std::string script =
      cat(timeline_chart_script(), timeline_pointer_script(), timeline_tables_script());
  std::string_view rest = timeline_page();
  std::string out;
  // The page is cut at its marks, and never searched again: a title may look like a mark.
  const auto fill = [&](std::string_view mark, const std::string& text) {
    const size_t at = rest.find(mark);
    PENSTOCK_CHECK(at != std::string_view::npos, "the page lacks ", mark);
    out.append(rest.substr(0, at)).append(text);
    rest.remove_prefix(at + mark.size());
  };
  fill(kTitleMark, xml_escape(picture.title));
  fill(kDataMark, data_json(picture));
  fill(kScriptMark, script);
  return out.append(rest);
}

}  // namespace penstock::report
