#include "penstock/plan/stage_rotor.h"

#include <algorithm>
#include <tuple>

#include "penstock/base/error.h"

namespace penstock::plan {

namespace {

constexpr size_t kMostLayers = 250;  // the work goes with the cube
constexpr int64_t kAmple = int64_t{1} << 60;
constexpr int64_t kMostLevels = 32;  // of free bytes that choices are looked for at
constexpr size_t kMostPerLevel = 32;

size_t most_points(int32_t layers) {
  const double length = layers;
  return static_cast<size_t>(std::clamp(2e7 / (length * length * length), 48.0, 512.0));
}

// Whether another is no worse in all that counts.
bool is_beaten(const StageUse& one, const StageUse& by) {
  return by.held <= one.held && by.forward_peak <= one.forward_peak &&
         by.backward_peak <= one.backward_peak && by.seconds() <= one.seconds() &&
         by.seconds() - by.lead_s <= one.seconds() - one.lead_s;
}

}  // namespace

StageRotor::StageRotor(const CostTable& table,
                       const std::vector<int32_t>& cuts,
                       int32_t stage,
                       bool splits)
    : table_(table),
      cuts_(cuts),
      stage_(stage),
      first_(cuts[static_cast<size_t>(stage)]),
      end_(cuts[static_cast<size_t>(stage) + 1]),
      is_last_(end_ == static_cast<int32_t>(table.layers.size())),
      splits_(splits),
      needs_(table),
      most_points_(most_points(end_ - first_)) {
  const size_t layers = static_cast<size_t>(end_ - first_);
  if (layers > kMostLayers) {
    throw ConfigError(cat("rotor plans stages of up to ",
                          kMostLayers,
                          " layers, and stage ",
                          stage,
                          " has ",
                          layers,
                          "; use more ranks, or recompute = \"none\""));
  }
  for (const Lead lead : {Lead::Counts, Lead::IsFree}) {
    std::vector<StepFunction>& table_of_lead = segments_[static_cast<size_t>(lead)];
    table_of_lead.resize(layers * layers);
    for (int32_t length = 0; length < end_ - first_; ++length) {
      for (int32_t i = first_; i + length < end_; ++i) {
        const size_t row = static_cast<size_t>(i - first_);
        table_of_lead[row * layers + row + static_cast<size_t>(length)] =
            solve_segment(i, i + length, lead);
      }
    }
  }
}

const StepFunction& StageRotor::segment(int32_t i, int32_t l, Lead lead) const {
  const size_t layers = static_cast<size_t>(end_ - first_);
  return segments_[static_cast<size_t>(lead)]
                  [static_cast<size_t>(i - first_) * layers + static_cast<size_t>(l - first_)];
}

// Of keeping layer i when layers i .. l are run in the backward phase, above the layer's fastest.
double StageRotor::keep_seconds(int32_t i, int32_t l, size_t mode, Lead lead) const {
  const ModeNeed& need = needs_.mode(i)[mode];
  const double overhead = i == l ? need.last_overhead : need.overhead;
  if (lead == Lead::Counts) {
    return overhead;
  }
  const SaveModeCost& keep = table_.layers[static_cast<size_t>(i)].modes[mode];
  return overhead - (i == l && !keep.needs_output ? keep.recompute_s : keep.forward_s);
}

// What the input gradients of the layers after l leave for the weight gradients.
int64_t StageRotor::work_after(int32_t l) const {
  int64_t bytes = 0;
  for (int32_t k = l + 1; splits_ && k < end_; ++k) {
    bytes += table_.layers[static_cast<size_t>(k)].weight_work_bytes();
  }
  return bytes;
}

// Held while layers up to l have their turn in the backward phase.
int64_t StageRotor::gradient_bytes(int32_t l) const {
  return needs_.gradient(l + 1) + work_after(l);
}

int64_t StageRotor::backward_need(int32_t i, size_t mode) const {
  if (!splits_) {
    return needs_.mode(i)[mode].backward;
  }
  const LayerCost& layer = table_.layers[static_cast<size_t>(i)];
  const SaveModeCost& keep = layer.modes[mode];
  return layer.input_gradient() + layer.freed_by_backward(keep) +
         layer.input_gradient_extra_bytes(keep) + work_after(i);
}

// Guard of keeping layer i when layers i .. l are run in the backward phase.
int64_t StageRotor::keep_need(int32_t i, int32_t l, size_t mode) const {
  const ModeNeed& need = needs_.mode(i)[mode];
  const int64_t forward = i == l ? need.last_forward : need.forward;
  return std::max(gradient_bytes(l) + forward, backward_need(i, mode));
}

// What keeping layer i adds to what is held. The output of a stage is sent: it stays only where
// backward needs it, or the loss.
int64_t StageRotor::held_of(int32_t i, size_t mode) const {
  const ModeNeed& need = needs_.mode(i)[mode];
  const LayerCost& layer = table_.layers[static_cast<size_t>(i)];
  return is_sent(i + 1) ? layer.modes[mode].state_bytes(layer.output_bytes) : need.kept;
}

int64_t StageRotor::targets() const {
  return is_last_ ? table_.target_bytes : 0;
}

double StageRotor::sweep_seconds(int32_t i, int32_t j, Lead lead) const {
  return lead == Lead::Counts ? needs_.forward_between(i, j) : 0;
}

// The recurrence of rotor.cpp, with memory in bytes.
StepFunction StageRotor::solve_segment(int32_t i, int32_t l, Lead lead) const {
  std::vector<StepFunction::Point> candidates;
  for (size_t mode = 0; mode < needs_.mode(i).size(); ++mode) {
    const ModeNeed& need = needs_.mode(i)[mode];
    const int64_t begin = keep_need(i, l, mode);
    const double seconds = keep_seconds(i, l, mode, lead);
    if (i == l) {
      candidates.push_back({begin, seconds});
    } else {
      add_shifted(candidates, begin, seconds, segment(i + 1, l, lead), need.kept);
    }
  }
  SweepPeak sweep(needs_, i, gradient_bytes(l));
  for (int32_t j = i + 1; j <= l; ++j) {
    add_sum(candidates,
            sweep.until(j),
            sweep_seconds(i, j, lead),
            segment(j, l, lead),
            needs_.size(j),
            segment(i, j - 1),
            0);
  }
  return StepFunction::least_of(candidates, most_points_);
}

StageRotor::Spine StageRotor::solve_spine(const Free& free, Lead lead) const {
  Spine spine{free, lead, std::vector<StepFunction>(static_cast<size_t>(end_ - first_) + 1)};
  if (is_last_) {
    // Only the loss is left; the targets are held until then.
    std::vector<StepFunction::Point> loss{{std::max(targets(), needs_.loss - free.backward), 0}};
    spine.from.back() = StepFunction::least_of(loss, 1);
  }
  for (int32_t i = end_ - 1; i >= first_; --i) {
    spine.from[static_cast<size_t>(i - first_)] = solve_spine_from(i, spine);
  }
  return spine;
}

StepFunction StageRotor::solve_spine_from(int32_t i, const Spine& spine) const {
  const Free& free = spine.free;
  const auto rest = [&](int32_t j) -> const StepFunction& {
    return spine.from[static_cast<size_t>(j - first_)];
  };
  std::vector<StepFunction::Point> candidates;
  for (size_t mode = 0; mode < needs_.mode(i).size(); ++mode) {
    const ModeNeed& need = needs_.mode(i)[mode];
    const int64_t held = held_of(i, mode);
    const int64_t begin = std::max(
        {held, targets() + need.forward - free.forward, backward_need(i, mode) - free.backward});
    if (is_sent(i + 1)) {
      candidates.push_back({begin, need.overhead});
    } else {
      add_shifted(candidates, begin, need.overhead, rest(i + 1), held);
    }
  }
  SweepPeak sweep(needs_, i, targets());
  for (int32_t j = i + 1; j <= end_; ++j) {
    const int64_t begin = std::max<int64_t>(0, sweep.until(j) - free.forward);
    const double forward = needs_.forward_between(i, j);
    if (is_sent(j)) {
      add_shifted(candidates, begin, forward, segment(i, j - 1, spine.lead), -free.backward);
    } else {
      add_sum(
          candidates, begin, forward, rest(j), needs_.size(j), segment(i, j - 1), -free.backward);
    }
  }
  return StepFunction::least_of(candidates, most_points_);
}

void StageRotor::unfold_segment(
    int32_t i, int32_t l, Lead lead, int64_t bytes, Operations& out) const {
  double best = StepFunction::kInfinity;
  int32_t split = -1;
  size_t best_mode = 0;
  for (size_t mode = 0; mode < needs_.mode(i).size(); ++mode) {
    const ModeNeed& need = needs_.mode(i)[mode];
    if (bytes >= keep_need(i, l, mode)) {
      const double rest = i == l ? 0 : segment(i + 1, l, lead).at(bytes - need.kept);
      const double seconds = keep_seconds(i, l, mode, lead) + rest;
      if (seconds < best) {
        best = seconds;
        best_mode = mode;
      }
    }
  }
  SweepPeak sweep(needs_, i, gradient_bytes(l));
  for (int32_t j = i + 1; j <= l && bytes >= sweep.until(j); ++j) {
    const double seconds = sweep_seconds(i, j, lead) +
                           segment(j, l, lead).at(bytes - needs_.size(j)) +
                           segment(i, j - 1).at(bytes);
    if (seconds < best) {
      best = seconds;
      split = j;
    }
  }
  PENSTOCK_CHECK(best < StepFunction::kInfinity, "no operations for layers ", i, " to ", l);
  if (split < 0) {
    out.push_back({OperationKind::ForwardAll, i, static_cast<int32_t>(best_mode)});
    if (i < l) {
      unfold_segment(i + 1, l, lead, bytes - needs_.mode(i)[best_mode].kept, out);
    }
    out.push_back({OperationKind::Backward, i});
    return;
  }
  out.push_back({OperationKind::ForwardKeepInput, i});
  for (int32_t k = i + 1; k < split; ++k) {
    out.push_back({OperationKind::ForwardDrop, k});
  }
  unfold_segment(split, l, lead, bytes - needs_.size(split), out);
  unfold_segment(i, split - 1, Lead::Counts, bytes, out);
}

// The last jump of a stage stores nothing, and is the first to come back.
bool StageRotor::is_sent(int32_t j) const {
  return j == end_ && !is_last_;
}

int64_t StageRotor::stored_bytes(int32_t j) const {
  return is_sent(j) ? 0 : needs_.size(j);
}

// What the forward does next at layer i, when `held` bytes may still be held.
StageRotor::SpineStep StageRotor::best_step(const Spine& spine, int32_t i, int64_t held) const {
  const auto rest = [&](int32_t j, int64_t bytes) {
    return is_sent(j) ? (bytes >= 0 ? 0 : StepFunction::kInfinity)
                      : spine.from[static_cast<size_t>(j - first_)].at(bytes);
  };
  const int64_t forward = held + spine.free.forward;
  const int64_t backward = held + spine.free.backward;
  double best = StepFunction::kInfinity;
  SpineStep step;
  for (size_t mode = 0; mode < needs_.mode(i).size(); ++mode) {
    const ModeNeed& need = needs_.mode(i)[mode];
    const double seconds = need.overhead + rest(i + 1, held - held_of(i, mode));
    if (forward >= targets() + need.forward && backward >= backward_need(i, mode) &&
        seconds < best) {
      best = seconds;
      step.mode = mode;
    }
  }
  SweepPeak sweep(needs_, i, targets());
  for (int32_t j = i + 1; j <= end_ && forward >= sweep.until(j); ++j) {
    const Lead lead = is_sent(j) ? spine.lead : Lead::Counts;
    const double seconds = needs_.forward_between(i, j) + rest(j, held - stored_bytes(j)) +
                           segment(i, j - 1, lead).at(backward);
    if (seconds < best) {
      best = seconds;
      step.jump_to = j;
    }
  }
  PENSTOCK_CHECK(best < StepFunction::kInfinity, "no operations from layer ", i, " on");
  return step;
}

StageOperations StageRotor::unfold_spine(const Spine& spine, int64_t held) const {
  StageOperations operations;
  std::vector<Operations> ways_back;  // of the steps, from the first to the last
  for (int32_t i = first_; i < end_;) {
    const auto [mode, next] = best_step(spine, i, held);
    Operations& back = ways_back.emplace_back();
    if (next < 0) {
      operations.forward.push_back({OperationKind::ForwardAll, i, static_cast<int32_t>(mode)});
      back.push_back({OperationKind::Backward, i});
      held -= held_of(i, mode);
      ++i;
      continue;
    }
    operations.forward.push_back({OperationKind::ForwardKeepInput, i});
    for (int32_t k = i + 1; k < next; ++k) {
      operations.forward.push_back({OperationKind::ForwardDrop, k});
    }
    const Lead lead = is_sent(next) ? spine.lead : Lead::Counts;
    unfold_segment(i, next - 1, lead, held + spine.free.backward, back);
    held -= stored_bytes(next);
    i = next;
  }
  if (is_last_) {
    operations.backward.push_back({OperationKind::Loss, end_});
  }
  for (auto part = ways_back.rbegin(); part != ways_back.rend(); ++part) {
    operations.backward.insert(operations.backward.end(), part->begin(), part->end());
  }
  return operations;
}

StageChoice StageRotor::measured(StageOperations operations) const {
  const StageUse use = use_of(table_, cuts_, stage_, operations, splits_);
  return {std::move(operations), use};
}

// Carried elements count as if all were there all the time. One that the stage makes is there more
// than once where it is recomputed while others still have the first: it was sent, or weight
// gradients wait for it.
int64_t StageRotor::most_carried_bytes() const {
  int64_t bytes = 0;
  for (const CarriedCost& one : table_.carried) {
    const int32_t end = is_last_ ? end_ + 1 : end_;
    if (!one.is_touched_by(first_, end)) {
      continue;
    }
    const std::vector<int32_t>& readers = one.element.readers;
    int64_t lives = 1;
    if (one.element.born >= first_) {
      const auto here = std::lower_bound(readers.begin(), readers.end(), end) - readers.begin();
      lives += (readers.back() >= end ? 1 : 0) + (splits_ ? here : 0);
    }
    bytes += lives * one.bytes + one.gradient_bytes;
  }
  return bytes;
}

std::optional<StageChoice> StageRotor::fastest(const StageRoom& room) const {
  const Free free{room.forward - room.held, room.backward - room.held};
  const Spine spine = solve_spine(free, Lead::Counts);
  const int64_t held = room.held - needs_.size(first_) - most_carried_bytes();
  if (spine.from.front().at(held) == StepFunction::kInfinity) {
    return std::nullopt;
  }
  return measured(unfold_spine(spine, held));
}

// Levels from nothing to what the fastest way back from the input alone needs.
std::vector<StageRotor::Free> StageRotor::worthwhile_free() const {
  const int64_t unit = common_divisor(needs_);
  const int64_t most =
      std::max(segment(first_, end_ - 1).points().back().bytes, is_last_ ? needs_.loss : 0);
  const int64_t levels = std::min(most / unit + 1, kMostLevels);
  std::vector<Free> all;
  for (int64_t level = 0; level <= levels; ++level) {
    const int64_t bytes = most / unit * level / levels * unit;
    for (const int64_t forward : {int64_t{0}, bytes, kAmple}) {
      all.push_back({forward, bytes});
    }
  }
  return all;
}

std::vector<StageChoice> StageRotor::choices() const {
  std::vector<StageChoice> all;
  std::vector<Lead> leads{Lead::Counts};
  if (!is_last_) {  // the last stage makes its gradient itself
    leads.push_back(Lead::IsFree);
  }
  for (const Free& free : worthwhile_free()) {
    for (const Lead lead : leads) {
      const Spine spine = solve_spine(free, lead);
      std::vector<StepFunction::Point> points = spine.from.front().points();
      const StepFunction few = StepFunction::least_of(points, kMostPerLevel);
      for (const StepFunction::Point& point : few.points()) {
        all.push_back(measured(unfold_spine(spine, point.bytes)));
      }
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const StageChoice& a, const StageChoice& b) {
    return std::tuple(a.use.seconds(), a.use.held, a.use.backward_peak, a.use.forward_peak) <
           std::tuple(b.use.seconds(), b.use.held, b.use.backward_peak, b.use.forward_peak);
  });
  std::vector<StageChoice> best;
  for (StageChoice& one : all) {
    if (std::none_of(best.begin(), best.end(), [&](const StageChoice& other) {
          return is_beaten(one.use, other.use);
        })) {
      best.push_back(std::move(one));
    }
  }
  return best;
}

}  // namespace penstock::plan
