// Every sequence of operations that holds what it stores until its backward, for one stage of a
// short chain: the truth that the planners of stages and slots are held to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "penstock/plan/stage_rotor.h"

namespace penstock::test {

class AllStageOperations {
 public:
  AllStageOperations(const plan::CostTable& table, const std::vector<int32_t>& cuts, int32_t stage)
      : table_(table),
        first_(cuts[static_cast<size_t>(stage)]),
        end_(cuts[static_cast<size_t>(stage) + 1]) {
    grow(first_, {}, {});
  }

  const std::vector<plan::StageOperations>& list() const { return list_; }

 private:
  using Kind = plan::OperationKind;

  int32_t modes(int32_t i) const {
    return static_cast<int32_t>(table_.layers[static_cast<size_t>(i)].modes.size());
  }

  static plan::Operations joined(plan::Operations one, const plan::Operations& two) {
    one.insert(one.end(), two.begin(), two.end());
    return one;
  }

  static plan::Operations sweep(int32_t i, int32_t j) {
    plan::Operations operations{{Kind::ForwardKeepInput, i}};
    for (int32_t k = i + 1; k < j; ++k) {
      operations.push_back({Kind::ForwardDrop, k});
    }
    return operations;
  }

  // All ways to do layers i .. l in the backward phase, from x_i and the gradient of x_{l+1}.
  std::vector<plan::Operations> segments(int32_t i, int32_t l) const {
    std::vector<plan::Operations> all;
    const auto rests = i == l ? std::vector<plan::Operations>(1) : segments(i + 1, l);
    for (int32_t mode = 0; mode < modes(i); ++mode) {
      for (const plan::Operations& rest : rests) {
        all.push_back(joined(joined({{Kind::ForwardAll, i, mode}}, rest), {{Kind::Backward, i}}));
      }
    }
    for (int32_t j = i + 1; j <= l; ++j) {
      const auto lefts = segments(i, j - 1);
      for (const plan::Operations& right : segments(j, l)) {
        for (const plan::Operations& left : lefts) {
          all.push_back(joined(joined(sweep(i, j), right), left));
        }
      }
    }
    return all;
  }

  void grow(int32_t i, const plan::Operations& forward, const plan::Operations& backward) {
    if (i == end_) {
      plan::StageOperations one{forward, backward};
      if (end_ == static_cast<int32_t>(table_.layers.size())) {
        one.backward.insert(one.backward.begin(), {Kind::Loss, end_});
      }
      list_.push_back(std::move(one));
      return;
    }
    for (int32_t mode = 0; mode < modes(i); ++mode) {
      grow(i + 1,
           joined(forward, {{Kind::ForwardAll, i, mode}}),
           joined({{Kind::Backward, i}}, backward));
    }
    for (int32_t j = i + 1; j <= end_; ++j) {
      for (const plan::Operations& back : segments(i, j - 1)) {
        grow(j, joined(forward, sweep(i, j)), joined(back, backward));
      }
    }
  }

  const plan::CostTable& table_;
  const int32_t first_, end_;
  std::vector<plan::StageOperations> list_;
};

// Those that no other beats in bytes and in the seconds of every phase.
inline std::vector<plan::StageChoice> best_stage_choices(const plan::CostTable& table,
                                                         const std::vector<int32_t>& cuts,
                                                         int32_t stage,
                                                         bool splits) {
  std::vector<plan::StageChoice> best;
  const auto is_beaten = [](const plan::StageUse& one, const plan::StageUse& by) {
    return by.held <= one.held && by.forward_peak <= one.forward_peak &&
           by.backward_peak <= one.backward_peak && by.forward_s <= one.forward_s &&
           by.backward_s <= one.backward_s &&
           by.backward_s - by.lead_s <= one.backward_s - one.lead_s && by.weight_s <= one.weight_s;
  };
  const AllStageOperations all(table, cuts, stage);
  for (const plan::StageOperations& operations : all.list()) {
    const plan::StageUse use = plan::use_of(table, cuts, stage, operations, splits);
    if (std::any_of(best.begin(), best.end(), [&](const plan::StageChoice& other) {
          return is_beaten(use, other.use);
        })) {
      continue;
    }
    std::erase_if(best, [&](const plan::StageChoice& other) { return is_beaten(other.use, use); });
    best.push_back({operations, use});
  }
  return best;
}

}  // namespace penstock::test
