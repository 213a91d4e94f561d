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

// All instructions as a graph, with an arrow from each to those that cannot run before it: the next
// of its rank, the receive of a send, who frees what was received, all steps after all that lies
// before a step, unless ranks have several steps each; and, of a gather or reduce that all replicas
// of a stage have begun, who uses what it makes or frees what it reads. Whether it has an order.
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
  std::map<Channel, std::vector<std::pair<size_t, size_t>>> sends, receives;
  std::vector<std::pair<size_t, size_t>> steps;
  for (size_t r = 0; r < program.ranks.size(); ++r) {
    const RankProgram& rank = program.ranks[r];
    for (size_t i = 0; i < rank.instructions.size(); ++i) {
      const Instruction& one = rank.instructions[i];
      arrow(node(r, i, false), node(r, i, true));
      if (i > 0) {
        arrow(node(r, i - 1, true), node(r, i, false));
      }
      if (one.op == Op::Send) {
        sends[channel_of(rank, static_cast<int32_t>(r), one)].push_back({r, i});
      } else if (one.op == Op::Receive) {
        receives[channel_of(rank, static_cast<int32_t>(r), one)].push_back({r, i});
      } else if (one.op == Op::Step) {
        steps.push_back({r, i});
      }
    }
  }
  if (program.updates > 1) {
    steps.clear();
  }
  for (const auto& [r, i] : steps) {
    for (const auto& [other, step] : steps) {
      arrow(node(r, i, false), node(other, step, true));
    }
  }
  for (const auto& [channel, line] : sends) {
    for (size_t k = 0; k < line.size(); ++k) {
      const auto [r, i] = line[k];
      const auto [to, at] = receives.at(channel).at(k);
      arrow(node(r, i, false), node(to, at, true));
      const RankProgram& rank = program.ranks[r];
      const ValueId id = rank.instructions[i].reads[0];
      for (size_t j = 0; j < rank.instructions.size(); ++j) {
        const std::vector<ValueId>& frees = rank.instructions[j].frees;
        if (std::find(frees.begin(), frees.end(), id) != frees.end()) {
          arrow(node(to, at, true), node(r, j, true));
        }
      }
    }
  }
  std::map<int32_t, std::vector<std::vector<std::pair<size_t, size_t>>>> meetings;  // by stage
  for (size_t r = 0; r < program.ranks.size(); ++r) {
    const std::vector<Instruction>& list = program.ranks[r].instructions;
    auto& line = meetings[program.stage_of(static_cast<int32_t>(r))];
    size_t k = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      if (is_collective(list[i].op)) {
        line.resize(std::max(line.size(), k + 1));
        line[k++].push_back({r, i});
      }
    }
  }
  const auto meets = [](const std::vector<ValueId>& ids, const std::vector<ValueId>& others) {
    return std::any_of(ids.begin(), ids.end(), [&](ValueId id) {
      return std::find(others.begin(), others.end(), id) != others.end();
    });
  };
  for (const auto& [stage, line] : meetings) {
    for (const auto& places : line) {
      for (const auto& [r, i] : places) {
        const std::vector<Instruction>& list = program.ranks[r].instructions;
        for (size_t j = i + 1; j < list.size(); ++j) {
          if (meets(list[j].reads, list[i].makes) || meets(list[j].frees, list[i].makes) ||
              meets(list[j].frees, list[i].reads)) {
            for (const auto& [other, begun] : places) {
              arrow(node(other, begun, false), node(r, j, true));
            }
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
