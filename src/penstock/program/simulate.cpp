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
    for (const auto* list : {&rank.persistent, &rank.given}) {
      for (const ValueId id : *list) {
        make(id, 0);
      }
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
  void change(ValueId id, double seconds) {
    use(id);
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

// All that an instruction reads, changes or frees must be there, but for what it makes itself and
// frees; and nobody else may still read what it changes or frees.
double start_after_values(const Instruction& instruction, const Lives& lives) {
  double start = 0;
  for (const ValueId id : instruction.reads) {
    start = std::max(start, lives.use(id));
  }
  for (const auto* list : {&instruction.sets, &instruction.updates, &instruction.frees}) {
    for (const ValueId id : *list) {
      if (lives.is_made(id)) {
        start = std::max({start, lives.use(id), lives.read_until(id)});
      }
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

// What the ranks of a group know of their k-th gather or reduce.
struct Meeting {
  int32_t arrived = 0;  // ranks that have come to it
  double start = 0;     // when the last of them came
  double seconds = 0;   // of the slowest
  bool is_on_line = false;
};

// The gathers and reduces of one group. Those on its line are taken in order.
class GroupMeetings {
 public:
  explicit GroupMeetings(int32_t size) : size_(size) {}

  void arrive(size_t k, double seconds_from, const Instruction& instruction) {
    meetings_.resize(std::max(meetings_.size(), k + 1));
    Meeting& meeting = meetings_[k];
    ++meeting.arrived;
    meeting.start = std::max(meeting.start, seconds_from);
    meeting.seconds = std::max(meeting.seconds, instruction.seconds);
    meeting.is_on_line = instruction.resource.kind == ResourceKind::Line;
  }

  // When the k-th starts and ends; nothing while a rank has not come to it.
  std::optional<Span> find_span(size_t k) {
    while (spans_.size() <= k) {
      const size_t next = spans_.size();
      if (next >= meetings_.size() || meetings_[next].arrived < size_) {
        return std::nullopt;
      }
      const Meeting& meeting = meetings_[next];
      const double start = std::max(meeting.is_on_line ? line_free_at_ : 0.0, meeting.start);
      spans_.push_back({.start = start, .end = start + meeting.seconds});
      line_free_at_ = meeting.is_on_line ? spans_.back().end : line_free_at_;
    }
    return spans_[k];
  }

 private:
  const int32_t size_;
  double line_free_at_ = 0;
  std::vector<Meeting> meetings_;
  std::vector<Span> spans_;  // of those that all have come to
};

// By group of the program and first rank.
class AllMeetings {
 public:
  explicit AllMeetings(const Program& program) : program_(program) {}

  GroupMeetings& of(int32_t group, int32_t rank) {
    PENSTOCK_CHECK(static_cast<size_t>(group) < program_.groups.size(),
                   "there is no group ",
                   group,
                   "; verify comes first");
    const comm::RankGroup& ranks = program_.groups[static_cast<size_t>(group)];
    const std::pair key{group, comm::colour(program_.mesh, ranks, rank)};
    auto found = meetings_.find(key);
    if (found == meetings_.end()) {
      const auto size = comm::members(program_.mesh, ranks, rank).size();
      found = meetings_.emplace(key, GroupMeetings(static_cast<int32_t>(size))).first;
    }
    return found->second;
  }

 private:
  const Program& program_;
  std::map<std::pair<int32_t, int32_t>, GroupMeetings> meetings_;
};

// One rank, instruction by instruction, as far as what it knows of the others allows.
class RankRun {
 public:
  RankRun(const Program& program, int32_t number, Messages& messages, AllMeetings& meetings)
      : rank_(program.ranks[static_cast<size_t>(number)]),
        number_(number),
        messages_(messages),
        meetings_(meetings),
        lives_(rank_),
        sends_of_(rank_.values.size()),
        changed_by_(rank_.values.size()),
        used_by_(rank_.values.size()) {}

  bool is_done() const { return next_ == rank_.instructions.size(); }

  // Runs what can run; whether anything did.
  bool advance() {
    const size_t before = next_;
    while (!is_done()) {
      lives_.begin_instruction(next_);
      if (!run(rank_.instructions[next_])) {
        break;
      }
      ++next_;
    }
    return next_ > before;
  }

  // When all ranks are done.
  RankTimeline finish() {
    std::map<int32_t, size_t> counts;  // gathers and reduces so far, by group
    for (Span& span : timeline_.spans) {
      const Instruction& instruction = rank_.instructions[static_cast<size_t>(span.instruction)];
      if (is_collective(instruction.op)) {
        const size_t k = counts[instruction.group]++;
        const std::optional<Span> met = meetings_.of(instruction.group, number_).find_span(k);
        PENSTOCK_CHECK(met, "a gather or reduce that not all ranks have; verify comes first");
        span.start = met->start;
        span.end = met->end;
      }
      account(instruction, span);
    }
    draw_memory(changes_, rank_.persistent_bytes() + rank_.bytes_of(rank_.given), timeline_);
    return std::move(timeline_);
  }

 private:
  struct Place {
    Channel channel;
    size_t index = 0;
  };
  // The k-th gather or reduce of a group.
  struct Pending {
    int32_t group = kNoGroup;
    size_t k = 0;
  };
  Message& message(const Place& place) {
    std::vector<Message>& all = messages_[place.channel];
    all.resize(std::max(all.size(), place.index + 1));
    return all[place.index];
  }
  double compute_free_at() { return free_at_[{}]; }

  // False: a rank that this one waits for has not got there yet.
  bool run(const Instruction& instruction) {
    if (!know_peers(instruction) || !know_lines(instruction)) {
      return false;
    }
    double start =
        std::max(free_at_[instruction.resource], start_after_values(instruction, lives_));
    if (is_collective(instruction.op)) {
      return meet(instruction, std::max(start, compute_free_at()));
    }
    double end = start + instruction.seconds;
    if (instruction.op == Op::Receive) {
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

  // Its turn comes when the work listed before it is done. One on a line goes on by itself: when it
  // runs is known later, and the rank waits where it needs what the line changes or reads. Else the
  // rank stands at it until all of its group are there.
  bool meet(const Instruction& instruction, double turn) {
    GroupMeetings& group = meetings_.of(instruction.group, number_);
    size_t& count = met_[instruction.group];
    if (!has_arrived_) {
      group.arrive(count, turn, instruction);
    }
    has_arrived_ = instruction.resource.kind != ResourceKind::Line;
    if (has_arrived_) {
      const std::optional<Span> span = group.find_span(count);
      if (!span) {
        return false;
      }
      has_arrived_ = false;
      settle(instruction, span->start, span->end);
    } else {
      const Pending pending{instruction.group, count};
      for (const auto* list : {&instruction.makes, &instruction.sets, &instruction.updates}) {
        for (const ValueId id : *list) {
          changed_by_[static_cast<size_t>(id)] = pending;
        }
      }
      for (const ValueId id : instruction.reads) {
        used_by_[static_cast<size_t>(id)] = pending;
      }
      timeline_.spans.push_back(
          {.instruction = static_cast<int32_t>(next_)});  // finish() has the rest
    }
    ++count;
    return true;
  }

  std::optional<Span> find_span(const Pending& pending) {
    return meetings_.of(pending.group, number_).find_span(pending.k);
  }

  // What it reads, changes or frees may be under way on a line. Instructions of one line keep their
  // order by themselves.
  bool know_lines(const Instruction& instruction) {
    const bool is_on_line = instruction.resource.kind == ResourceKind::Line;
    for (const auto* list :
         {&instruction.reads, &instruction.sets, &instruction.updates, &instruction.frees}) {
      for (const ValueId id : *list) {
        Pending& change = changed_by_[static_cast<size_t>(id)];
        if (change.group != kNoGroup && !(is_on_line && change.group == instruction.group)) {
          const std::optional<Span> span = find_span(change);
          if (!span) {
            return false;
          }
          if (lives_.is_made(id)) {
            lives_.change(id, span->end);
          } else {
            lives_.make(id, span->end);
          }
          change = {};
        }
        const Pending& use = used_by_[static_cast<size_t>(id)];
        const bool changes_it = list != &instruction.reads;
        if (changes_it && use.group != kNoGroup &&
            !(is_on_line && use.group == instruction.group)) {
          const std::optional<Span> span = find_span(use);
          if (!span) {
            return false;
          }
          lives_.read(id, span->end);
        }
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
    for (const auto* list : {&instruction.sets, &instruction.updates}) {
      for (const ValueId id : *list) {
        lives_.change(id, end);
      }
    }
    for (const ValueId id : instruction.frees) {
      lives_.free(id);
    }
    free_at_[instruction.resource] = end;
    timeline_.spans.push_back({static_cast<int32_t>(next_), start, end});
  }

  void account(const Instruction& instruction, const Span& span) {
    timeline_.busy_seconds[busy_resource(instruction)] += span.end - span.start;
    changes_.push_back({span.start, instruction.working_bytes, span.instruction, false});
    changes_.push_back({span.end,
                        rank_.bytes_of(instruction.makes) - rank_.bytes_of(instruction.frees) -
                            instruction.working_bytes,
                        span.instruction,
                        span.end > span.start});
  }

  const RankProgram& rank_;
  const int32_t number_;
  Messages& messages_;
  AllMeetings& meetings_;
  size_t next_ = 0;
  bool has_arrived_ = false;  // at the gather or reduce that it stands at
  Lives lives_;
  std::map<Resource, double> free_at_;
  std::map<Channel, size_t> counts_;          // messages so far
  std::map<int32_t, size_t> met_;             // gathers and reduces so far, by group
  std::vector<std::vector<Place>> sends_of_;  // by value
  // By value: the last gather or reduce on a line that changes it, while it is not known when; and
  // that reads it.
  std::vector<Pending> changed_by_, used_by_;
  std::vector<Change> changes_;
  RankTimeline timeline_;
};

}  // namespace

double RankTimeline::compute_seconds() const {
  const auto compute = busy_seconds.find(Resource{});
  return compute == busy_seconds.end() ? 0 : compute->second;
}

Timeline simulate(const Program& program) {
  Messages messages;
  AllMeetings meetings(program);
  std::vector<RankRun> runs;
  for (int32_t rank = 0; rank < static_cast<int32_t>(program.ranks.size()); ++rank) {
    runs.emplace_back(program, rank, messages, meetings);
  }
  const auto is_done = [](const RankRun& run) { return run.is_done(); };
  while (!std::all_of(runs.begin(), runs.end(), is_done)) {
    bool has_moved = false;
    for (RankRun& run : runs) {
      has_moved = run.advance() || has_moved;
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
