#include "penstock/train/step_records.h"

#include <algorithm>
#include <numeric>

namespace penstock::train {

namespace {

constexpr size_t kKept = 9;

}  // namespace

void StepRecords::add(const StepRecord& step, int64_t updates) {
  taken_.push_back({step.timeline.seconds / static_cast<double>(updates), updates});
  if (updates > most_updates_) {
    most_updates_ = updates;
    last_.clear();
  }
  if (updates == most_updates_) {
    last_.push_back(step);
  }
  if (last_.size() > kKept) {
    last_.pop_front();
  }
}

double StepRecords::median_seconds() const {
  std::vector<double> sorted;
  for (size_t i = 0; i < taken_.size(); ++i) {
    const bool warms_up = i == 0;
    if (taken_[i].updates == most_updates_ && !warms_up) {
      sorted.push_back(taken_[i].seconds);
    }
  }
  if (sorted.empty()) {
    return taken_.empty() ? 0 : taken_[0].seconds;
  }
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

std::optional<size_t> StepRecords::median() const {
  if (last_.empty()) {
    return std::nullopt;
  }
  std::vector<size_t> sorted(last_.size());
  std::iota(sorted.begin(), sorted.end(), size_t{0});
  std::sort(sorted.begin(), sorted.end(), [this](size_t a, size_t b) {
    return last_[a].timeline.seconds < last_[b].timeline.seconds;
  });
  return sorted[sorted.size() / 2];
}

}  // namespace penstock::train
