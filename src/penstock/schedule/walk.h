// Inside of the folder: who waits for whom, once, for the check and for the clock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

// What a turn leaves for others: the output of a stage, or the gradient of its input.
struct Handover {
  bool is_gradient = false;
  int32_t stage = 0;
  int32_t micro_batch = 0;
};

std::optional<Handover> made_by(const Turn& turn);
std::optional<Handover> awaited_by(const Turn& turn, int32_t stages);

// A place for something about each handover: a flag, a time.
template <typename Value>
class HandoverTable {
 public:
  explicit HandoverTable(const Schedule& schedule)
      : stages_(schedule.rank_of.size()),
        micro_batches_(static_cast<size_t>(schedule.micro_batches)),
        values_(2 * stages_ * micro_batches_) {}

  Value& operator[](const Handover& at) {
    const size_t row = (at.is_gradient ? stages_ : 0) + static_cast<size_t>(at.stage);
    return values_[row * micro_batches_ + static_cast<size_t>(at.micro_batch)];
  }

 private:
  size_t stages_;
  size_t micro_batches_;
  std::vector<Value> values_;
};

// Visits the turns of each rank in order, and none before what it waits for. Returns how many turns
// each rank has come through: less than all where ranks wait for each other in a circle.
using Visit = std::function<void(size_t rank, size_t index)>;
std::vector<size_t> walk(const Schedule& schedule, const Visit& visit);

}  // namespace penstock::schedule
