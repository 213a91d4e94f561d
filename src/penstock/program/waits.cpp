#include "penstock/program/waits.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/units.h"

namespace penstock::program {

namespace {

struct Place {
  int32_t rank = 0;
  int32_t instruction = 0;
};

struct Line {
  std::vector<Place> sends, receives;  // in the order of the ranks' lists; the k-th of both meet
};

using Lines = std::map<Channel, Line>;

Lines collect_lines(const Program& program) {
  Lines lines;
  for (size_t r = 0; r < program.ranks.size(); ++r) {
    const RankProgram& rank = program.ranks[r];
    for (size_t i = 0; i < rank.instructions.size(); ++i) {
      const Instruction& instruction = rank.instructions[i];
      if (is_transfer(instruction.op)) {
        const Place place{static_cast<int32_t>(r), static_cast<int32_t>(i)};
        Line& line = lines[channel_of(rank, place.rank, instruction)];
        (instruction.op == Op::Send ? line.sends : line.receives).push_back(place);
      }
    }
  }
  return lines;
}

const Instruction& at(const Program& program, Place place) {
  return program.ranks[static_cast<size_t>(place.rank)]
      .instructions[static_cast<size_t>(place.instruction)];
}

const Value& value_at(const Program& program, Place place) {
  const Instruction& instruction = at(program, place);
  const ValueId id = instruction.op == Op::Send ? instruction.reads[0] : instruction.makes[0];
  return program.ranks[static_cast<size_t>(place.rank)].values[static_cast<size_t>(id)];
}

std::string text_of(const Program& program, Place place) {
  return cat("rank ",
             place.rank,
             ", instruction ",
             place.instruction,
             " (",
             describe(program, at(program, place)),
             ")");
}

Violation violation(const Program& program, Place place, const std::string& what) {
  return {place.rank, place.instruction, cat(text_of(program, place), ": ", what)};
}

// The k-th send and the k-th receive of a channel must be of the same value.
std::optional<Violation> find_mismatch(const Program& program, const Lines& lines) {
  for (const auto& [channel, line] : lines) {
    const size_t common = std::min(line.sends.size(), line.receives.size());
    for (size_t k = 0; k < common; ++k) {
      const Value& sent = value_at(program, line.sends[k]);
      const Value& received = value_at(program, line.receives[k]);
      const std::string sender = text_of(program, line.sends[k]);
      if (sent.micro_batch != received.micro_batch) {
        return violation(
            program,
            line.receives[k],
            cat("expects ", name_of(received), " where ", sender, " sends ", name_of(sent)));
      }
      if (sent.bytes != received.bytes) {
        return violation(program,
                         line.receives[k],
                         cat("expects ",
                             format_count(received.bytes),
                             " bytes of ",
                             name_of(received),
                             " where ",
                             sender,
                             " sends ",
                             format_count(sent.bytes)));
      }
    }
    if (line.sends.size() > common) {
      return violation(program,
                       line.sends[common],
                       cat("rank ",
                           channel.to,
                           " never receives ",
                           name_of(value_at(program, line.sends[common]))));
    }
    if (line.receives.size() > common) {
      return violation(program,
                       line.receives[common],
                       cat("rank ",
                           channel.from,
                           " never sends ",
                           name_of(value_at(program, line.receives[common]))));
    }
  }
  return std::nullopt;
}

const comm::RankGroup& group_of(const Program& program, const Instruction& instruction) {
  return program.groups[static_cast<size_t>(instruction.group)];
}

// The gathers and reduces of one group of ranks: of each member, in the order of its list. The k-th
// of all members meet.
struct Meetings {
  std::vector<int32_t> ranks;                // ascending
  std::vector<std::vector<int32_t>> places;  // likewise: instructions
};
// By group of the program and first rank.
using Groups = std::map<std::pair<int32_t, int32_t>, Meetings>;

// The group of a rank's gather or reduce; nothing where the rank is in none.
std::optional<std::pair<int32_t, int32_t>> group_key(const Program& program,
                                                     int32_t rank,
                                                     const Instruction& instruction) {
  const comm::RankGroup& group = group_of(program, instruction);
  if (comm::members(program.mesh, group, rank).empty()) {
    return std::nullopt;
  }
  return std::pair{instruction.group, comm::colour(program.mesh, group, rank)};
}

Groups collect_groups(const Program& program) {
  Groups groups;
  for (int32_t rank = 0; rank < static_cast<int32_t>(program.ranks.size()); ++rank) {
    const std::vector<Instruction>& list = program.ranks[static_cast<size_t>(rank)].instructions;
    for (size_t i = 0; i < list.size(); ++i) {
      if (!is_collective(list[i].op)) {
        continue;
      }
      const auto key = group_key(program, rank, list[i]);
      PENSTOCK_CHECK(key, "a rank outside of its group; its own check comes first");
      Meetings& found = groups[*key];
      if (found.ranks.empty()) {
        found.ranks = comm::members(program.mesh, group_of(program, list[i]), rank);
        found.places.resize(found.ranks.size());
      }
      const auto at = std::lower_bound(found.ranks.begin(), found.ranks.end(), rank);
      found.places[static_cast<size_t>(at - found.ranks.begin())].push_back(
          static_cast<int32_t>(i));
    }
  }
  return groups;
}

// What is of no unit is told apart by its values alone.
bool are_of_same_kinds(const Program& program, Place first, Place other) {
  if (!at(program, first).units.empty()) {
    return true;
  }
  const auto kinds_of = [&](Place place) {
    const Instruction& instruction = at(program, place);
    std::vector<std::pair<ValueKind, int32_t>> kinds;
    for (const auto* list : {&instruction.makes, &instruction.updates}) {
      for (const ValueId id : *list) {
        const Value& value = program.ranks[static_cast<size_t>(place.rank)].value(id);
        if (value.kind != ValueKind::RankState) {  // each rank has its own
          kinds.push_back({value.kind, value.layer});
        }
      }
    }
    std::sort(kinds.begin(), kinds.end());
    return kinds;
  };
  return kinds_of(first) == kinds_of(other);
}

std::optional<Violation> find_pair_mismatch(const Program& program, Place first, Place other) {
  const Instruction& one = at(program, first);
  const Instruction& two = at(program, other);
  const auto refuse = [&](const auto&... parts) {
    return violation(program, other, cat(parts...));
  };
  if (one.op != two.op || one.units != two.units || one.micro_batch != two.micro_batch ||
      one.scatters != two.scatters || !are_of_same_kinds(program, first, other)) {
    return refuse("meets ",
                  text_of(program, first),
                  "; the ranks of a group exchange the same in the same order");
  }
  if (one.resource.kind != two.resource.kind) {
    return refuse("is on another resource than ", text_of(program, first));
  }
  // Slices may differ in size; what is whole may not. Stages need not hold alike what they share.
  const bool is_of_stages = group_of(program, one).axes.contains(comm::Axis::Pipeline);
  const bool is_alike = !is_of_stages && (!one.units.empty() || one.op == Op::Merge);
  const auto whole_bytes = [&](Place place) {
    const RankProgram& rank = program.ranks[static_cast<size_t>(place.rank)];
    const Instruction& instruction = at(program, place);
    int64_t bytes = 0;
    for (const auto* list : {&instruction.reads, &instruction.makes}) {
      for (const ValueId id : *list) {
        bytes += info_of(rank.value(id).kind).is_persistent ? 0 : rank.value(id).bytes;
      }
    }
    for (const ValueId id : instruction.updates) {
      const bool is_whole = rank.value(id).slices.empty();
      bytes += is_whole && is_alike ? rank.value(id).bytes : 0;
    }
    return bytes;
  };
  if (whole_bytes(first) != whole_bytes(other)) {
    return refuse("is of ",
                  format_count(whole_bytes(other)),
                  " bytes where ",
                  text_of(program, first),
                  " is of ",
                  format_count(whole_bytes(first)));
  }
  return std::nullopt;
}

// Each member is compared with the first.
std::optional<Violation> find_mismatch(const Program& program, const Groups& groups) {
  for (const auto& [key, meetings] : groups) {
    const int32_t first = meetings.ranks[0];
    const std::vector<int32_t>& theirs = meetings.places[0];
    for (size_t i = 1; i < meetings.ranks.size(); ++i) {
      const int32_t rank = meetings.ranks[i];
      const std::vector<int32_t>& ours = meetings.places[i];
      const size_t common = std::min(theirs.size(), ours.size());
      for (size_t k = 0; k < common; ++k) {
        if (auto mismatch = find_pair_mismatch(program, {first, theirs[k]}, {rank, ours[k]})) {
          return mismatch;
        }
      }
      if (theirs.size() != ours.size()) {
        const bool is_ours = ours.size() > common;
        return violation(
            program,
            is_ours ? Place{rank, ours[common]} : Place{first, theirs[common]},
            cat("rank ", is_ours ? first : rank, " never comes to it; it takes all of its group"));
      }
    }
  }
  return std::nullopt;
}

// Runs all ranks as far as they get.
class Run {
 public:
  Run(const Program& program, const Lines& lines, const Groups& groups)
      : program_(program),
        next_(program.ranks.size(), 0),
        has_begun_(program.ranks.size(), 0),
        meets_(program.ranks.size()) {
    for (size_t r = 0; r < program.ranks.size(); ++r) {
      const RankProgram& rank = program.ranks[r];
      meets_[r].assign(rank.instructions.size(), kNobody);
      meetings_.emplace_back(rank.instructions.size(), nullptr);
      sends_of_.emplace_back(rank.values.size());
      changed_by_.emplace_back(rank.values.size(), kNone);
      used_by_.emplace_back(rank.values.size(), kNone);
    }
    for (const auto& [key, group] : groups) {
      for (size_t k = 0; k < group.places[0].size(); ++k) {
        std::vector<Place>& all = all_meetings_.emplace_back();
        for (size_t i = 0; i < group.ranks.size(); ++i) {
          all.push_back({group.ranks[i], group.places[i][k]});
        }
      }
    }
    for (const std::vector<Place>& all : all_meetings_) {
      for (const Place place : all) {
        meetings_[static_cast<size_t>(place.rank)][static_cast<size_t>(place.instruction)] = &all;
      }
    }
    for (const auto& [channel, line] : lines) {
      for (size_t k = 0; k < line.sends.size(); ++k) {
        const Place send = line.sends[k];
        const Place receive = line.receives[k];
        meet(send) = receive;
        meet(receive) = send;
        const ValueId id = at(program, send).reads[0];
        sends_of_[static_cast<size_t>(send.rank)][static_cast<size_t>(id)].push_back(send);
      }
    }
  }

