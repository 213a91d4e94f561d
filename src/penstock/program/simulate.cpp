#include "penstock/program/simulate.h"

#include <algorithm>

#include "penstock/base/error.h"

namespace penstock::program {

namespace {

struct Change {
  double seconds = 0;
  int64_t bytes = 0;  // signed
  int32_t instruction = -1;
  bool is_release = false;  // the end of an instruction that took time
};

// Memory over time from the changes of all instructions. At one moment ends come before starts:
// what one instruction frees is there for the next. Instructions that take no time begin and end in
// the order of the list.
void draw_memory(std::vector<Change>& changes, int64_t at_start, RankTimeline& timeline) {
  std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.is_release > b.is_release;
  });
  int64_t held = at_start;
  timeline.memory.push_back({0, held});
  timeline.peak_bytes = held;
  for (const Change& change : changes) {
    held += change.bytes;
    timeline.memory.push_back({change.seconds, held});
    if (held > timeline.peak_bytes) {
      timeline.peak_bytes = held;
      timeline.peak_instruction = change.instruction;
    }
  }
}

// When each value is there, and until when it may be used.
class Lives {
 public:
  explicit Lives(const RankProgram& rank)
      : ready_(rank.values.size(), kNotMade), read_until_(rank.values.size(), 0) {
    for (const ValueId id : rank.given) {
      make(id, 0);
    }
  }

  void begin_instruction(size_t index) { instruction_ = index; }

  double use(ValueId id) const {
    const double ready = ready_[static_cast<size_t>(id)];
    PENSTOCK_CHECK(ready >= 0,
                   "instruction ",
                   instruction_,
                   " uses a value that ",
                   ready == kNotMade ? "nothing has made" : "is gone",
                   "; verify comes first");
    return ready;
  }
  void make(ValueId id, double seconds) {
    PENSTOCK_CHECK(ready_[static_cast<size_t>(id)] == kNotMade,
                   "instruction ",
                   instruction_,
                   " makes a value again; verify comes first");
    ready_[static_cast<size_t>(id)] = seconds;
  }
  void free(ValueId id) {
    use(id);
    ready_[static_cast<size_t>(id)] = kFreed;
  }
  void read(ValueId id, double until) {
    double& last = read_until_[static_cast<size_t>(id)];
    last = std::max(last, until);
  }
  double read_until(ValueId id) const { return read_until_[static_cast<size_t>(id)]; }
  bool is_made(ValueId id) const { return ready_[static_cast<size_t>(id)] != kNotMade; }

 private:
  static constexpr double kNotMade = -1;
  static constexpr double kFreed = -2;
  size_t instruction_ = 0;
  std::vector<double> ready_;  // seconds, or one of the above
  std::vector<double> read_until_;
};

// All that an instruction reads or frees must be there, but for what it makes itself and frees; and
// nobody else may still read what it frees.
double start_after_values(const Instruction& instruction, const Lives& lives) {
  double start = 0;
  for (const ValueId id : instruction.reads) {
    start = std::max(start, lives.use(id));
  }
  for (const ValueId id : instruction.frees) {
    if (lives.is_made(id)) {
      start = std::max({start, lives.use(id), lives.read_until(id)});
    }
  }
  return start;
}

RankTimeline simulate_rank(const RankProgram& rank) {
  RankTimeline timeline;
  Lives lives(rank);
  std::map<Resource, double> free_at;
  std::vector<Change> changes;
  for (size_t i = 0; i < rank.instructions.size(); ++i) {
    const Instruction& instruction = rank.instructions[i];
    const int32_t number = static_cast<int32_t>(i);
    lives.begin_instruction(i);
    const double start =
        std::max(free_at[instruction.resource], start_after_values(instruction, lives));
    const double end = start + instruction.seconds;
    for (const ValueId id : instruction.reads) {
      lives.read(id, end);
    }
    for (const ValueId id : instruction.makes) {
      lives.make(id, end);
    }
    for (const ValueId id : instruction.frees) {
      lives.free(id);
    }
    free_at[instruction.resource] = end;
    timeline.busy_seconds[instruction.resource] += instruction.seconds;
    timeline.spans.push_back({number, start, end});
    changes.push_back({start, instruction.working_bytes, number, false});
    changes.push_back({end,
                       rank.bytes_of(instruction.makes) - rank.bytes_of(instruction.frees) -
                           instruction.working_bytes,
                       number,
                       end > start});
  }
  draw_memory(changes, rank.resident_bytes() + rank.bytes_of(rank.given), timeline);
  return timeline;
}

}  // namespace

Timeline simulate(const Program& program) {
  Timeline timeline;
  for (const RankProgram& rank : program.ranks) {
    timeline.ranks.push_back(simulate_rank(rank));
    for (const Span& span : timeline.ranks.back().spans) {
      timeline.seconds = std::max(timeline.seconds, span.end);
    }
  }
  return timeline;
}

}  // namespace penstock::program
