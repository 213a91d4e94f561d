#include "penstock/plan/cuts.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <tuple>

#include "penstock/base/error.h"
#include "penstock/plan/rotor_least.h"

namespace penstock::plan {

namespace {

int32_t layer_count(const CostTable& table) {
  return static_cast<int32_t>(table.layers.size());
}

size_t index(int32_t i) {
  return static_cast<size_t>(i);
}

// How good cuts are: less is better, the first difference decides.
struct Score {
  int64_t beyond = 0;  // bytes of the rank that exceeds its limit most
  double slowest_rank = 0;
  double slowest_stage = 0;
  double squares = 0;  // of the stages' seconds: the rest as even as it can be

  bool operator<(const Score& other) const {
    return std::tie(beyond, slowest_rank, slowest_stage, squares) <
           std::tie(other.beyond, other.slowest_rank, other.slowest_stage, other.squares);
  }
};

class Cutter {
 public:
  Cutter(const CostTable& table, int32_t stages, const CutRequest& request)
      : costs_(table, stages, request),
        layers_(layer_count(table)),
        stages_(stages),
        rank_of_(request.rank_of),
        limits_(request.memory == CutMemory::Ignored ? std::vector<int64_t>{}
                                                     : request.limit_bytes) {
    if (rank_of_.empty()) {
      for (int32_t stage = 0; stage < stages; ++stage) {
        rank_of_.push_back(stage);
      }
    }
    ranks_ = *std::max_element(rank_of_.begin(), rank_of_.end()) + 1;
  }

