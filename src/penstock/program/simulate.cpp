#include "penstock/program/simulate.h"

#include <algorithm>
#include <optional>

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

// What ranks know of each other: when the k-th message of a channel was sent and received.
struct Message {
  double sent_from = kNotYet, sent = kNotYet, received = kNotYet;
  static constexpr double kNotYet = -1;
};
using Messages = std::map<Channel, std::vector<Message>>;

// What the replicas of a stage know of their k-th gather or reduce.
struct Meeting {
  int32_t arrived = 0;  // replicas that have come to it
  double start = 0;     // when the last of them came
  double seconds = 0;   // of the slowest
};

// The line between the replicas of one stage. It takes its gathers and reduces in order.
class ReplicaLine {
 public:
  explicit ReplicaLine(int32_t replicas) : replicas_(replicas) {}

  void arrive(size_t k, double seconds_from, double seconds) {
    meetings_.resize(std::max(meetings_.size(), k + 1));
    Meeting& meeting = meetings_[k];
    ++meeting.arrived;
    meeting.start = std::max(meeting.start, seconds_from);
    meeting.seconds = std::max(meeting.seconds, seconds);
  }

  // When the k-th starts and ends; nothing while a replica has not come to it.
  std::optional<Span> find_span(size_t k) {
    while (spans_.size() <= k) {
      const size_t next = spans_.size();
      if (next >= meetings_.size() || meetings_[next].arrived < replicas_) {
        return std::nullopt;
      }
      const double free_at = spans_.empty() ? 0 : spans_.back().end;
      const double start = std::max(free_at, meetings_[next].start);
      spans_.push_back({.start = start, .end = start + meetings_[next].seconds});
    }
    return spans_[k];
  }

 private:
  const int32_t replicas_;
  std::vector<Meeting> meetings_;
  std::vector<Span> spans_;  // of those that all have come to
};

// One rank, instruction by instruction, as far as what it knows of the others allows.
class RankRun {
 public:
  RankRun(const Program& program, int32_t number, Messages& messages, ReplicaLine& replicas)
      : rank_(program.ranks[static_cast<size_t>(number)]),
        number_(number),
        steps_together_(program.updates == 1),
        messages_(messages),
        replicas_(replicas),
        lives_(rank_),
        sends_of_(rank_.values.size()),
        made_in_(rank_.values.size(), kNone),
        read_in_(rank_.values.size(), kNone) {}

  bool is_done() const { return next_ == rank_.instructions.size(); }
  // Where it waits for the other ranks.
  bool is_at_step() const {
    return steps_together_ && !is_done() && rank_.instructions[next_].op == Op::Step;
  }
  double compute_free_at() { return free_at_[{}]; }

  // Runs what can run; whether anything did. A step runs only where `step_from` says when all ranks
  // have come to theirs.
  bool advance(std::optional<double> step_from) {
    const size_t before = next_;
    while (!is_done() && (!is_at_step() || step_from)) {
      lives_.begin_instruction(next_);
      if (!run(rank_.instructions[next_], step_from)) {
        break;
      }
      ++next_;
    }
    return next_ > before;
  }

  // When all ranks are done.
  RankTimeline finish() {
    size_t collectives = 0;
    for (Span& span : timeline_.spans) {
      const Instruction& instruction = rank_.instructions[static_cast<size_t>(span.instruction)];
      if (is_collective(instruction.op)) {
        const std::optional<Span> met = replicas_.find_span(collectives++);
        PENSTOCK_CHECK(met, "a gather or reduce that not all replicas have; verify comes first");
        span.start = met->start;
        span.end = met->end;
      }
      account(instruction, span);
    }
    draw_memory(changes_, rank_.resident_bytes() + rank_.bytes_of(rank_.given), timeline_);
    return std::move(timeline_);
  }

 private:
  struct Place {
    Channel channel;
    size_t index = 0;
  };
  Message& message(const Place& place) {
    std::vector<Message>& all = messages_[place.channel];
    all.resize(std::max(all.size(), place.index + 1));
    return all[place.index];
  }

  // False: a rank that this one waits for has not got there yet.
  bool run(const Instruction& instruction, std::optional<double> step_from) {
    if (!know_peers(instruction) || !know_replicas(instruction)) {
      return false;
    }
    double start =
        std::max(free_at_[instruction.resource], start_after_values(instruction, lives_));
    if (is_collective(instruction.op)) {
      start_collective(instruction, std::max(start, compute_free_at()));
      return true;
    }
    double end = start + instruction.seconds;
    if (instruction.op == Op::Step && step_from) {
      start = std::max(start, *step_from);
      end = start + instruction.seconds;
    } else if (instruction.op == Op::Receive) {
      // Its turn comes when the work listed before it is done; what has arrived by then is there.
      Message& incoming = message(place_of(instruction));
      const double turn = std::max(start, compute_free_at());
      start = std::max(turn, incoming.sent_from);
      end = std::max(turn, incoming.sent);
      incoming.received = end;
    } else if (instruction.op == Op::Send) {
      const Place place = place_of(instruction);
      Message& outgoing = message(place);
      outgoing.sent_from = start;
      outgoing.sent = end;
      sends_of_[static_cast<size_t>(instruction.reads[0])].push_back(place);
    }
    settle(instruction, start, end);
    return true;
  }

