#include "penstock/plan/rotor.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <thread>

#include "penstock/base/cpu_clones.h"
#include "penstock/base/error.h"
#include "penstock/plan/rotor_least.h"

namespace penstock::plan {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kMostLayers = 1000;  // the tables go with the square, their work with the cube

// Seconds above the fastest for layers i .. l as a function of memory slots: infinite below
// `first`, `values` from there, the last of them for ever after. Never rises.
struct Row {
  int64_t first = 0;
  std::vector<float> values;

  int64_t end() const { return first + static_cast<int64_t>(values.size()); }
  float last() const { return values.back(); }
  float at(int64_t slot) const {
    return slot < first ? kInfinity
                        : values[static_cast<size_t>(std::min(slot, end() - 1) - first)];
  }
};

// best[m] = min(best[m], base + left(m) + right(m - shift)) for m in [begin, end).
PENSTOCK_CPU_CLONES
void offer_split(float* __restrict best,
                 int64_t begin,
                 int64_t end,
                 float base,
                 const Row& left,
                 const Row& right,
                 int64_t shift) {
  const int64_t left_flat = std::clamp(left.end() - 1, begin, end);
  const int64_t right_flat = std::clamp(right.end() - 1 + shift, begin, end);
  const int64_t both = std::min(left_flat, right_flat);
  const float* left_values = left.values.data() - left.first;
  const float* right_values = right.values.data() - right.first - shift;
  for (int64_t m = begin; m < both; ++m) {
    best[m] = std::min(best[m], base + left_values[m] + right_values[m]);
  }
  const float with_left = base + left.last();
  for (int64_t m = both; m < right_flat; ++m) {
    best[m] = std::min(best[m], with_left + right_values[m]);
  }
  const float with_right = base + right.last();
  for (int64_t m = both; m < left_flat; ++m) {
    best[m] = std::min(best[m], with_right + left_values[m]);
  }
  const float flat = base + left.last() + right.last();
  for (int64_t m = std::max(left_flat, right_flat); m < end; ++m) {
    best[m] = std::min(best[m], flat);
  }
}

class RotorTable {
 public:
  RotorTable(const Needs& needs,
             const LeastTable& least,
             const WholeTable& whole,
             int64_t slots,
             int64_t slot_bytes)
      : needs_(needs),
        least_(least),
        whole_(whole),
        slots_(slots),
        slot_bytes_(slot_bytes),
        last_(needs.layers) {
    const size_t width = static_cast<size_t>(last_) + 1;
    rows_.resize(width * (width + 1) / 2);
  }

  void solve(int threads) {
    // Segments of one length do not depend on each other.
    for (int32_t length = 0; length <= last_; ++length) {
      const int32_t count = last_ - length + 1;
      const bool is_small = static_cast<int64_t>(count) * (length + 1) * slots_ < 200'000;
      run_on_threads(is_small ? 1 : threads, count, [&](int32_t i, std::vector<float>& scratch) {
        fill(i, i + length, scratch);
      });
    }
  }

  // The bytes up to `limit` at which the whole chain becomes faster: all of them, or as many as there is
  // time to unfold. Which ones does not depend on the limit.
  std::vector<int64_t> steps(int64_t limit) const {
    const Row& whole = row(0, last_);
    std::vector<int64_t> bytes;
    for (int64_t slot = whole.first; slot < whole.end(); ++slot) {
      if (slot == whole.first || whole.at(slot) < whole.at(slot - 1)) {
        bytes.push_back(slot * slot_bytes_);
      }
    }
    const int64_t square = int64_t{last_ + 1} * (last_ + 1);
    const int64_t most = std::max<int64_t>(64, 20'000'000 / square);
    const size_t stride = static_cast<size_t>((std::ssize(bytes) + most - 1) / most);
    std::vector<int64_t> some;
    for (size_t i = 0; i < bytes.size() && bytes[i] <= limit; i += stride) {
      some.push_back(bytes[i]);
    }
    return some;
  }