  std::optional<Violation> run() {
    bool has_moved = true;
    while (has_moved) {
      has_moved = false;
      for (int32_t rank = 0; rank < num_ranks(); ++rank) {
        while (!is_done(rank) && go_on(rank)) {
          has_moved = true;
        }
      }
    }
    for (int32_t rank = 0; rank < num_ranks(); ++rank) {
      if (!is_done(rank)) {
        return describe_circle(rank);
      }
    }
    return std::nullopt;
  }

 private:
  static constexpr Place kNobody{-1, -1};
  static constexpr int32_t kNone = -1;

  int32_t num_ranks() const { return static_cast<int32_t>(program_.ranks.size()); }
  Place& meet(Place place) {
    return meets_[static_cast<size_t>(place.rank)][static_cast<size_t>(place.instruction)];
  }
  Place here(int32_t rank) const { return {rank, next_[static_cast<size_t>(rank)]}; }
  bool is_done(int32_t rank) const {
    const RankProgram& program = program_.ranks[static_cast<size_t>(rank)];
    return next_[static_cast<size_t>(rank)] == static_cast<int32_t>(program.instructions.size());
  }
  bool has_run(Place place) const {
    return next_[static_cast<size_t>(place.rank)] > place.instruction;
  }
  // A send is on its way, and a gather or reduce can do without waiting for this rank, once it has
  // begun.
  bool has_come_to(Place place) const {
    const bool is_there = next_[static_cast<size_t>(place.rank)] == place.instruction;
    return has_run(place) || (is_there && has_begun_[static_cast<size_t>(place.rank)] != 0);
  }
  // Whether the rank gets any further.
  bool go_on(int32_t rank) {
    const bool begins = begin(rank);
    const bool passes = waits_for(rank).rank == kNobody.rank;
    if (passes) {
      pass(rank);
    }
    return begins || passes;
  }
  // Whether the rank begins what it stands at now: nobody else is about what it uses or frees.
  bool begin(int32_t rank) {
    uint8_t& has_begun = has_begun_[static_cast<size_t>(rank)];
    if (has_begun != 0 || waits_to_begin(rank).rank != kNobody.rank) {
      return false;
    }
    has_begun = 1;
    return true;
  }
  // What it starts on a line is under way when the rank goes on.
  void pass(int32_t rank) {
    const Place place = here(rank);
    const Instruction& instruction = at(program_, place);
    if (instruction.resource.kind == ResourceKind::Line) {
      for (const auto* list : {&instruction.makes, &instruction.sets, &instruction.updates}) {
        for (const ValueId id : *list) {
          changed_by_[static_cast<size_t>(rank)][static_cast<size_t>(id)] = place.instruction;
        }
      }
      for (const ValueId id : instruction.reads) {
        used_by_[static_cast<size_t>(rank)][static_cast<size_t>(id)] = place.instruction;
      }
    }
    ++next_[static_cast<size_t>(rank)];
    has_begun_[static_cast<size_t>(rank)] = 0;
  }

