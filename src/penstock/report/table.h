// A table of text for terminals: a heading, a rule, rows. Columns are as wide as their widest cell.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace penstock::report {

enum class Align { Left, Right };  // left for text, right for numbers

struct Column {
  std::string heading;
  Align align = Align::Left;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns);

  void add_row(std::vector<std::string> cells);  // one cell per column
  void add_rule();                               // a line across the table, as before a total

  // Every line ends with a newline and has no spaces before it. Without any heading, the heading
  // and its rule are left out.
  std::string text() const;

 private:
  std::vector<size_t> widths() const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // a row without cells is a rule
};

}  // namespace penstock::report