  // The schedule for layers i .. l within `bytes`. The bytes left over are exact at every turn, so
  // that rounding does not add up along the way.
  void unfold(int32_t i, int32_t l, int64_t bytes, Operations& out) const {
    PENSTOCK_CHECK(bytes >= least_.at(i, l).bytes, "no schedule for layers ", i, " to ", l);
    if (i == last_) {
      out.push_back({OperationKind::Loss, last_});
      return;
    }
    const Choice choice = best_choice(i, l, bytes);
    if (choice.split < 0) {
      const ModeNeed& need = needs_.mode(i)[static_cast<size_t>(choice.mode)];
      out.push_back({OperationKind::ForwardAll, i, choice.mode});
      if (i < l) {
        unfold(i + 1, l, bytes - need.kept, out);
      }
      out.push_back({OperationKind::Backward, i});
      return;
    }
    out.push_back({OperationKind::ForwardKeepInput, i});
    for (int32_t k = i + 1; k < choice.split; ++k) {
      out.push_back({OperationKind::ForwardDrop, k});
    }
    unfold(choice.split, l, bytes - needs_.size(choice.split), out);
    unfold(i, choice.split - 1, bytes, out);
  }

 private:
  struct Choice {
    double overhead = std::numeric_limits<double>::infinity();
    int32_t split = -1;  // -1: keep layer i, in save mode `mode`
    int32_t mode = 0;
  };

  // Calls work(i, scratch) for i in 0 .. count-1, over several threads. What one throws is thrown
  // here when all have ended.
  template <typename Work>
  void run_on_threads(int threads, int32_t count, const Work& work) const {
    std::atomic<int32_t> next{0};
    std::vector<std::exception_ptr> errors(static_cast<size_t>(threads));
    const auto run = [&](size_t thread) {
      try {
        std::vector<float> scratch(static_cast<size_t>(slots_) + 1);
        for (int32_t i = next++; i < count; i = next++) {
          work(i, scratch);
        }
      } catch (...) {
        errors[thread] = std::current_exception();
      }
    };
    {
      std::vector<std::jthread> helpers;
      helpers.reserve(errors.size());
      for (size_t thread = 1; thread < errors.size(); ++thread) {
        helpers.emplace_back(run, thread);
      }
      run(0);
    }
    for (const std::exception_ptr& error : errors) {
      if (error) {
        std::rethrow_exception(error);
      }
    }
  }

  int64_t slots_for(int64_t bytes) const { return (bytes + slot_bytes_ - 1) / slot_bytes_; }
  const Row& row(int32_t i, int32_t l) const { return rows_[pair_index(i, l, last_)]; }

  double overhead_within(int32_t i, int32_t l, int64_t bytes) const {
    const Least& least = least_.at(i, l);
    if (bytes < least.bytes) {
      return std::numeric_limits<double>::infinity();
    }
    double best = std::min<double>(row(i, l).at(bytes / slot_bytes_), least.overhead);
    if (bytes >= whole_.at(i, l)) {
      best = std::min(best, 0.0);
    }
    // A layer whose backward comes next may leave its output out, and so be faster than one that keeps.
    for (size_t k = 0; i == l && i < last_ && k < needs_.mode(i).size(); ++k) {
      const ModeNeed& need = needs_.mode(i)[k];
      best = bytes >= needs_.keeping(i, l, need) ? std::min(best, need.last_overhead) : best;
    }
    return best;
  }

  Choice best_choice(int32_t i, int32_t l, int64_t bytes) const {
    Choice best;
    const auto offer = [&](double overhead, int32_t split, int32_t mode) {
      if (overhead < best.overhead) {
        best = {overhead, split, mode};
      }
    };
    const auto& modes = needs_.mode(i);
    for (size_t k = 0; k < modes.size(); ++k) {
      if (bytes >= needs_.keeping(i, l, modes[k])) {
        const double rest =
            i == l ? modes[k].last_overhead
                   : modes[k].overhead + overhead_within(i + 1, l, bytes - modes[k].kept);
        offer(rest, -1, static_cast<int32_t>(k));
      }
    }
    SweepPeak sweep(needs_, i, needs_.gradient(l + 1));
    for (int32_t j = i + 1; j <= l && bytes >= sweep.until(j); ++j) {
      offer(needs_.forward_between(i, j) + overhead_within(j, l, bytes - needs_.size(j)) +
                overhead_within(i, j - 1, bytes),
            j,
            0);
    }
    return best;
  }

