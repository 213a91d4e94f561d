// The partial sums of a knapsack: bytes that are held against what that costs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock::plan {

// A sum of held bytes, what it costs, and how it came about.
struct Label {
  int64_t held = 0;
  double cost = 0;
  int32_t parent = -1;  // in the list before
  int32_t choice = -1;
};

// Of sums that are nearly the same, the cheapest; each of them cheaper than all that hold less.
class Labels {
 public:
  explicit Labels(int64_t limit_bytes)
      : width_(std::max<int64_t>(1, limit_bytes / kMost + 1)), best_(kMost + 1) {}

  void offer(const Label& label) {
    Label& known = best_[static_cast<size_t>(std::min(label.held / width_, kMost))];
    if (known.choice < 0 || label.cost < known.cost) {
      known = label;
    }
  }

  std::vector<Label> take() const {
    std::vector<Label> list;
    for (const Label& label : best_) {
      if (label.choice >= 0 && (list.empty() || label.cost < list.back().cost)) {
        list.push_back(label);
      }
    }
    return list;
  }

 private:
  static constexpr int64_t kMost = 500;

  int64_t width_;
  std::vector<Label> best_;
};

}  // namespace penstock::plan
