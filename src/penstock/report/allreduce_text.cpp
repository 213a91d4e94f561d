#include "penstock/report/allreduce_text.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iomanip>
#include <map>

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/comm/collective_traffic.h"
#include "penstock/report/table.h"

namespace penstock::report {

namespace {

using comm::AllReduceTime;
using Cell = std::function<std::string(const AllReduceTime&)>;

std::string digits(double value, int after_point) {
  return cat(std::fixed, std::setprecision(after_point), value);
}

std::map<int64_t, std::vector<AllReduceTime>> by_size(const std::vector<AllReduceTime>& times) {
  std::map<int64_t, std::vector<AllReduceTime>> rows;
  for (const AllReduceTime& time : times) {
    rows[time.bytes].push_back(time);
  }
  return rows;
}

const AllReduceTime& fastest(const std::vector<AllReduceTime>& row) {
  return *std::min_element(
      row.begin(), row.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
}

std::string size_table(const std::vector<AllReduceTime>& times,
                       const std::string& unit,
                       const Cell& cell) {
  const std::map<int64_t, std::vector<AllReduceTime>> rows = by_size(times);
  std::vector<Column> columns{{unit, Align::Right}};
  for (const AllReduceTime& time : rows.begin()->second) {
    columns.push_back({cat(algorithm_name(time.algorithm), ' '), Align::Right});
  }
  Table table(columns);
  for (const auto& [bytes, row] : rows) {
    std::vector<std::string> cells{format_bytes(bytes)};
    const comm::Algorithm best = fastest(row).algorithm;
    for (const AllReduceTime& time : row) {
      cells.push_back(cat(cell(time), time.algorithm == best ? '*' : ' '));
    }
    table.add_row(cells);
  }
  return table.text();
}

std::string fit_table(const plan::LinkCosts& fitted) {
  Table table({{"fitted"},
               {"steps", Align::Right},
               {"us a step", Align::Right},
               {"GB/s sent", Align::Right}});
  for (const auto& [algorithm, cost] : fitted.algorithms) {
    const comm::Traffic traffic =
        comm::all_reduce_traffic(algorithm, 0, fitted.ranks, 1, comm::Element::Float32);
    table.add_row({std::string(algorithm_name(algorithm)),
                   cat(traffic.steps),
                   digits(1e6 * cost.latency_s, 1),
                   digits(1e-9 * cost.bytes_per_s, 2)});
  }
  return table.text();
}

}  // namespace

std::string all_reduce_text(const std::vector<AllReduceTime>& times,
                            const plan::LinkCosts& fitted) {
  if (times.empty()) {
    return "";
  }
  const std::string seconds = size_table(
      times, "ms", [](const AllReduceTime& time) { return digits(1e3 * time.seconds, 3); });
  const std::string rates = size_table(times, "GB/s", [](const AllReduceTime& time) {
    return digits(1e-9 * static_cast<double>(time.bytes) / time.seconds, 3);
  });
  return cat(seconds, '\n', rates, '\n', fit_table(fitted));
}

}  // namespace penstock::report
