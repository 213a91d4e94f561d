// The least seconds within a number of bytes: a function that falls in steps as the bytes grow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace penstock::plan {

class StepFunction {
 public:
  struct Point {
    int64_t bytes = 0;  // from here on
    double seconds = 0;
  };
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  StepFunction() = default;  // infinite everywhere
  // Of all candidates the least at every point; of more than `most_points` steps only those are
  // kept that lose least, never more than the truth. The first and the last stay.
  static StepFunction least_of(std::vector<Point>& candidates, size_t most_points);

  double at(int64_t bytes) const;
  bool is_infinite() const { return points_.empty(); }
  int64_t first_bytes() const { return points_.front().bytes; }
  const std::vector<Point>& points() const { return points_; }

 private:
  std::vector<Point> points_;  // bytes rise, seconds fall
};

// Adds to `candidates` the function base + f(bytes - f_shift) from `begin` on.
void add_shifted(std::vector<StepFunction::Point>& candidates,
                 int64_t begin,
                 double base,
                 const StepFunction& f,
                 int64_t f_shift);

// Adds base + f(bytes - f_shift) + g(bytes - g_shift) from `begin` on.
void add_sum(std::vector<StepFunction::Point>& candidates,
             int64_t begin,
             double base,
             const StepFunction& f,
             int64_t f_shift,
             const StepFunction& g,
             int64_t g_shift);

}  // namespace penstock::plan