  // The recurrence of docs/rotor.md for one segment, at every number of slots at once.
  void fill(int32_t i, int32_t l, std::vector<float>& scratch) {
    const Least& least = least_.at(i, l);
    Row& result = rows_[pair_index(i, l, last_)];
    const int64_t first = least.bytes == kNoSchedule ? slots_ + 1 : slots_for(least.bytes);
    result.first = first;
    if (first > slots_) {
      result.values = {kInfinity};
      return;
    }
    float* best = scratch.data();
    std::fill(best + first, best + slots_ + 1, static_cast<float>(least.overhead));
    const int64_t whole = whole_.at(i, l);
    const int64_t kept = whole == kNoSchedule ? slots_ + 1 : slots_for(whole);
    for (int64_t slot = std::max(first, kept); slot <= slots_; ++slot) {
      best[slot] = std::min(best[slot], 0.0F);
    }
    if (i < last_) {
      offer_keeping(i, l, first, best);
      offer_splits(i, l, first, best);
    }
    const float lowest = best[slots_];
    int64_t flat = slots_;
    while (flat > first && best[flat - 1] == lowest) {
      --flat;
    }
    result.values.assign(best + first, best + flat + 1);
  }

  void offer_keeping(int32_t i, int32_t l, int64_t first, float* best) const {
    static const Row kNothingLeft{0, {0}};
    for (const ModeNeed& need : needs_.mode(i)) {
      const Row& rest = i == l ? kNothingLeft : row(i + 1, l);
      const int64_t shift = i == l ? 0 : slots_for(need.kept);
      const int64_t begin =
          std::max({first, slots_for(needs_.keeping(i, l, need)), rest.first + shift});
      const double overhead = i == l ? need.last_overhead : need.overhead;
      if (begin <= slots_) {
        offer_split(
            best, begin, slots_ + 1, static_cast<float>(overhead), kNothingLeft, rest, shift);
      }
    }
  }

  void offer_splits(int32_t i, int32_t l, int64_t first, float* best) const {
    SweepPeak sweep(needs_, i, needs_.gradient(l + 1));
    for (int32_t j = i + 1; j <= l; ++j) {
      const int64_t need = slots_for(sweep.until(j));
      if (need > slots_) {
        return;  // sweeps further on need at least as much
      }
      const Row& right = row(j, l);
      const Row& left = row(i, j - 1);
      const int64_t shift = slots_for(needs_.size(j));
      const float base = static_cast<float>(needs_.forward_between(i, j));
      const float bound = base + left.last() + right.last();
      const int64_t begin = std::max({first, need, right.first + shift, left.first});
      // Where something as good as this split can ever be is known already, there is nothing to do.
      const int64_t end =
          std::partition_point(
              best + first, best + slots_ + 1, [&](float known) { return known > bound; }) -
          best;
      if (begin < end) {
        offer_split(best, begin, end, base, left, right, shift);
      }
    }
  }

