// A sum of doubles with twice their digits: parts of it can be added up in any order, on any rank,
// and round to the same double.
#pragma once

#include <cstddef>
#include <vector>

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

// As ranks send them to each other: two doubles each.
inline std::vector<double> halves_of(const std::vector<ExactSum>& sums) {
  std::vector<double> halves;
  for (const ExactSum& sum : sums) {
    halves.insert(halves.end(), {sum.high, sum.low});
  }
  return halves;
}
// Of each of `count` sums, the sum over the ranks: `halves` has those of one rank after those of
// another.
inline std::vector<ExactSum> add_up(const std::vector<double>& halves, size_t count) {
  std::vector<ExactSum> sums(count);
  for (size_t i = 0; i + 1 < halves.size(); i += 2) {
    sums[i / 2 % count].add(ExactSum(halves[i], halves[i + 1]));
  }
  return sums;
}

}  // namespace penstock
