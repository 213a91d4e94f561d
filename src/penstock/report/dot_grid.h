// A drawing of dots for terminals, made of braille characters: each is 2 dots wide and 4 high.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/report/chart_axes.h"

namespace penstock::report {

class DotGrid {
 public:
  DotGrid(size_t columns, size_t rows);

  size_t columns() const { return columns_; }
  size_t rows() const { return rows_; }

  // Positions go from 0 (left, bottom) to 1.
  void draw_line(Point from, Point to);

  // The character cell of a position. Rows count from the top.
  size_t column_of(double x) const;
  size_t row_of(double y) const;

  std::string row_text(size_t row) const;  // cells without dots are spaces

 private:
  // In dots, counted from the left and from the top.
  double dot_x(double x) const;
  double dot_y(double y) const;
  void set_dot(size_t x, size_t y);

  size_t columns_, rows_;
  std::vector<uint8_t> cells_;
};

}  // namespace penstock::report
