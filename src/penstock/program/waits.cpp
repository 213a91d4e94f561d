#include "penstock/program/waits.h"

#include <algorithm>
#include <map>

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

std::string name_of(const Value& value) {
  RankProgram alone;
  alone.values.push_back(value);
  return value_names(alone)[0];
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

// Of each rank, its gathers and reduces in the order of its list: on the line to the replicas the
// k-th of all replicas of a stage meet, and are done in this order.
using Collectives = std::vector<std::vector<int32_t>>;

Collectives collect_collectives(const Program& program) {
  Collectives collectives(program.ranks.size());
  for (size_t r = 0; r < program.ranks.size(); ++r) {
    const std::vector<Instruction>& instructions = program.ranks[r].instructions;
    for (size_t i = 0; i < instructions.size(); ++i) {
      if (is_collective(instructions[i].op)) {
        collectives[r].push_back(static_cast<int32_t>(i));
      }
    }
  }
  return collectives;
}

// Of what an instruction reads and makes.
int64_t bytes_at(const Program& program, Place place) {
  const RankProgram& rank = program.ranks[static_cast<size_t>(place.rank)];
  return rank.bytes_of(at(program, place).reads) + rank.bytes_of(at(program, place).makes);
}

std::optional<Violation> find_pair_mismatch(const Program& program, Place first, Place other) {
  const Instruction& one = at(program, first);
  const Instruction& two = at(program, other);
  if (one.op != two.op || one.layer != two.layer || one.micro_batch != two.micro_batch) {
    return violation(program,
                     other,
                     cat("meets ",
                         text_of(program, first),
                         "; the replicas of a stage gather and reduce the same in the same order"));
  }
  if (bytes_at(program, first) != bytes_at(program, other)) {
    return violation(program,
                     other,
                     cat("is of ",
                         format_count(bytes_at(program, other)),
                         " bytes where ",
                         text_of(program, first),
                         " is of ",
                         format_count(bytes_at(program, first))));
  }
  return std::nullopt;
}

// Each replica of a stage is compared with the first.
std::optional<Violation> find_mismatch(const Program& program, const Collectives& collectives) {
  for (int32_t rank = 0; rank < static_cast<int32_t>(program.ranks.size()); ++rank) {
    const int32_t first = program.stage_of(rank) * program.replicas;
    const std::vector<int32_t>& theirs = collectives[static_cast<size_t>(first)];
    const std::vector<int32_t>& ours = collectives[static_cast<size_t>(rank)];
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
          cat("rank ", is_ours ? first : rank, " never comes to it; it takes all replicas"));
    }
  }
  return std::nullopt;
}

