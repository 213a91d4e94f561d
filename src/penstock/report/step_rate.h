// How long a step takes at the moment, for the time that is left. Recent steps count most: the
// memory is about half a minute, or 20 steps where those take longer. Time is passed in, so the
// estimate is a pure function of what was seen.
#pragma once

#include <cstdint>
#include <optional>

namespace penstock::report {

class StepRate {
 public:
  // `done` steps were there at time `seconds`; they are not counted.
  StepRate(int64_t done, double seconds) : done_(done), seconds_(seconds) {}

  void observe(int64_t done, double seconds);

  // Nothing before the first step has been seen.
  std::optional<double> seconds_per_step() const;

 private:
  int64_t done_;
  double seconds_;
  double faded_steps_ = 0;
  double faded_seconds_ = 0;
};

}  // namespace penstock::report