  // A member that has not come to the meeting of this instruction, or kNobody.
  Place late_member(int32_t rank, int32_t instruction) const {
    if (instruction == kNone) {
      return kNobody;
    }
    for (const Place other :
         *meetings_[static_cast<size_t>(rank)][static_cast<size_t>(instruction)]) {
      if (!has_come_to(other)) {
        return other;
      }
    }
    return kNobody;
  }

  // What an instruction frees must have been received, unless it sends that itself.
  Place waits_to_begin(int32_t rank) const {
    const Place late = waits_for_peers(rank, /*of_own_send=*/false);
    return late.rank != kNobody.rank ? late : waits_for_lines(rank);
  }
  Place waits_for_peers(int32_t rank, bool of_own_send) const {
    const Place own = here(rank);
    const auto& meets = meets_[static_cast<size_t>(rank)];
    for (const ValueId id : at(program_, own).frees) {
      for (const Place send : sends_of_[static_cast<size_t>(rank)][static_cast<size_t>(id)]) {
        const Place receive = meets[static_cast<size_t>(send.instruction)];
        if ((send.instruction == own.instruction) == of_own_send && !has_run(receive)) {
          return receive;
        }
      }
    }
    return kNobody;
  }

  // What an instruction reads, changes or frees must not be under way on a line; nor, where it
  // changes or frees it, be read there. Instructions of one line keep their order by themselves.
  Place waits_for_lines(int32_t rank) const {
    const Instruction& instruction = at(program_, here(rank));
    const auto& changed_by = changed_by_[static_cast<size_t>(rank)];
    const auto& used_by = used_by_[static_cast<size_t>(rank)];
    const auto late = [&](int32_t other) {
      const bool is_on_same_line = other != kNone &&
                                   instruction.resource.kind == ResourceKind::Line &&
                                   at(program_, {rank, other}).resource == instruction.resource;
      return is_on_same_line ? kNobody : late_member(rank, other);
    };
    for (const auto* list :
         {&instruction.reads, &instruction.sets, &instruction.updates, &instruction.frees}) {
      const bool is_read = list == &instruction.reads;
      for (const ValueId id : *list) {
        const auto i = static_cast<size_t>(id);
        for (const int32_t other : {changed_by[i], is_read ? kNone : used_by[i]}) {
          if (const Place found = late(other); found.rank != kNobody.rank) {
            return found;
          }
        }
      }
    }
    return kNobody;
  }

