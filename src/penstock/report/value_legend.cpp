#include "penstock/report/value_legend.h"

#include <array>

#include "penstock/base/error.h"
#include "penstock/base/text.h"

namespace penstock::report {

namespace {

using program::ValueKind;

struct KindText {
  ValueKind kind;
  std::string_view noun, meaning;  // of the example: layer, element and unit 3, micro-batch 0
};

constexpr std::array<KindText, program::kNumValueKinds> kTexts = {{
    {ValueKind::Activation, "activation", "what enters layer 3, micro-batch 0"},
    {ValueKind::Saved, "saved", "what forward of layer 3 keeps for its backward"},
    {ValueKind::Gradient, "gradient", "the gradient of x3.0"},
    {ValueKind::Targets, "targets", "what the loss compares with"},
    {ValueKind::WeightWork, "weight work", "what layer 3's weight gradient still needs"},
    {ValueKind::Carried, "carried element", "element 3, read by later layers than the next"},
    {ValueKind::CarriedGradient, "gradient of a carried element", "the gradient of i3.0"},
    {ValueKind::Gathered, "gathered weights", "unit 3's weights, whole, for micro-batch 0"},
    {ValueKind::Bucket, "bucket", "unit 3's gradient, of micro-batch 0 alone"},
    {ValueKind::Stashed, "copy of weights", "the weights after 2 updates, copied"},
    {ValueKind::Master, "weights", "unit 3's weights, which the optimizer moves"},
    {ValueKind::Compute, "compute copy", "what layers see of unit 3's weights"},
    {ValueKind::GradientSum, "gradient", "unit 3's gradient, added up"},
    {ValueKind::Share, "share of a gradient", "the part of a3 that layer 7 adds"},
    {ValueKind::State, "optimizer state", "the optimizer's state of unit 3"},
    {ValueKind::LayerState, "layer state", "what layer 3 changes beside gradients"},
    {ValueKind::RankState, "optimizer state", "the optimizer's state of no unit"},
    {ValueKind::Fixed, "fixed", "memory that never moves: workspaces, staging"},
    {ValueKind::Squares, "squares", "sums of squares of this rank's gradients"},
    {ValueKind::AllSquares, "squares of all", "q.0 of all ranks"},
    {ValueKind::Decision, "decision", "the norm, and what gradients are multiplied by"},
    {ValueKind::Sketches, "sketches", "sums that tell the norm, of this replica"},
    {ValueKind::AllSketches, "sketches of all", "h.0 of all replicas"},
    {ValueKind::Filled, "filled", "the optimizer has its replicas' state"},
    {ValueKind::Prepared, "prepared", "what this replica gives to the average"},
    {ValueKind::Lengths, "lengths", "sums of squares of this rank's slices"},
    {ValueKind::AllLengths, "lengths of all", "l.0 of all replicas"},
}};

const KindText& text_of(ValueKind kind) {
  const KindText& text = kTexts[static_cast<size_t>(kind)];
  PENSTOCK_CHECK(text.kind == kind, "the texts of values are not in the order of their kinds");
  return text;
}

std::string example_name(ValueKind kind) {
  const program::ValueKindInfo& info = program::info_of(kind);
  return program::name_of({.kind = kind,
                           .layer = !info.has_layer ? -1
                                    : info.has_unit ? 7
                                                    : 3,
                           .element = info.has_element ? 3 : -1,
                           .unit = info.has_unit ? 3 : -1,
                           .micro_batch = info.has_micro_batch ? 0 : -1,
                           .version = !info.has_version            ? -1
                                      : kind == ValueKind::Stashed ? 2
                                                                   : 0,
                           .label = info.has_label ? 0 : -1});
}

NameMeaning bar_number(const program::Program& program) {
  const bool is_pipeline = program.ranks.size() > 1 && program.micro_batches > 1;
  return {is_pipeline ? "3.0" : "3",
          cat("in a bar: layer 3",
              program.units.empty() ? "" : " (or unit 3)",
              is_pipeline ? ", micro-batch 0" : "")};
}

}  // namespace

std::string_view value_noun(ValueKind kind) {
  return text_of(kind).noun;
}

std::vector<NameMeaning> name_meanings(const program::Program& program, bool has_bytes) {
  std::array<bool, program::kNumValueKinds> occurs = {};
  for (const program::RankProgram& rank : program.ranks) {
    for (const program::Value& value : rank.values) {
      occurs[static_cast<size_t>(value.kind)] |= value.bytes > 0 || !has_bytes;
    }
  }
  std::vector<NameMeaning> meanings = {bar_number(program)};
  for (const KindText& text : kTexts) {
    if (occurs[static_cast<size_t>(text.kind)]) {
      meanings.push_back({example_name(text.kind), std::string(text.meaning)});
    }
  }
  return meanings;
}

}  // namespace penstock::report
