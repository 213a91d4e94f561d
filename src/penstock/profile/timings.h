// Repeated timings of a piece of work, and whether their median can be trusted yet.
#pragma once

#include <vector>

namespace penstock::profile {

class Timings {
 public:
  void add(double seconds) { seconds_.push_back(seconds); }
  bool is_empty() const { return seconds_.empty(); }
  double median() const;
  // Standard error of the median, from the spread of the timings around it.
  double error() const;

 private:
  std::vector<double> seconds_;
};

}  // namespace penstock::profile