// Runs all ranks as far as they get.
class Run {
 public:
  Run(const Program& program, const Lines& lines, const Collectives& collectives)
      : program_(program),
        collectives_(collectives),
        next_(program.ranks.size(), 0),
        meets_(program.ranks.size()) {
    for (size_t r = 0; r < program.ranks.size(); ++r) {
      const RankProgram& rank = program.ranks[r];
      meets_[r].assign(rank.instructions.size(), kNobody);
      sends_of_.emplace_back(rank.values.size());
      made_in_.emplace_back(rank.values.size(), kNone);
      read_in_.emplace_back(rank.values.size(), kNone);
      for (size_t k = 0; k < collectives[r].size(); ++k) {
        const Instruction& collective = at(program, {static_cast<int32_t>(r), collectives[r][k]});
        for (const ValueId id : collective.makes) {
          made_in_[r][static_cast<size_t>(id)] = static_cast<int32_t>(k);
        }
        for (const ValueId id : collective.reads) {
          read_in_[r][static_cast<size_t>(id)] = static_cast<int32_t>(k);
        }
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
        while (!is_done(rank) && waits_for(rank).rank == kNobody.rank) {
          ++next_[static_cast<size_t>(rank)];
          has_moved = true;
        }
      }
      has_moved = pass_step() || has_moved;
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
  // A send is on its way once its rank has come to it.
  bool has_come_to(Place place) const {
    return next_[static_cast<size_t>(place.rank)] >= place.instruction;
  }
  bool is_at_step(int32_t rank) const {
    return program_.updates == 1 && !is_done(rank) && at(program_, here(rank)).op == Op::Step;
  }

  // The replica that has not come to the stage's k-th gather or reduce yet, and that; or kNobody.
  Place late_replica(int32_t rank, int32_t k) const {
    const int32_t first = program_.stage_of(rank) * program_.replicas;
    for (int32_t other = first; k != kNone && other < first + program_.replicas; ++other) {
      const Place place{other, collectives_[static_cast<size_t>(other)][static_cast<size_t>(k)]};
      if (!has_come_to(place)) {
        return place;
      }
    }
    return kNobody;
  }
  Place waits_for_replicas(int32_t rank) const {
    const Instruction& instruction = at(program_, here(rank));
    const auto& made_in = made_in_[static_cast<size_t>(rank)];
    const auto& read_in = read_in_[static_cast<size_t>(rank)];
    for (const ValueId id : instruction.reads) {
      const Place late = late_replica(rank, made_in[static_cast<size_t>(id)]);
      if (late.rank != kNobody.rank) {
        return late;
      }
    }
    for (const ValueId id : instruction.frees) {
      const auto i = static_cast<size_t>(id);
      const Place late = late_replica(rank, std::max(made_in[i], read_in[i]));
      if (late.rank != kNobody.rank) {
        return late;
      }
    }
    return kNobody;
  }

  // The instruction of another rank that must have run before this rank can go on, or kNobody.
  Place waits_for(int32_t rank) const {
    const Instruction& instruction = at(program_, here(rank));
    const auto& meets = meets_[static_cast<size_t>(rank)];
    if (instruction.op == Op::Receive) {
      const Place send = meets[static_cast<size_t>(here(rank).instruction)];
      if (!has_come_to(send)) {
        return send;
      }
    }
    for (const ValueId id : instruction.frees) {
      for (const Place send : sends_of_[static_cast<size_t>(rank)][static_cast<size_t>(id)]) {
        const Place receive = meets[static_cast<size_t>(send.instruction)];
        if (!has_run(receive)) {
          return receive;
        }
      }
    }
    if (const Place late = waits_for_replicas(rank); late.rank != kNobody.rank) {
      return late;
    }
    if (is_at_step(rank)) {
      for (int32_t other = 0; other < num_ranks(); ++other) {
        if (!is_at_step(other)) {
          return is_done(other) ? kNobody : here(other);
        }
      }
      return num_ranks() > 1 ? Place{rank, here(rank).instruction} : kNobody;  // see pass_step
    }
    return kNobody;
  }

  // All at once, when all are there.
  bool pass_step() {
    for (int32_t rank = 0; rank < num_ranks(); ++rank) {
      if (!is_at_step(rank)) {
        return false;
      }
    }
    for (int32_t& next : next_) {
      ++next;
    }
    return true;
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
  const Collectives& collectives_;
  std::vector<int32_t> next_;              // of each rank
  std::vector<std::vector<Place>> meets_;  // by rank and instruction: the other side
  std::vector<std::vector<std::vector<Place>>> sends_of_;  // by rank and value
  // By rank and value: the gather or reduce that makes it, and that reads it; kNone.
  std::vector<std::vector<int32_t>> made_in_, read_in_;
};

}  // namespace

std::optional<Violation> find_endless_wait(const Program& program) {
  const Lines lines = collect_lines(program);
  if (std::optional<Violation> mismatch = find_mismatch(program, lines)) {
    return mismatch;
  }
  const Collectives collectives = collect_collectives(program);
  if (std::optional<Violation> mismatch = find_mismatch(program, collectives)) {
    return mismatch;
  }
  return Run(program, lines, collectives).run();
}

}  // namespace penstock::program
