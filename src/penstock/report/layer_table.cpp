#include "penstock/report/layer_table.h"

#include <array>
#include <cstdio>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/report/table.h"

namespace penstock::report {

namespace {

using program::Instruction;
using program::Op;

// Whole or split.
bool is_backward(Op op) {
  return op == Op::Backward || op == Op::BackwardInput || op == Op::BackwardWeight;
}

void count_keep(const Instruction& instruction, LayerRow& row) {
  if (instruction.keep == program::kKeepNothing) {
    ++row.num_keep_nothing;
  } else {
    ++row.num_kept.at(static_cast<size_t>(instruction.keep));
  }
}

void add(const Instruction& instruction, BarKind kind, SecondsPair seconds, StepSums& sums) {
  if (!is_transfer(instruction.op) && !is_collective(instruction.op)) {
    sums.all += seconds;
  }
  if (instruction.op == Op::Forward) {
    LayerRow& row = sums.layers.at(static_cast<size_t>(instruction.layer));
    ++row.num_forwards;
    count_keep(instruction, row);
    row.forward += seconds;
    sums.forward += seconds;
    if (kind == BarKind::ForwardAgain) {
      ++row.num_again;
      sums.again += seconds;
    }
  } else if (is_backward(instruction.op)) {
    sums.layers.at(static_cast<size_t>(instruction.layer)).backward += seconds;
    sums.backward += seconds;
  }
}

void add_rows_that_take_time(const std::array<OpRow, kNumBarKinds>& by_kind, StepSums& sums) {
  for (size_t i = 0; i < kNumBarKinds; ++i) {
    const auto kind = static_cast<BarKind>(i);
    const bool is_move = kind == BarKind::Send || kind == BarKind::Receive ||
                         kind == BarKind::Gather || kind == BarKind::Reduce;
    if (by_kind[i].seconds.predicted > 0 || by_kind[i].seconds.measured > 0) {
      (is_move ? sums.transfers : sums.others).push_back(by_kind[i]);
    }
  }
}

// What a table shows.
struct Shown {
  bool has_measured = false, is_bare = false;
};

// A cell for each of predicted, measured and ratio, or for the prediction alone.
void add_cells(SecondsPair seconds, Shown shown, std::vector<std::string>& cells) {
  cells.push_back(time_text(seconds.predicted, shown.is_bare));
  if (shown.has_measured) {
    cells.push_back(time_text(seconds.measured, shown.is_bare));
    cells.push_back(ratio_text(seconds.predicted, seconds.measured));
  }
}

void add_columns(const std::string& what, bool has_measured, std::vector<Column>& columns) {
  columns.push_back({what, Align::Right});
  if (has_measured) {
    columns.push_back({"measured", Align::Right});
    columns.push_back({"ratio", Align::Right});
  }
}

std::string layer_table(const StepPicture& picture, const StepSums& sums, Shown shown) {
  const bool has_measured = shown.has_measured;
  std::vector<Column> columns = {
      {"layer"}, {"forwards", Align::Right}, {"recomputed", Align::Right}, {"kept"}};
  add_columns("forward", has_measured, columns);
  add_columns("backward", has_measured, columns);
  Table table(columns);
  for (size_t i = 0; i < sums.layers.size(); ++i) {
    const LayerRow& row = sums.layers[i];
    std::vector<std::string> cells = {cat(i, " ", row.name),
                                      std::to_string(row.num_forwards),
                                      std::to_string(row.num_again),
                                      kept_text(picture, i, row)};
    add_cells(row.forward, shown, cells);
    add_cells(row.backward, shown, cells);
    table.add_row(cells);
  }
  table.add_rule();
  std::vector<std::string> cells = {"all layers", "", "", ""};
  add_cells(sums.forward, shown, cells);
  add_cells(sums.backward, shown, cells);
  table.add_row(cells);
  return table.text();
}

std::string total_table(const StepSums& sums, Shown shown) {
  std::vector<Column> columns = {{""}};
  add_columns("predicted", shown.has_measured, columns);
  Table table(columns);
  const auto add_total = [&](const std::string& name, SecondsPair seconds) {
    std::vector<std::string> cells = {name};
    add_cells(seconds, shown, cells);
    table.add_row(cells);
  };
  add_total("forward", sums.forward);
  if (sums.again.predicted > 0) {
    add_total("  of it recomputed", sums.again);
  }
  add_total("backward", sums.backward);
  for (const OpRow& row : sums.others) {
    add_total(row.name, row.seconds);
  }
  add_total("all work", sums.all);
  for (const OpRow& row : sums.transfers) {
    add_total(row.name, row.seconds);
  }
  table.add_rule();
  add_total(sums.step_name(), sums.step);
  return table.text();
}

std::string peak_table(const StepPicture& picture) {
  const bool has_measured = picture.measured != nullptr;
  std::vector<Column> columns = {{"peak"}};
  add_columns("predicted", has_measured, columns);
  columns.push_back({"limit", Align::Right});
  Table table(columns);
  for (size_t rank = 0; rank < picture.program.ranks.size(); ++rank) {
    const int64_t predicted = picture.predicted.ranks[rank].peak_bytes;
    std::vector<std::string> cells = {cat("rank ", rank), format_bytes(predicted)};
    if (has_measured) {
      const int64_t measured = picture.measured->ranks[rank].peak_bytes;
      cells.push_back(format_bytes(measured));
      cells.push_back(ratio_text(static_cast<double>(predicted), static_cast<double>(measured)));
    }
    const int64_t limit = picture.program.ranks[rank].limit_bytes;
    cells.push_back(limit > 0 ? format_bytes(limit) : "none");
    table.add_row(cells);
  }
  return table.text();
}

}  // namespace

SecondsPair& SecondsPair::operator+=(SecondsPair other) {
  predicted += other.predicted;
  measured += other.measured;
  return *this;
}

std::string StepSums::step_name() const {
  return updates == 0   ? "evaluation, beginning to end"
         : updates == 1 ? "step, beginning to end"
                        : cat(updates, " updates, beginning to end");
}

StepSums step_sums(const StepPicture& picture) {
  check_picture(picture);
  StepSums sums;
  sums.updates = picture.program.updates;
  for (const program::LayerInfo& layer : picture.program.layers) {
    sums.layers.push_back({layer.name, 0, 0, 0, std::vector<int64_t>(layer.modes.size()), {}, {}});
  }
  std::array<OpRow, kNumBarKinds> by_kind;
  for (size_t r = 0; r < picture.program.ranks.size(); ++r) {
    const program::RankProgram& rank = picture.program.ranks[r];
    const std::vector<BarKind> kinds = bar_kinds(rank);
    for (size_t i = 0; i < kinds.size(); ++i) {
      const Instruction& instruction = rank.instructions[i];
      SecondsPair seconds = {duration(picture.predicted.ranks[r].spans[i])};
      if (picture.measured != nullptr) {
        seconds.measured = duration(picture.measured->ranks[r].spans[i]);
      }
      add(instruction, kinds[i], seconds, sums);
      if (instruction.op != Op::Forward && !is_backward(instruction.op)) {
        OpRow& row = by_kind[static_cast<size_t>(kinds[i])];
        row.name = bar_style(kinds[i]).name;
        ++row.count;
        row.seconds += seconds;
      }
    }
  }
  add_rows_that_take_time(by_kind, sums);
  sums.step = {picture.predicted.seconds,
               picture.measured != nullptr ? picture.measured->seconds : 0};
  return sums;
}

std::string ratio_text(double predicted, double measured) {
  if (!(predicted > 0 && measured > 0)) {
    return "-";
  }
  std::array<char, 32> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%.2f", measured / predicted);
  return buffer.data();
}

std::string kept_text(const StepPicture& picture, size_t layer, const LayerRow& row) {
  std::vector<std::string> parts;
  for (size_t mode = 0; mode < row.num_kept.size(); ++mode) {
    if (row.num_kept[mode] > 0) {
      parts.push_back(
          cat(row.num_kept[mode], " x ", picture.program.layers[layer].modes[mode].name));
    }
  }
  if (row.num_keep_nothing > 0) {
    parts.push_back(cat(row.num_keep_nothing, " x nothing"));
  }
  return join(parts, ", ");
}

std::string measured_beside_predicted(const StepPicture& picture) {
  const StepSums sums = step_sums(picture);
  const Shown shown = {picture.measured != nullptr, is_bare(picture.program)};
  std::string out = picture.title.empty() ? "" : picture.title + "\n\n";
  out += layer_table(picture, sums, shown) + "\n";
  out += total_table(sums, shown);
  return shown.is_bare ? out : out + "\n" + peak_table(picture);
}

}  // namespace penstock::report
