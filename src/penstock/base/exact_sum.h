// A sum of doubles with twice their digits: parts of it can be added up in any order, on any rank, and
// round to the same double.
#pragma once

namespace penstock {

struct ExactSum {
  double high = 0, low = 0;

  ExactSum() = default;
  ExactSum(double value) : high(value) {}
  ExactSum(double its_high, double its_low) : high(its_high), low(its_low) {}

  void add(double value) {
    // Knuth's two-sum: `error` is what the rounded sum leaves out, exactly.
    const double sum = high + value;
    const double taken = sum - high;
    const double error = (high - (sum - taken)) + (value - taken);
    low += error;
    high = sum + low;
    low = low - (high - sum);
  }
  void add(const ExactSum& other) {
    add(other.high);
    add(other.low);
  }

  double value() const { return high; }
};

}  // namespace penstock
