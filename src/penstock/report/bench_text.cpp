#include "penstock/report/bench_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/report/table.h"

namespace penstock::report {

namespace {

using nlohmann::ordered_json;

constexpr size_t kNameWidth = 64;  // of a kernel

std::string print(const char* format, double value) {
  std::array<char, 64> buffer;
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

// A column of figures that may be missing; the whole column is left out when all are.
struct OptionalColumn {
  const char* heading;
  const char* format;
  std::optional<double> StepFigures::*figure;
};

constexpr OptionalColumn kOptionalColumns[] = {{"mJ/token", "%.3f", &StepFigures::joules_per_token},
                                               {"W", "%.0f", &StepFigures::watts},
                                               {"MHz", "%.0f", &StepFigures::clock_mhz}};

std::string optional_cell(const OptionalColumn& column, const StepFigures& figures) {
  const std::optional<double>& value = figures.*column.figure;
  const double factor = column.figure == &StepFigures::joules_per_token ? 1e3 : 1;
  return value ? print(column.format, factor * *value) : "-";
}

std::vector<OptionalColumn> columns_with_figures(const std::vector<StepFigures>& rows) {
  std::vector<OptionalColumn> columns;
  for (const OptionalColumn& column : kOptionalColumns) {
    if (std::any_of(rows.begin(), rows.end(), [&](const StepFigures& row) {
          return (row.*column.figure).has_value();
        })) {
      columns.push_back(column);
    }
  }
  return columns;
}

std::string step_table(const std::vector<StepFigures>& rows) {
  const std::vector<OptionalColumn> optional = columns_with_figures(rows);
  std::vector<Column> columns = {{""},
                                 {"tokens/s", Align::Right},
                                 {"step ms", Align::Right},
                                 {"TFLOP/s", Align::Right},
                                 {"MFU", Align::Right}};
  for (const OptionalColumn& column : optional) {
    columns.push_back({column.heading, Align::Right});
  }
  columns.push_back({"peak memory", Align::Right});
  Table table(columns);
  for (const StepFigures& row : rows) {
    std::vector<std::string> cells = {
        row.who,
        format_count(std::llround(row.tokens_per_second)),
        format_milliseconds(row.step_s),
        print("%.1f", row.tflops),
        print("%.1f %%", 100 * row.mfu) + print(" of %g", row.peak_tflops)};
    for (const OptionalColumn& column : optional) {
      cells.push_back(optional_cell(column, row));
    }
    cells.push_back(row.peak_bytes > 0 ? format_bytes(row.peak_bytes) : "-");
    table.add_row(cells);
  }
  return table.text();
}

ordered_json number_or_null(std::optional<double> value) {
  return value && std::isfinite(*value) ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json figures_json(const StepFigures& figures) {
  return {{"who", figures.who},
          {"tokens_per_second", number_or_null(figures.tokens_per_second)},
          {"step_s", number_or_null(figures.step_s)},
          {"tflops", number_or_null(figures.tflops)},
          {"mfu", number_or_null(figures.mfu)},
          {"peak_tflops", number_or_null(figures.peak_tflops)},
          {"joules_per_token", number_or_null(figures.joules_per_token)},
          {"watts", number_or_null(figures.watts)},
          {"clock_mhz", number_or_null(figures.clock_mhz)},
          {"peak_bytes", figures.peak_bytes}};
}

std::string clipped(const std::string& name) {
  return name.size() > kNameWidth ? name.substr(0, kNameWidth - 3) + "..." : name;
}

// Whole numbers as they are: most kernels run equally often in every step.
std::string count_per_step(int64_t count, int64_t num_steps) {
  return count % num_steps == 0
             ? format_count(count / num_steps)
             : print("%.1f", static_cast<double>(count) / static_cast<double>(num_steps));
}

KernelRow sum_of(const std::vector<KernelRow>& rows, size_t from, const std::string& name) {
  KernelRow sum{name, 0, 0, std::nullopt, 0};
  for (size_t i = from; i < rows.size(); ++i) {
    sum.count += rows[i].count;
    sum.seconds += rows[i].seconds;
    sum.share += rows[i].share;
    if (rows[i].floor_s) {
      sum.floor_s = sum.floor_s.value_or(0) + *rows[i].floor_s;
    }
  }
  return sum;
}

bool has_floor(const std::vector<KernelRow>& rows) {
  return std::any_of(
      rows.begin(), rows.end(), [](const KernelRow& row) { return row.floor_s.has_value(); });
}

std::vector<std::string> kernel_cells(const KernelRow& row, int64_t num_steps, bool with_floor) {
  const double steps = static_cast<double>(num_steps);
  std::vector<std::string> cells = {clipped(row.name),
                                    count_per_step(row.count, num_steps),
                                    print("%.3f", 1e3 * row.seconds / steps),
                                    print("%.1f %%", 100 * row.share)};
  if (with_floor) {
    const bool is_known = row.floor_s && *row.floor_s > 0;
    cells.push_back(is_known ? print("%.3f", 1e3 * *row.floor_s / steps) : "-");
    cells.push_back(is_known ? print("%.2f", row.seconds / *row.floor_s) : "-");
  }
  return cells;
}

// "the device worked 96.02 ms of 100.00 ms a step, and waited 4.0 %"
std::string waiting_text(const KernelBreakdown& kernels) {
  const double steps = static_cast<double>(kernels.num_steps);
  return cat("the device worked ",
             format_milliseconds(kernels.busy_s / steps),
             " ms of ",
             format_milliseconds(kernels.span_s / steps),
             " ms a step, and waited ",
             print("%.1f %%", 100 * (1 - kernels.busy_s / kernels.span_s)),
             "\n");
}

}  // namespace

StepFigures step_figures(const std::string& who,
                         double tokens_per_second,
                         int64_t tokens_per_step,
                         double flop_per_token,
                         double peak_flops) {
  PENSTOCK_CHECK(tokens_per_second > 0 && peak_flops > 0,
                 tokens_per_second,
                 " tokens/s, peak of ",
                 peak_flops,
                 " FLOP/s");
  StepFigures figures;
  figures.who = who;
  figures.tokens_per_second = tokens_per_second;
  figures.step_s = static_cast<double>(tokens_per_step) / tokens_per_second;
  figures.tflops = 1e-12 * tokens_per_second * flop_per_token;
  figures.peak_tflops = 1e-12 * peak_flops;
  figures.mfu = figures.tflops / figures.peak_tflops;
  return figures;
}

std::optional<PeerRatio> over_best_peer(const StepFigures& ours,
                                        const std::vector<StepFigures>& peers) {
  const StepFigures* best = nullptr;
  for (const StepFigures& peer : peers) {
    if (peer.tokens_per_second > (best != nullptr ? best->tokens_per_second : 0)) {
      best = &peer;
    }
  }
  if (best == nullptr) {
    return std::nullopt;
  }
  return PeerRatio{best->who, ours.tokens_per_second / best->tokens_per_second};
}

std::string step_text(const StepFigures& ours, const std::vector<StepFigures>& peers) {
  std::vector<StepFigures> rows = {ours};
  rows.insert(rows.end(), peers.begin(), peers.end());
  std::string out = step_table(rows);
  if (const std::optional<PeerRatio> best = over_best_peer(ours, peers)) {
    out += cat("\n", print("%.3f", best->ratio), " times ", best->who, ", the fastest peer\n");
  }
  return out;
}

ordered_json step_json(const StepFigures& ours, const std::vector<StepFigures>& peers) {
  ordered_json json{{"ours", figures_json(ours)}, {"peers", ordered_json::array()}};
  for (const StepFigures& peer : peers) {
    json["peers"].push_back(figures_json(peer));
  }
  const std::optional<PeerRatio> best = over_best_peer(ours, peers);
  json["best_peer"] = best ? ordered_json(best->who) : ordered_json(nullptr);
  json["ratio"] = best ? number_or_null(best->ratio) : ordered_json(nullptr);
  return json;
}

void set_shares(std::vector<KernelRow>& rows) {
  const double all = sum_of(rows, 0, "").seconds;
  for (KernelRow& row : rows) {
    row.share = all > 0 ? row.seconds / all : 0;
  }
}

std::string kernel_text(const KernelBreakdown& kernels, size_t max_rows) {
  PENSTOCK_CHECK(kernels.num_steps > 0, kernels.num_steps, " traced steps");
  const bool with_floor = has_floor(kernels.rows);
  std::vector<Column> columns = {{"kernels of a step"},
                                 {"count", Align::Right},
                                 {"ms", Align::Right},
                                 {"share", Align::Right}};
  if (with_floor) {
    columns.push_back({"floor ms", Align::Right});
    columns.push_back({"over floor", Align::Right});
  }
  Table table(columns);
  const auto add = [&](const KernelRow& row) {
    table.add_row(kernel_cells(row, kernels.num_steps, with_floor));
  };
  const size_t num_rest = kernels.rows.size() - std::min(max_rows, kernels.rows.size());
  const size_t num_shown = num_rest > 1 ? max_rows : kernels.rows.size();
  for (size_t i = 0; i < num_shown; ++i) {
    add(kernels.rows[i]);
  }
  if (num_shown < kernels.rows.size()) {
    KernelRow rest = sum_of(kernels.rows, num_shown, cat(num_rest, " others"));
    rest.floor_s.reset();  // of some of them only, as a rule
    add(rest);
  }
  table.add_rule();
  KernelRow all = sum_of(kernels.rows, 0, "all");
  const auto lacks_floor = [](const KernelRow& row) { return !row.floor_s; };
  if (std::any_of(kernels.rows.begin(), kernels.rows.end(), lacks_floor)) {
    all.floor_s.reset();
  }
  add(all);
  return table.text() + (kernels.span_s > 0 ? waiting_text(kernels) : "");
}

ordered_json kernel_json(const KernelBreakdown& kernels) {
  PENSTOCK_CHECK(kernels.num_steps > 0, kernels.num_steps, " traced steps");
  const double steps = static_cast<double>(kernels.num_steps);
  ordered_json rows = ordered_json::array();
  for (const KernelRow& row : kernels.rows) {
    rows.push_back({{"name", row.name},
                    {"count", static_cast<double>(row.count) / steps},
                    {"seconds", row.seconds / steps},
                    {"share", row.share},
                    {"floor_s", row.floor_s ? ordered_json(*row.floor_s / steps) : nullptr}});
  }
  return {{"num_steps", kernels.num_steps},
          {"busy_s", kernels.busy_s / steps},
          {"span_s", kernels.span_s / steps},
          {"kernels", rows}};
}

}  // namespace penstock::report
