#include "penstock/profile/timings.h"

#include <algorithm>
#include <cmath>

namespace penstock::profile {

namespace {

double median_of(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  const size_t half = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(half), values.end());
  if (values.size() % 2 == 1) {
    return values[half];
  }
  const double below =
      *std::max_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(half));
  return (below + values[half]) / 2;
}

}  // namespace

double Timings::median() const {
  return median_of(seconds_);
}

double Timings::error() const {
  if (seconds_.empty()) {
    return 0;
  }
  const double middle = median();
  std::vector<double> distances;
  for (const double seconds : seconds_) {
    distances.push_back(std::abs(seconds - middle));
  }
  // For a normal spread the deviation is 1.4826 median distances, and the error of a median 1.2533
  // deviations over the root of the count.
  constexpr double kFactor = 1.4826 * 1.2533;
  return kFactor * median_of(std::move(distances)) /
         std::sqrt(static_cast<double>(seconds_.size()));
}

}  // namespace penstock::profile
