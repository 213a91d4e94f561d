// What the ranks of a program hold from step to step, as values: the weights, gradients and state of
// each unit, and what never moves. inventory.h computes it for a model; a bare cost table has it in
// a few sums.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/program/program.h"

namespace penstock::plan {

struct HeldValue {
  program::Value value;
  std::string label = {};  // of values that belong to no unit
};

HeldValue fixed_value(const std::string& label, int64_t bytes);

struct RankHoldings {
  std::vector<HeldValue> values;
  // By unit: what the rank sends to each other stage that has it, where its gradients are added up.
  std::vector<int64_t> shared_bytes = {};

  int64_t bytes() const;  // of the device
};

struct Holdings {
  std::vector<program::Unit> units = {};  // none: nobody knows what weights layers have
  std::vector<RankHoldings> ranks;
  int64_t num_parameters = 0;  // of the model: the norm is made of their squares
};

// Sums that belong to no unit, of one rank.
RankHoldings fixed_holdings(const std::vector<program::Held>& held);

// A pass: every rank of the program gets what it holds, and every instruction the weights, gradients
// and state that it reads and changes. The program has no units and no persistent values yet.
program::Program hold(program::Program program, const Holdings& holdings);

}  // namespace penstock::plan