  // The instruction of another rank that must have run before this rank can go on, or kNobody.
  Place waits_for(int32_t rank) const {
    const Instruction& instruction = at(program_, here(rank));
    if (has_begun_[static_cast<size_t>(rank)] == 0) {
      return waits_to_begin(rank);
    }
    if (instruction.op == Op::Receive) {
      const Place send =
          meets_[static_cast<size_t>(rank)][static_cast<size_t>(here(rank).instruction)];
      if (!has_come_to(send)) {
        return send;
      }
    }
    if (const Place late = waits_for_peers(rank, /*of_own_send=*/true); late.rank != kNobody.rank) {
      return late;
    }
    // Not on a line: the rank stands still until all of its group have come.
    if (is_collective(instruction.op) && instruction.resource.kind != ResourceKind::Line) {
      return late_member(rank, here(rank).instruction);
    }
    return kNobody;
  }

  // From a rank that waits along the ranks that are waited for, until one comes a second time.
  Violation describe_circle(int32_t rank) const {
    std::vector<int32_t> path;
    while (std::find(path.begin(), path.end(), rank) == path.end()) {
      path.push_back(rank);
      rank = waits_for(rank).rank;
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), rank));
    std::vector<std::string> words;
    for (const int32_t one : path) {
      words.push_back(
          cat(text_of(program_, here(one)), " waits for ", text_of(program_, waits_for(one))));
    }
    return {rank,
            here(rank).instruction,
            cat("ranks wait for each other and none can go on: ", join(words, "; "))};
  }

  const Program& program_;
  std::vector<int32_t> next_;              // of each rank
  std::vector<uint8_t> has_begun_;         // likewise: what it stands at
  std::vector<std::vector<Place>> meets_;  // by rank and instruction: the other side
  std::deque<std::vector<Place>> all_meetings_;
  std::vector<std::vector<const std::vector<Place>*>> meetings_;  // by rank and instruction
  std::vector<std::vector<std::vector<Place>>> sends_of_;         // by rank and value
  // By rank and value: the last gather or reduce on a line that changes it, and that reads it.
  std::vector<std::vector<int32_t>> changed_by_, used_by_;
};

}  // namespace

std::optional<Violation> find_endless_wait(const Program& program) {
  const Lines lines = collect_lines(program);
  if (std::optional<Violation> mismatch = find_mismatch(program, lines)) {
    return mismatch;
  }
  const Groups groups = collect_groups(program);
  if (std::optional<Violation> mismatch = find_mismatch(program, groups)) {
    return mismatch;
  }
  return Run(program, lines, groups).run();
}

}  // namespace penstock::program
