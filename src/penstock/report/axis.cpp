#include "penstock/report/axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <limits>

#include "penstock/base/error.h"

namespace penstock::report {

namespace {

// Ends closer than this, relative to their size or at all, leave no digits for ticks in between.
constexpr double kSmallestRelativeSpan = 1e-9;
constexpr double kSmallestSpan = 1e-290;
// Larger numbers have differences that overflow.
constexpr double kLargest = 1e290;
// How far from a whole number of steps still counts as one.
constexpr double kRoundness = 1e-6;

// The smallest of 1, 2, 5 times a power of ten that makes at most `about` steps.
double round_step(double span, int about) {
  const double smallest = span / std::max(about, 1);
  const double power = std::pow(10, std::floor(std::log10(smallest)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= smallest * (1 - kRoundness)) {
      return factor * power;
    }
  }
  return 10 * power;
}

std::string print(const char* format, int precision, double value) {
  std::array<char, 64> buffer;
  std::snprintf(buffer.data(), buffer.size(), format, precision, value);
  return buffer.data();
}

// "1e-05" -> "1e-5", "2e+12" -> "2e12"
std::string without_exponent_padding(std::string text) {
  const size_t exponent = text.find('e');
  if (exponent != std::string::npos) {
    const size_t sign = exponent + 1;
    while (text.size() > sign + 2 && text[sign + 1] == '0') {
      text.erase(sign + 1, 1);
    }
    if (text[sign] == '+') {
      text.erase(sign, 1);
    }
  }
  return text;
}

int decimal_exponent(double value) {
  return static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9));
}

struct Unit {
  int exponent;
  const char* name;
};

// 20000 reads 20k, unless that takes many digits after the point.
Unit unit_for(double largest, int step_exponent) {
  constexpr Unit units[] = {{12, "T"}, {9, "G"}, {6, "M"}, {3, "k"}};
  if (largest >= 1e4) {
    for (const Unit& unit : units) {
      if (decimal_exponent(largest) >= unit.exponent && step_exponent >= unit.exponent - 2) {
        return unit;
      }
    }
  }
  return {0, ""};
}

// With just the digits that tell neighbours `step` apart, on an axis whose numbers are up to
// `largest`.
std::string tick_label(double value, double step, double largest) {
  if (value == 0) {
    return "0";
  }
  const int step_exponent = decimal_exponent(step);
  const bool is_tiny = step_exponent < -3 && largest < 0.1;
  if (is_tiny || largest >= 1e15) {
    const int digits = std::clamp(decimal_exponent(value) - step_exponent, 0, 15);
    return without_exponent_padding(print("%.*e", digits, value));
  }
  const Unit unit = unit_for(largest, step_exponent);
  const int digits = std::clamp(unit.exponent - step_exponent, 0, 15);
  return print("%.*f", digits, value / std::pow(10, unit.exponent)) + unit.name;
}

}  // namespace

Axis::Axis(const std::vector<double>& values, Scale scale) : scale_(scale) {
  low_ = std::numeric_limits<double>::infinity();
  high_ = -low_;
  for (const double value : values) {
    if (can_show(value)) {
      low_ = std::min(low_, value);
      high_ = std::max(high_, value);
    }
  }
  const bool is_log = scale_ == Scale::Log10;
  if (low_ > high_) {
    low_ = is_log ? 1 : 0;
    high_ = is_log ? 10 : 1;
  }
  const double largest = std::max(std::abs(low_), std::abs(high_));
  if (high_ - low_ <= std::max(kSmallestRelativeSpan * largest, kSmallestSpan)) {
    if (is_log) {
      low_ /= 2;
      high_ *= 2;
    } else {
      const double room = largest > 100 * kSmallestSpan ? largest / 20 : 0.5;
      low_ -= room;
      high_ += room;
    }
  }
}

void Axis::round_ends(int about) {
  PENSTOCK_CHECK(scale_ == Scale::Linear, "only linear axes have round ends");
  // Ends further apart may take a larger step, for which they are rounded once more.
  for (int pass = 0; pass < 2; ++pass) {
    const double step = round_step(high_ - low_, about);
    // An end that is round except for the last bits stays.
    low_ = std::min(low_, std::floor(low_ / step + kRoundness) * step);
    high_ = std::max(high_, std::ceil(high_ / step - kRoundness) * step);
  }
}

bool Axis::can_show(double value) const {
  // Comparisons with NaN are false.
  return std::abs(value) < kLargest && (scale_ == Scale::Linear || value > kSmallestSpan);
}

double Axis::position(double value) const {
  if (scale_ == Scale::Log10) {
    // Differences, as the ratio of the ends may overflow.
    return (std::log(value) - std::log(low_)) / (std::log(high_) - std::log(low_));
  }
  return (value - low_) / (high_ - low_);
}

std::vector<Tick> Axis::ticks(int about) const {
  return scale_ == Scale::Log10 ? log_ticks(about) : linear_ticks(about);
}

std::vector<Tick> Axis::linear_ticks(int about) const {
  const double step = round_step(high_ - low_, about);
  const double largest = std::max(std::abs(low_), std::abs(high_));
  // Whole multiples of the step, so that no error adds up.
  const double first = std::ceil(low_ / step - kRoundness);
  const double last = std::floor(high_ / step + kRoundness);
  std::vector<Tick> ticks;
  for (int i = 0; i <= static_cast<int>(last - first); ++i) {
    const double value = (first + i) * step;
    ticks.push_back({std::clamp(value, low_, high_), tick_label(value, step, largest)});
  }
  return ticks;
}

std::vector<Tick> Axis::log_ticks(int about) const {
  const int first_power = static_cast<int>(std::floor(std::log10(low_)));
  const int last_power = static_cast<int>(std::ceil(std::log10(high_)));
  const auto within = [&](std::initializer_list<double> factors, int stride) {
    std::vector<Tick> ticks;
    for (int power = first_power; power <= last_power; power += stride) {
      for (const double factor : factors) {
        const double value = factor * std::pow(10, power);
        const double near = 1e-9 * value;
        if (value >= low_ - near && value <= high_ + near) {
          ticks.push_back({std::clamp(value, low_, high_), tick_label(value, value, value)});
        }
      }
    }
    return ticks;
  };
  const size_t enough = 3;
  const size_t most = static_cast<size_t>(std::max(about, 1)) + 1;
  std::vector<Tick> decades = within({1}, 1);
  if (decades.size() > most) {
    const size_t stride = (decades.size() + most - 1) / most;
    return within({1}, static_cast<int>(stride));
  }
  if (decades.size() >= enough) {
    return decades;
  }
  std::vector<Tick> finer = within({1, 2, 5}, 1);
  if (finer.size() >= enough && finer.size() <= most) {
    return finer;
  }
  // Less than a decade is close to linear.
  return finer.size() < enough ? linear_ticks(about) : decades;
}

}  // namespace penstock::report
