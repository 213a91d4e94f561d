// One axis of a chart: where a value lies along it, and ticks at round numbers.
#pragma once

#include <string>
#include <vector>

namespace penstock::report {

enum class Scale { Linear, Log10 };

struct Tick {
  double value = 0;
  std::string label;
};

class Axis {
 public:
  // Covers those of `values` that can_show() accepts, with room around them when they are all
  // alike; 0 to 1 (linear) or 1 to 10 (log) when there are none.
  Axis(const std::vector<double>& values, Scale scale);

  // Moves both ends outwards to round numbers, as `about` ticks give them. Linear axes only.
  void round_ends(int about);

  // NaN, infinities and numbers whose differences would overflow cannot be shown; nor can 0 and
  // less on a log axis.
  bool can_show(double value) const;

  double low() const { return low_; }
  double high() const { return high_; }

  // 0 at the low end, 1 at the high end. For values that can be shown.
  double position(double value) const;

  // At most `about` + 1 round numbers within the ends, in order.
  std::vector<Tick> ticks(int about) const;

 private:
  std::vector<Tick> linear_ticks(int about) const;
  std::vector<Tick> log_ticks(int about) const;

  Scale scale_;
  double low_ = 0;
  double high_ = 1;
};

}  // namespace penstock::report
