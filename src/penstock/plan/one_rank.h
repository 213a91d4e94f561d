// The exact solver for one rank: from a cost table and a limit to what every micro-batch keeps and
// recomputes, or to the reasons why nothing fits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "penstock/plan/holdings.h"
#include "penstock/plan/rotor.h"
#include "penstock/plan/spent.h"
#include "penstock/program/program.h"

namespace penstock::plan {

enum class Recompute { None, All, Sqrt, Rotor };

std::string_view recompute_name(Recompute recompute);  // "rotor"
// "auto" is rotor where there is a limit and none elsewhere.
Recompute parse_recompute(std::string_view name, bool has_limit);

struct OneRankRequest {
  Recompute recompute = Recompute::Rotor;
  int64_t limit_bytes = 0;  // for everything the device holds; 0: none
  int32_t micro_batches = 1;
  RotorOptions rotor = {};
  Holdings holdings = {};  // of the rank; none: those that the table names
  Spent* spent = nullptr;  // where the time of passes is added up; nothing: nowhere
};

// The decisions, as a value.
struct OneRankPlan {
  Recompute recompute = Recompute::None;
  int64_t limit_bytes = 0;
  int32_t micro_batches = 1;
  Operations operations;  // of each micro-batch
};

// "Does not fit" is an answer, not an error.
struct OneRankAnswer {
  bool is_feasible = false;
  OneRankPlan plan;          // where it is not feasible: of the least limit that would be
  program::Program program;  // verified; of `plan`
  double step_s = 0;
  int64_t peak_bytes = 0;
  int64_t least_bytes = 0;      // the least limit that this kind of plan fits in: exactly, unless
                                // elements are carried along the chain
  std::string binding;          // the instruction that holds most at that limit
  double unlimited_s = 0;       // the step when everything is kept
  int64_t unlimited_bytes = 0;  // and its peak
  int64_t slots = 0;            // rotor: memory levels told apart
};

OneRankAnswer solve_one_rank(const CostTable& table, const OneRankRequest& request);

}  // namespace penstock::plan
