// A second opinion on whether the ranks of a program can go on: all of its instructions in one
// order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "penstock/program/program.h"

namespace penstock::test {

inline bool meets(const std::vector<program::ValueId>& ids,
                  const std::vector<program::ValueId>& others) {
  return std::any_of(ids.begin(), ids.end(), [&](program::ValueId id) {
    return std::find(others.begin(), others.end(), id) != others.end();
  });
}

// Whether the later one cannot run before the other, which goes on by itself, is done: it uses what
// that makes or changes, or changes or frees what that reads.
inline bool waits_for(const program::Instruction& later, const program::Instruction& other) {
  using program::Instruction;
  for (const auto changed : {&Instruction::makes, &Instruction::sets, &Instruction::updates}) {
    for (const auto used :
         {&Instruction::reads, &Instruction::sets, &Instruction::updates, &Instruction::frees}) {
      if (meets(later.*used, other.*changed)) {
        return true;
      }
    }
  }
  return meets(later.sets, other.reads) || meets(later.updates, other.reads) ||
         meets(later.frees, other.reads);
}

// All instructions as a graph, with an arrow from each to those that cannot run before it: the next
// of its rank, the receive of a send, who frees what was received (or the end of a send that frees
// what it sends); a gather or reduce that all of its group have begun, and, where it is on a line,
// who waits for it there. Whether it has an order.
inline bool has_order(const program::Program& program) {
  using namespace program;
  std::vector<size_t> offset{0};
  for (const RankProgram& rank : program.ranks) {
    offset.push_back(offset.back() + 2 * rank.instructions.size());
  }
  // Two nodes for each: begun, and done.
  const auto node = [&](size_t rank, size_t at, bool is_done) {
    return offset[rank] + 2 * at + (is_done ? 1 : 0);
  };
  std::vector<std::vector<size_t>> after(offset.back());
  std::vector<int> before(offset.back(), 0);
  const auto arrow = [&](size_t from, size_t to) {
    after[from].push_back(to);
    ++before[to];
  };
  using Place = std::pair<size_t, size_t>;
  std::map<Channel, std::vector<Place>> sends, receives;
  std::map<std::pair<int32_t, int32_t>, std::vector<std::vector<Place>>> meetings;  // by group
  for (size_t r = 0; r < program.ranks.size(); ++r) {
    const RankProgram& rank = program.ranks[r];
    const auto number = static_cast<int32_t>(r);
    std::map<int32_t, size_t> count;  // by group
    for (size_t i = 0; i < rank.instructions.size(); ++i) {
      const Instruction& one = rank.instructions[i];
      arrow(node(r, i, false), node(r, i, true));
      if (i > 0) {
        arrow(node(r, i - 1, true), node(r, i, false));
      }
      if (one.op == Op::Send) {
        sends[channel_of(rank, number, one)].push_back({r, i});
      } else if (one.op == Op::Receive) {
        receives[channel_of(rank, number, one)].push_back({r, i});
      } else if (is_collective(one.op)) {
        const comm::RankGroup& group = program.groups[static_cast<size_t>(one.group)];
        auto& all = meetings[{one.group, comm::colour(program.mesh, group, number)}];
        const size_t k = count[one.group]++;
        all.resize(std::max(all.size(), k + 1));
        all[k].push_back({r, i});
      }
    }
  }
  for (const auto& [channel, line] : sends) {
    for (size_t k = 0; k < line.size(); ++k) {
      const auto [r, i] = line[k];
      const auto [to, at] = receives.at(channel).at(k);
      arrow(node(r, i, false), node(to, at, true));
      const RankProgram& rank = program.ranks[r];
      for (size_t j = 0; j < rank.instructions.size(); ++j) {
        if (meets(rank.instructions[j].frees, rank.instructions[i].reads)) {
          arrow(node(to, at, true), node(r, j, /*is_done=*/i == j));
        }
      }
    }
  }
  for (const auto& [group, all] : meetings) {
    for (const auto& places : all) {
      const auto wait_for_all = [&](size_t rank, size_t at, bool is_done) {
        for (const auto& [other, begun] : places) {
          arrow(node(other, begun, false), node(rank, at, is_done));
        }
      };
      for (const auto& [r, i] : places) {
        const std::vector<Instruction>& list = program.ranks[r].instructions;
        if (list[i].resource.kind != ResourceKind::Line) {
          wait_for_all(r, i, /*is_done=*/true);
          continue;
        }
        for (size_t j = i + 1; j < list.size(); ++j) {
          // Those of one line are done in order, without their rank.
          if (list[j].resource != list[i].resource && waits_for(list[j], list[i])) {
            wait_for_all(r, j, /*is_done=*/false);
          }
        }
      }
    }
  }
  std::vector<size_t> ready;
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] == 0) {
      ready.push_back(i);
    }
  }
  size_t done = 0;
  for (; done < ready.size(); ++done) {
    for (const size_t next : after[ready[done]]) {
      if (--before[next] == 0) {
        ready.push_back(next);
      }
    }
  }
  return done == before.size();
}

}  // namespace penstock::test