  std::vector<int32_t> run() const {
    const bool is_alone = ranks_ == stages_;
    // First how far the limits must be exceeded (not at all, as a rule), then the fastest with
    // that.
    const int64_t beyond = is_alone && !limits_.empty()
                               ? least_of<int64_t>([&](int32_t stage, int32_t first, int32_t end) {
                                   return beyond_limit(stage, costs_.of(stage, first, end).bytes);
                                 }).value
                               : 0;
    using Seconds = std::pair<double, double>;  // the slowest, and the sum of squares
    const auto seconds = [&](int32_t stage, int32_t first, int32_t end) {
      const StageCost cost = costs_.of(stage, first, end);
      const bool fits = !is_alone || beyond_limit(stage, cost.bytes) <= beyond;
      return fits ? Seconds{cost.seconds, cost.seconds * cost.seconds} : Seconds{kNever, kNever};
    };
    std::vector<int32_t> cuts = least_of<Seconds>(seconds).cuts;
    if (!is_alone) {
      improve(cuts);
    }
    return cuts;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  template <typename Value>
  struct Best {
    Value value;
    std::vector<int32_t> cuts;
  };

  static int64_t joined(int64_t a, int64_t b) { return std::max(a, b); }
  static std::pair<double, double> joined(const std::pair<double, double>& a,
                                          const std::pair<double, double>& b) {
    return {std::max(a.first, b.first), a.second + b.second};
  }

  // Over all cuts, the least of the stages' greatest.
  template <typename Value, typename Of>
  Best<Value> least_of(const Of& value_of) const {
    struct Cell {
      Value value{};
      int32_t begin = -1;  // of the stage's layers; -1: none
    };
    std::vector<std::vector<Cell>> best(index(stages_), std::vector<Cell>(index(layers_) + 1));
    for (int32_t stage = 0; stage < stages_; ++stage) {
      const int32_t after = stages_ - 1 - stage;  // a layer for each of them
      for (int32_t end = stage + 1; end <= layers_ - after; ++end) {
        Cell& cell = best[index(stage)][index(end)];
        for (int32_t begin = stage; begin < end; ++begin) {
          if (stage == 0 && begin > 0) {
            break;
          }
          Value value = value_of(stage, begin, end);
          if (stage > 0) {
            value = joined(best[index(stage) - 1][index(begin)].value, value);
          }
          if (cell.begin < 0 || value < cell.value) {
            cell = {value, begin};
          }
        }
      }
    }
    std::vector<int32_t> cuts{layers_};
    for (int32_t stage = stages_ - 1; stage >= 0; --stage) {
      cuts.insert(cuts.begin(), best[index(stage)][index(cuts.front())].begin);
    }
    return {best.back().back().value, cuts};
  }

  int64_t beyond_limit(int32_t stage, int64_t bytes) const {
    return limits_.empty() ? 0
                           : std::max<int64_t>(0, bytes - limits_[index(rank_of_[index(stage)])]);
  }

  Score score(const std::vector<int32_t>& cuts) const {
    Score score;
    std::vector<double> seconds(index(ranks_), 0);
    std::vector<int64_t> bytes(index(ranks_), 0);
    for (int32_t stage = 0; stage < stages_; ++stage) {
      const size_t rank = index(rank_of_[index(stage)]);
      const StageCost cost = costs_.of(stage, cuts[index(stage)], cuts[index(stage) + 1]);
      seconds[rank] += cost.seconds;
      bytes[rank] += cost.bytes;
      score.beyond = std::max(score.beyond, beyond_limit(stage, bytes[rank]));
      score.slowest_rank = std::max(score.slowest_rank, seconds[rank]);
      score.slowest_stage = std::max(score.slowest_stage, cost.seconds);
      score.squares += cost.seconds * cost.seconds;
    }
    return score;
  }

  // Moves cuts by up to two layers as long as that helps: one, two that are far apart, or all
  // between.
  void improve(std::vector<int32_t>& cuts) const {
    Score best = score(cuts);
    const auto is_better = [&](const std::vector<int32_t>& moved) {
      if (std::adjacent_find(moved.begin(), moved.end(), std::greater_equal<>()) != moved.end()) {
        return false;
      }
      const Score next = score(moved);
      if (next < best) {
        best = next;
        cuts = moved;
        return true;
      }
      return false;
    };
    const auto try_moves = [&](size_t one, size_t other) {
      for (const int32_t by : {-1, 1, -2, 2}) {
        std::vector<int32_t> all = cuts;
        for (size_t i = one; i <= other; ++i) {
          all[i] += by;
        }
        if (is_better(all)) {
          return true;
        }
        for (const int32_t by_other : {-1, 1, -2, 2}) {
          std::vector<int32_t> ends = cuts;
          ends[one] += by;
          ends[other] += by_other;
          if (is_better(ends)) {
            return true;
          }
        }
      }
      return false;
    };
    const auto step = [&] {
      for (size_t one = 1; one + 1 < cuts.size(); ++one) {
        for (size_t other = one; other + 1 < cuts.size(); ++other) {
          if (try_moves(one, other)) {
            return true;
          }
        }
      }
      return false;
    };
    while (step()) {
    }
  }

  const StageCosts costs_;
  const int32_t layers_, stages_;
  std::vector<int32_t> rank_of_;
  const std::vector<int64_t> limits_;
  int32_t ranks_ = 0;
};

}  // namespace

StageCosts::StageCosts(const CostTable& table, int32_t stages, const CutRequest& request)
    : table_(table),
      request_(request),
      stages_(stages),
      seconds_until_{0},
      resident_until_{0},
      kept_until_{0} {
  for (const LayerCost& layer : table.layers) {
    const SaveModeCost& keep = layer.modes.front();
    seconds_until_.push_back(seconds_until_.back() + keep.forward_s + keep.backward_s);
    resident_until_.push_back(resident_until_.back() + layer.parameter_bytes +
                              layer.gradient_bytes + layer.optimizer_bytes);
    kept_until_.push_back(kept_until_.back() + keep.saved_bytes);
  }
  if (request.memory == CutMemory::Recompute) {
    const size_t layers = table.layers.size();
    const LeastTable least((Needs(table)));
    running_.resize(layers * layers);
    for (size_t i = 0; i < layers; ++i) {
      for (size_t l = i; l < layers; ++l) {
        running_[i * layers + l] = least.at(static_cast<int32_t>(i), static_cast<int32_t>(l)).bytes;
      }
    }
  }
}

// Of a micro-batch that waits.
int64_t StageCosts::held_bytes(int32_t first, int32_t end) const {
  const bool is_last = end == layer_count(table_);
  const int64_t output = is_last ? table_.layers.back().output_bytes + table_.target_bytes : 0;
  const int64_t input = table_.layers[index(first)].input_bytes;
  if (request_.memory == CutMemory::Recompute) {
    return input + output;
  }
  const LayerCost& last = table_.layers[index(end) - 1];
  // What is sent on stays only where backward needs it.
  const int64_t sent = is_last || last.modes.front().needs_output ? 0 : last.output_bytes;
  return input + kept_until_[index(end)] - kept_until_[index(first)] - sent +
         (is_last ? table_.target_bytes : 0);
}

// What the phase that runs needs beside that, about.
int64_t StageCosts::running_bytes(int32_t first, int32_t end) const {
  const bool is_last = end == layer_count(table_);
  int64_t bytes = is_last ? table_.layers.back().output_gradient() + table_.loss.extra_bytes : 0;
  if (request_.memory == CutMemory::Recompute) {
    return std::max(bytes, running_[index(first) * table_.layers.size() + index(end) - 1]);
  }
  // The first backward finds everything kept.
  const LayerCost& last = table_.layers[index(end) - 1];
  return std::max(
      bytes,
      last.output_gradient() + last.input_gradient() + last.modes.front().backward_extra_bytes);
}

int64_t StageCosts::carried_bytes(int32_t first, int32_t end) const {
  int64_t bytes = 0;
  for (const CarriedCost& one : table_.carried) {
    bytes += is_touched(one, first, end) ? one.all_bytes() : 0;
  }
  return bytes;
}

// The last stage has the loss.
bool StageCosts::is_touched(const CarriedCost& one, int32_t first, int32_t end) const {
  return one.is_touched_by(first, end == layer_count(table_) ? end + 1 : end);
}

// Of what the stage sends on, and of the gradient that it sends back.
double StageCosts::message_seconds(const CarriedCost& one, int32_t first, int32_t end) const {
  if (one.element.born < 0 || !is_touched(one, first, end)) {
    return 0;
  }
  const bool goes_on = end < layer_count(table_) && one.element.readers.back() >= end;
  const bool goes_back = one.element.has_gradient && one.element.born < first;
  return (goes_on ? request_.link.seconds(one.bytes) : 0) +
         (goes_back ? request_.link.seconds(one.gradient_bytes) : 0);
}

StageCost StageCosts::of(int32_t stage, int32_t first, int32_t end) const {
  StageCost cost;
  cost.seconds = seconds_until_[index(end)] - seconds_until_[index(first)];
  cost.bytes = resident_until_[index(end)] - resident_until_[index(first)];
  const bool is_last = stage + 1 == stages_;
  if (is_last) {
    cost.seconds += table_.loss.seconds;
    cost.bytes +=
        table_.loss.parameter_bytes + table_.loss.gradient_bytes + table_.loss.optimizer_bytes;
  } else {
    cost.seconds += request_.link.seconds(table_.layers[index(end)].input_bytes);
  }
  for (const CarriedCost& one : table_.carried) {
    cost.seconds += message_seconds(one, first, end);
  }
  if (stage > 0) {
    cost.seconds += request_.link.seconds(table_.layers[index(first)].input_gradient());
  }
  if (request_.memory != CutMemory::Ignored) {
    const int64_t in_flight = request_.in_flight.empty() ? 1 : request_.in_flight[index(stage)];
    cost.bytes += in_flight * (held_bytes(first, end) + carried_bytes(first, end)) +
                  running_bytes(first, end);
  }
  return cost;
}

std::vector<int32_t> choose_cuts(const CostTable& table,
                                 int32_t stages,
                                 const CutRequest& request) {
  PENSTOCK_CHECK(stages >= 1, "a pipeline without stages");
  PENSTOCK_CHECK(request.rank_of.empty() || request.rank_of.size() == index(stages),
                 "ranks that do not belong to the stages");
  check_stages(stages, layer_count(table));
  return Cutter(table, stages, request).run();
}

void check_stages(int32_t stages, int32_t layers) {
  if (stages > layers) {
    throw ConfigError(cat(stages,
                          " stages for ",
                          layers,
                          layers == 1 ? " layer" : " layers",
                          "; a stage needs one layer at least: use fewer ranks or chunks"));
  }
}

std::vector<int32_t> check_cuts(const std::vector<int32_t>& given, int32_t layers, int32_t stages) {
  check_stages(stages, layers);
  std::vector<std::string> words;
  for (const int32_t cut : given) {
    words.push_back(cat(cut));
  }
  const std::string text = cat("plan.cuts = \"", join(words, ","), "\": ");
  if (static_cast<int32_t>(given.size()) != stages - 1) {
    throw ConfigError(cat(text,
                          stages,
                          stages == 1 ? " stage needs " : " stages need ",
                          stages - 1,
                          stages == 2 ? " cut" : " cuts",
                          ", the first layer of every stage but the first"));
  }
  std::vector<int32_t> cuts{0};
  for (const int32_t cut : given) {
    if (cut < 1 || cut >= layers) {
      throw ConfigError(cat(text, cut, " is not between 1 and ", layers - 1));
    }
    if (cut <= cuts.back()) {
      throw ConfigError(cat(text, cut, " comes after ", cuts.back(), "; cuts must rise"));
    }
    cuts.push_back(cut);
  }
  cuts.push_back(layers);
  return cuts;
}

}  // namespace penstock::plan
