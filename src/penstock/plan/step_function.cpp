#include "penstock/plan/step_function.h"

#include <algorithm>

namespace penstock::plan {

namespace {

// One step for each of `most` equal ranges of bytes: the last in it, as if the bytes were rounded
// down to the next range.
void thin(std::vector<StepFunction::Point>& points, size_t most) {
  const int64_t begin = points.front().bytes;
  const int64_t range = (points.back().bytes - begin) / static_cast<int64_t>(most - 1) + 1;
  size_t kept = 1;
  for (size_t i = 1; i < points.size(); ++i) {
    const bool is_last_of_range =
        i + 1 == points.size() ||
        (points[i].bytes - begin) / range != (points[i + 1].bytes - begin) / range;
    if (is_last_of_range) {
      points[kept++] = points[i];
    }
  }
  points.resize(kept);
}

}  // namespace

StepFunction StepFunction::least_of(std::vector<Point>& candidates, size_t most_points) {
  std::sort(candidates.begin(), candidates.end(), [](const Point& a, const Point& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.seconds < b.seconds;
  });
  StepFunction result;
  double least = kInfinity;
  for (const Point& point : candidates) {
    if (point.seconds < least) {
      least = point.seconds;
      result.points_.push_back(point);
    }
  }
  if (result.points_.size() > most_points) {
    thin(result.points_, most_points);
  }
  return result;
}

double StepFunction::at(int64_t bytes) const {
  const auto after = std::upper_bound(
      points_.begin(), points_.end(), bytes, [](int64_t value, const Point& point) {
        return value < point.bytes;
      });
  return after == points_.begin() ? kInfinity : (after - 1)->seconds;
}

void add_shifted(std::vector<StepFunction::Point>& candidates,
                 int64_t begin,
                 double base,
                 const StepFunction& f,
                 int64_t f_shift) {
  for (const StepFunction::Point& point : f.points()) {
    candidates.push_back({std::max(begin, point.bytes + f_shift), base + point.seconds});
  }
}

void add_sum(std::vector<StepFunction::Point>& candidates,
             int64_t begin,
             double base,
             const StepFunction& f,
             int64_t f_shift,
             const StepFunction& g,
             int64_t g_shift) {
  const auto& left = f.points();
  const auto& right = g.points();
  size_t i = 0, j = 0;
  while (i < left.size() && j < right.size()) {
    const int64_t bytes = std::max(left[i].bytes + f_shift, right[j].bytes + g_shift);
    candidates.push_back({std::max(begin, bytes), base + left[i].seconds + right[j].seconds});
    // The next step of either, whichever comes first.
    const int64_t next_left =
        i + 1 < left.size() ? left[i + 1].bytes + f_shift : std::numeric_limits<int64_t>::max();
    const int64_t next_right =
        j + 1 < right.size() ? right[j + 1].bytes + g_shift : std::numeric_limits<int64_t>::max();
    i += next_left <= next_right ? 1 : 0;
    j += next_right <= next_left ? 1 : 0;
  }
}

}  // namespace penstock::plan
