#include "penstock/report/dot_grid.h"

#include <algorithm>
#include <cmath>

namespace penstock::report {

namespace {

size_t nearest_dot(double place) {
  return static_cast<size_t>(std::lround(place));
}

}  // namespace

DotGrid::DotGrid(size_t columns, size_t rows)
    : columns_(columns), rows_(rows), cells_(columns * rows, 0) {}

void DotGrid::draw_line(Point from, Point to) {
  const Point begin = {dot_x(from.x), dot_y(from.y)};
  const Point end = {dot_x(to.x), dot_y(to.y)};
  const double distance = std::max(std::abs(end.x - begin.x), std::abs(end.y - begin.y));
  const int num_steps = std::max(static_cast<int>(std::ceil(distance)), 1);
  for (int i = 0; i <= num_steps; ++i) {
    const double share = static_cast<double>(i) / num_steps;
    set_dot(nearest_dot(begin.x + share * (end.x - begin.x)),
            nearest_dot(begin.y + share * (end.y - begin.y)));
  }
}

size_t DotGrid::column_of(double x) const {
  return nearest_dot(dot_x(x)) / 2;
}

size_t DotGrid::row_of(double y) const {
  return nearest_dot(dot_y(y)) / 4;
}

std::string DotGrid::row_text(size_t row) const {
  std::string out;
  for (size_t column = 0; column < columns_; ++column) {
    const uint8_t dots = cells_[row * columns_ + column];
    if (dots == 0) {
      out += ' ';
    } else {
      // U+2800 + dots, in UTF-8.
      out += '\xE2';
      out += static_cast<char>(0xA0 | (dots >> 6));
      out += static_cast<char>(0x80 | (dots & 0x3F));
    }
  }
  return out;
}

double DotGrid::dot_x(double x) const {
  return x * static_cast<double>(2 * columns_ - 1);
}

double DotGrid::dot_y(double y) const {
  return (1 - y) * static_cast<double>(4 * rows_ - 1);
}

void DotGrid::set_dot(size_t x, size_t y) {
  // Unicode numbers the upper six dots column by column and adds the bottom row last.
  constexpr uint8_t bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
  cells_[y / 4 * columns_ + x / 2] |= bits[y % 4][x % 2];
}

}  // namespace penstock::report
