#include "penstock/train/step_records.h"

#include <algorithm>

namespace penstock::train {

namespace {

constexpr size_t kKept = 9;

}  // namespace

void StepRecords::add(const program::Timeline& step, int64_t updates) {
  seconds_.push_back(step.seconds / static_cast<double>(updates));
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
  if (seconds_.empty()) {
    return 0;
  }
  std::vector<double> sorted(seconds_.begin() + (seconds_.size() > 1 ? 1 : 0), seconds_.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

const program::Timeline* StepRecords::median() const {
  if (last_.empty()) {
    return nullptr;
  }
  std::vector<const program::Timeline*> sorted;
  for (const program::Timeline& step : last_) {
    sorted.push_back(&step);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return a->seconds < b->seconds;
  });
  return sorted[sorted.size() / 2];
}

}  // namespace penstock::train
