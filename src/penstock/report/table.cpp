#include "penstock/report/table.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/report/text_width.h"

namespace penstock::report {

namespace {

constexpr size_t kGap = 2;  // spaces between columns

std::string rule(const std::vector<size_t>& widths) {
  size_t width = kGap * (widths.size() - 1);
  for (const size_t column_width : widths) {
    width += column_width;
  }
  return std::string(width, '-') + "\n";
}

std::string line(const std::vector<std::string>& cells,
                 const std::vector<Column>& columns,
                 const std::vector<size_t>& widths) {
  std::string out;
  for (size_t i = 0; i < cells.size(); ++i) {
    out += i > 0 ? std::string(kGap, ' ') : "";
    out += columns[i].align == Align::Left ? pad_right(cells[i], widths[i])
                                           : pad_left(cells[i], widths[i]);
  }
  out.erase(out.find_last_not_of(' ') + 1);
  return out + "\n";
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  PENSTOCK_CHECK(!columns_.empty(), "a table has at least one column");
}

void Table::add_row(std::vector<std::string> cells) {
  PENSTOCK_CHECK(cells.size() == columns_.size(),
                 cells.size(),
                 " cells for a table of ",
                 columns_.size(),
                 " columns");
  rows_.push_back(std::move(cells));
}

void Table::add_rule() {
  rows_.emplace_back();
}

std::string Table::text() const {
  const std::vector<size_t> column_widths = widths();
  std::vector<std::string> headings;
  for (const Column& column : columns_) {
    headings.push_back(column.heading);
  }
  std::string out;
  if (std::any_of(
          headings.begin(), headings.end(), [](const auto& text) { return !text.empty(); })) {
    out += line(headings, columns_, column_widths);
    out += rule(column_widths);
  }
  for (const auto& row : rows_) {
    out += row.empty() ? rule(column_widths) : line(row, columns_, column_widths);
  }
  return out;
}

std::vector<size_t> Table::widths() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) {
    widths.push_back(text_width(column.heading));
  }
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], text_width(row[i]));
    }
  }
  return widths;
}

}  // namespace penstock::report