  const Needs& needs_;
  const LeastTable& least_;
  const WholeTable& whole_;
  int64_t slots_, slot_bytes_;
  int32_t last_;
  std::vector<Row> rows_;
};

// No schedule holds more at any moment: for tables in which keeping is not the fastest.
int64_t most_bytes(const Needs& needs) {
  int64_t held = needs.loss, most = 0;
  for (int32_t i = 0; i < needs.layers; ++i) {
    int64_t kept = 0;
    for (const ModeNeed& need : needs.mode(i)) {
      kept = std::max(kept, need.kept);
      most = std::max({most, needs.keeping(i, i, need), needs.keeping(i, needs.layers, need)});
    }
    held += kept + needs.size(i);
    most = std::max(most, needs.gradient(i + 1) + needs.sweep[static_cast<size_t>(i)]);
  }
  return held + most;
}

struct Slots {
  int64_t count = 1;
  int64_t bytes = 1;  // each
  bool is_exact = false;
};

Slots choose_slots(const Needs& needs, int64_t bytes, int64_t wanted) {
  const double length = static_cast<double>(needs.layers + 1);
  const double work = length * length * length / 6;  // sums per slot
  const double rows = length * length / 2;
  const auto within = [&](double most_work, double most_values) {
    return static_cast<int64_t>(std::min(most_work / work, most_values / rows));
  };
  const int64_t divisor = common_divisor(needs);
  const int64_t exact = bytes / divisor;
  // At least a thousand, unless the tables would take more than a gigabyte.
  const int64_t least = std::clamp<int64_t>(within(1e12, 2.5e8), 10, 1000);
  const int64_t affordable = wanted > 0 ? wanted : std::max(least, within(4e9, 6.4e7));
  if (exact <= affordable) {
    return {exact, divisor, /*is_exact=*/true};
  }
  const int64_t count =
      wanted > 0 ? wanted : std::clamp<int64_t>(within(1.5e9, 6.4e7), least, 20'000);
  const int64_t slot = (bytes + count - 1) / count;
  return {bytes / slot, slot};  // not beyond the limit
}

// What does not depend on the limit, so that more memory is never slower: a few ranges of memory, each
// with levels of its own, and of each the schedules for all bytes at which its chain becomes faster. The
// answer for a limit is the fastest of those that fit.
class Ranges {
 public:
  Ranges(const Needs& needs, const LeastTable& least, const WholeTable& whole)
      : needs_(needs), least_(least), whole_(whole) {
    int64_t most = is_strange() ? most_bytes(needs) : whole.at(0, needs.layers);
    for (; tops_.empty() || (tops_.size() < kMost && most >= least.at(0, needs.layers).bytes);
         most /= kRatio) {
      tops_.push_back(std::max(most, least.at(0, needs.layers).bytes));
    }
  }

  // What keeping every layer in its first save mode needs: not always the fastest, but then the rounding
  // of sizes must not cost it either.
  int64_t first_modes_bytes() const {
    int64_t bytes = needs_.loss;
    for (int32_t i = needs_.layers - 1; i >= 0; --i) {
      const ModeNeed& need = needs_.mode(i).front();
      bytes = std::max(needs_.keeping(i, needs_.layers, need), need.kept + bytes);
    }
    return bytes;
  }

  Operations fastest(const CostTable& table,
                     int64_t bytes,
                     const RotorOptions& options,
                     RotorAnswer& answer) const {
    Operations best;
    double best_seconds = std::numeric_limits<double>::infinity();
    const auto offer = [&](const RotorTable& rotor, int64_t within) {
      Operations operations;
      rotor.unfold(0, needs_.layers, within, operations);
      const double seconds = seconds_of(table, operations);
      if (seconds < best_seconds) {
        best_seconds = seconds;
        best = std::move(operations);
      }
    };
    if (bytes >= first_modes_bytes()) {
      best = keep_everything(table);
      best_seconds = seconds_of(table, best);
    }
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    const int threads = options.threads > 0 ? options.threads : static_cast<int>(cores);
    // With all that is useful there is nothing to divide into levels.
    const bool is_whole = !is_strange() && bytes >= tops_.front();
    for (size_t range = 0; range < tops_.size(); ++range) {
      const bool is_above = range + 1 < tops_.size() && tops_[range + 1] >= bytes;
      if (is_above) {
        continue;
      }
      const Slots slots = choose_slots(
          needs_, std::max<int64_t>(1, tops_[range]), is_whole ? int64_t{1} : options.slots);
      RotorTable rotor(needs_, least_, whole_, slots.count, slots.bytes);
      rotor.solve(threads);
      if (answer.slots == 0) {
        answer.slots = slots.count;
        answer.slot_bytes = slots.bytes;
      }
      if (is_whole) {
        offer(rotor, tops_.front());
        break;
      }
      for (const int64_t step : rotor.steps(bytes)) {
        offer(rotor, step);
      }
      offer(rotor, least_.at(0, needs_.layers).bytes);
      if (slots.is_exact) {
        break;  // smaller ranges tell no more apart
      }
    }
    return best;
  }

 private:
  bool is_strange() const { return whole_.at(0, needs_.layers) == kNoSchedule; }

  static constexpr int64_t kRatio = 4;
  static constexpr size_t kMost = 2;

  const Needs& needs_;
  const LeastTable& least_;
  const WholeTable& whole_;
  std::vector<int64_t> tops_;  // the ranges' ends, falling
};

}  // namespace

RotorAnswer solve_rotor(const CostTable& table, int64_t limit_bytes, const RotorOptions& options) {
  PENSTOCK_CHECK(!table.layers.empty(), "a cost table without layers");
  if (table.layers.size() > kMostLayers) {
    throw ConfigError(cat("rotor plans chains of up to ",
                          kMostLayers,
                          " layers, and this one has ",
                          table.layers.size(),
                          "; try recompute = \"sqrt\""));
  }
  const Needs needs(table);
  const LeastTable least(needs);
  const WholeTable whole(needs);
  RotorAnswer answer;
  answer.least_bytes = table.input_bytes() + least.at(0, needs.layers).bytes;
  answer.is_feasible = limit_bytes >= answer.least_bytes;
  const int64_t bytes = std::max(limit_bytes, answer.least_bytes) - table.input_bytes();
  answer.operations = Ranges(needs, least, whole).fastest(table, bytes, options, answer);
  answer.seconds = seconds_of(table, answer.operations);
  return answer;
}

}  // namespace penstock::plan