  // What it frees may be on its way to peers, and what it receives must have been sent. A send that
  // frees what it sends is not held up by itself.
  bool know_peers(const Instruction& instruction) {
    if (instruction.op == Op::Receive &&
        message({channel_of(rank_, number_, instruction), next_index(instruction)}).sent ==
            Message::kNotYet) {
      return false;
    }
    for (const ValueId id : instruction.frees) {
      for (const Place& place : sends_of_[static_cast<size_t>(id)]) {
        const double received = message(place).received;
        if (received == Message::kNotYet) {
          return false;
        }
        lives_.read(id, received);
      }
    }
    return true;
  }

  // Its turn comes when the work listed before it is done. When it runs is known later: the rank
  // goes on until it needs what the line brings or takes.
  void start_collective(const Instruction& instruction, double turn) {
    replicas_.arrive(collectives_, turn, instruction.seconds);
    for (const ValueId id : instruction.makes) {
      made_in_[static_cast<size_t>(id)] = static_cast<int64_t>(collectives_);
    }
    for (const ValueId id : instruction.reads) {
      read_in_[static_cast<size_t>(id)] = static_cast<int64_t>(collectives_);
    }
    ++collectives_;
    timeline_.spans.push_back(
        {.instruction = static_cast<int32_t>(next_)});  // finish() has the rest
  }

  // What it reads or frees may still be gathered or reduced.
  bool know_replicas(const Instruction& instruction) {
    for (const auto* list : {&instruction.reads, &instruction.frees}) {
      for (const ValueId id : *list) {
        int64_t& maker = made_in_[static_cast<size_t>(id)];
        if (maker != kNone) {
          const std::optional<Span> made = replicas_.find_span(static_cast<size_t>(maker));
          if (!made) {
            return false;
          }
          lives_.make(id, made->end);
          maker = kNone;
        }
      }
    }
    for (const ValueId id : instruction.frees) {
      if (const int64_t reader = read_in_[static_cast<size_t>(id)]; reader != kNone) {
        const std::optional<Span> read = replicas_.find_span(static_cast<size_t>(reader));
        if (!read) {
          return false;
        }
        lives_.read(id, read->end);
      }
    }
    return true;
  }

  size_t next_index(const Instruction& instruction) {
    return counts_[channel_of(rank_, number_, instruction)];
  }
  Place place_of(const Instruction& instruction) {
    const Channel channel = channel_of(rank_, number_, instruction);
    return {channel, counts_[channel]++};
  }

  void settle(const Instruction& instruction, double start, double end) {
    for (const ValueId id : instruction.reads) {
      lives_.read(id, end);
    }
    for (const ValueId id : instruction.makes) {
      lives_.make(id, end);
    }
    for (const ValueId id : instruction.frees) {
      lives_.free(id);
    }
    free_at_[instruction.resource] = end;
    timeline_.spans.push_back({static_cast<int32_t>(next_), start, end});
  }

  void account(const Instruction& instruction, const Span& span) {
    timeline_.busy_seconds[instruction.resource] += span.end - span.start;
    changes_.push_back({span.start, instruction.working_bytes, span.instruction, false});
    changes_.push_back({span.end,
                        rank_.bytes_of(instruction.makes) - rank_.bytes_of(instruction.frees) -
                            instruction.working_bytes,
                        span.instruction,
                        span.end > span.start});
  }

  static constexpr int64_t kNone = -1;

  const RankProgram& rank_;
  const int32_t number_;
  const bool steps_together_;
  Messages& messages_;
  ReplicaLine& replicas_;
  size_t next_ = 0;
  Lives lives_;
  std::map<Resource, double> free_at_;
  std::map<Channel, size_t> counts_;          // messages so far
  std::vector<std::vector<Place>> sends_of_;  // by value
  size_t collectives_ = 0;                    // started so far
  // By value: the gather or reduce that makes it, while it is not known when; and that reads it.
  std::vector<int64_t> made_in_, read_in_;
  std::vector<Change> changes_;
  RankTimeline timeline_;
};

// When all ranks have come to their step, or nothing.
std::optional<double> find_step_start(std::vector<RankRun>& runs) {
  double start = 0;
  for (RankRun& run : runs) {
    if (!run.is_at_step()) {
      return std::nullopt;
    }
    start = std::max(start, run.compute_free_at());
  }
  return start;
}

}  // namespace

double RankTimeline::compute_seconds() const {
  const auto compute = busy_seconds.find(Resource{});
  return compute == busy_seconds.end() ? 0 : compute->second;
}

Timeline simulate(const Program& program) {
  Messages messages;
  const auto num_ranks = static_cast<int32_t>(program.ranks.size());
  std::vector<ReplicaLine> lines(program.ranks.size(), ReplicaLine(program.replicas));  // by stage
  std::vector<RankRun> runs;
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    runs.emplace_back(program, rank, messages, lines[static_cast<size_t>(program.stage_of(rank))]);
  }
  const auto is_done = [](const RankRun& run) { return run.is_done(); };
  while (!std::all_of(runs.begin(), runs.end(), is_done)) {
    const std::optional<double> step_from = find_step_start(runs);
    bool has_moved = false;
    for (RankRun& run : runs) {
      has_moved = run.advance(step_from) || has_moved;
    }
    PENSTOCK_CHECK(has_moved, "ranks wait for each other; verify comes first");
  }
  Timeline timeline;
  for (RankRun& run : runs) {
    timeline.ranks.push_back(run.finish());
    for (const Span& span : timeline.ranks.back().spans) {
      timeline.seconds = std::max(timeline.seconds, span.end);
    }
  }
  return timeline;
}

}  // namespace penstock::program
