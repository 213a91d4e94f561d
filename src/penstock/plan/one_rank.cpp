#include "penstock/plan/one_rank.h"

#include <limits>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/plan/lower.h"
#include "penstock/program/verify.h"

namespace penstock::plan {

namespace {

constexpr int64_t kMostLayerRuns = int64_t{1} << 22;  // layers x micro-batches

// Bytes that the running micro-batch's schedule does not decide on: state, and the other
// micro-batches' inputs and targets. The first has the least room; the others get the same schedule.
// Carried elements of the running one, and their gradients, count as if all were there all the time.
int64_t bytes_outside(const CostTable& table, const OneRankRequest& request) {
  const int64_t given = table.given_bytes() + table.target_bytes;
  const int64_t held =
      request.holdings.ranks.empty() ? table.held_bytes() : request.holdings.ranks.front().bytes();
  return held + (request.micro_batches - 1) * given + table.carried_bytes();
}

double step_seconds(const CostTable& table, const Operations& operations, int32_t micro_batches) {
  return table.clear_s + table.step_s + micro_batches * seconds_of(table, operations);
}

struct Lowered {
  program::Program program;
  program::Peak peak;
};

// Every program of one rank is proved here before anybody sees it.
Lowered lower_and_verify(const CostTable& table,
                         const OneRankPlan& plan,
                         int64_t limit_bytes,
                         const OneRankRequest& request) {
  Lowered lowered;
  lowered.program = lower(
      table, plan.operations, plan.micro_batches, limit_bytes, request.holdings, request.spent);
  const program::Verdict verdict = program::verify(lowered.program);
  PENSTOCK_CHECK(
      verdict.is_sound(), "the planner wrote an unsound program: ", verdict.violation->text);
  lowered.peak = verdict.peaks.front();
  return lowered;
}

std::string binding_text(const Lowered& lowered) {
  if (lowered.peak.instruction < 0) {
    return "parameters, optimizer state and inputs alone";
  }
  const auto& instructions = lowered.program.ranks.front().instructions;
  return program::describe(lowered.program,
                           instructions[static_cast<size_t>(lowered.peak.instruction)]);
}

Operations simple_operations(const CostTable& table, Recompute recompute) {
  switch (recompute) {
    case Recompute::All:
      return recompute_everything(table);
    case Recompute::Sqrt:
      return recompute_segments(table);
    default:
      return keep_everything(table);
  }
}

// With carried elements the solver sees less room than there is, and schedules that need as much by
// its count differ in what they need. So some others are looked at: the one that needs least is the
// least, and whichever fits and is faster is taken. They do not depend on the limit: with more memory
// the answer is never slower.
void take_candidates(const CostTable& table,
                     int64_t chain_least,
                     const OneRankRequest& request,
                     OneRankPlan& plan,
                     OneRankPlan& least) {
  constexpr int kLevels = 4;
  constexpr RotorOptions kFewSlots{.slots = 200, .threads = 1};
  std::vector<Operations> all{keep_everything(table),
                              recompute_everything(table),
                              recompute_segments(table),
                              solve_rotor(table, chain_least, {.slots = 1}).operations};
  for (int level = 1; level <= kLevels; ++level) {
    const int64_t limit = chain_least + table.carried_bytes() * level / kLevels;
    all.push_back(solve_rotor(table, limit, kFewSlots).operations);
  }
  OneRankPlan one = plan;
  const auto peak_of = [&](const Operations& operations) {
    one.operations = operations;
    return lower_and_verify(table, one, 0, request).peak.bytes;
  };
  const auto fits = [&](int64_t peak) {
    return request.limit_bytes == 0 || peak <= request.limit_bytes;
  };
  bool has_one = fits(peak_of(plan.operations));
  double seconds = seconds_of(table, plan.operations);
  int64_t least_peak = std::numeric_limits<int64_t>::max();
  for (const Operations& operations : all) {
    const int64_t peak = peak_of(operations);
    if (peak < least_peak) {
      least_peak = peak;
      least.operations = operations;
    }
    if (fits(peak) && (!has_one || seconds_of(table, operations) < seconds)) {
      has_one = true;
      seconds = seconds_of(table, operations);
      plan.operations = operations;
    }
  }
}

}  // namespace

std::string_view recompute_name(Recompute recompute) {
  switch (recompute) {
    case Recompute::None:
      return "none";
    case Recompute::All:
      return "all";
    case Recompute::Sqrt:
      return "sqrt";
    case Recompute::Rotor:
      return "rotor";
  }
  throw InternalError("no such recomputation");
}

Recompute parse_recompute(std::string_view name, bool has_limit) {
  for (const Recompute recompute :
       {Recompute::None, Recompute::All, Recompute::Sqrt, Recompute::Rotor}) {
    if (recompute_name(recompute) == name) {
      return recompute;
    }
  }
  if (name == "auto") {
    return has_limit ? Recompute::Rotor : Recompute::None;
  }
  throw ConfigError(cat(
      "recompute = \"", name, "\"; it takes \"auto\", \"none\", \"all\", \"sqrt\" or \"rotor\""));
}

OneRankAnswer solve_one_rank(const CostTable& table, const OneRankRequest& request) {
  if (static_cast<int64_t>(table.layers.size()) * request.micro_batches > kMostLayerRuns) {
    throw ConfigError(cat(table.layers.size(),
                          " layers in ",
                          request.micro_batches,
                          " micro-batches are more than the ",
                          kMostLayerRuns,
                          " layer runs that a step may have; use fewer micro-batches"));
  }
  OneRankAnswer result;
  OneRankPlan& plan = result.plan;
  plan = {request.recompute, request.limit_bytes, request.micro_batches, {}};
  const OneRankPlan unlimited{Recompute::None, 0, request.micro_batches, keep_everything(table)};
  result.unlimited_s = step_seconds(table, unlimited.operations, request.micro_batches);
  result.unlimited_bytes = lower_and_verify(table, unlimited, 0, request).peak.bytes;

  // The plan that needs least of its kind says what the least limit is, and what binds there.
  OneRankPlan least = plan;
  const int64_t outside = bytes_outside(table, request);
  const bool is_exact = table.carried.empty();
  if (request.recompute == Recompute::Rotor) {
    const int64_t limit = request.limit_bytes > 0 ? request.limit_bytes
                                                  : result.unlimited_bytes + table.carried_bytes();
    const RotorAnswer answer = solve_rotor(table, limit - outside, request.rotor);
    result.slots = answer.slots;
    least.operations = answer.is_feasible
                           ? solve_rotor(table, answer.least_bytes, {.slots = 1}).operations
                           : answer.operations;
    plan.operations = answer.operations;
    if (!is_exact) {
      take_candidates(table, answer.least_bytes, request, plan, least);
    }
    // The solver's count is the program's or a little more: where all fits, all is kept.
    const bool fits_whole =
        request.limit_bytes == 0 || request.limit_bytes >= result.unlimited_bytes;
    if (fits_whole &&
        seconds_of(table, unlimited.operations) <= seconds_of(table, plan.operations)) {
      plan.operations = unlimited.operations;
    }
  } else {
    plan.operations = least.operations = simple_operations(table, request.recompute);
  }
  const Lowered at_least = lower_and_verify(table, least, 0, request);
  result.least_bytes = at_least.peak.bytes;
  result.binding = binding_text(at_least);
  result.is_feasible = request.limit_bytes == 0 || request.limit_bytes >= result.least_bytes;
  if (!result.is_feasible) {
    // More than the schedule may bind: what the best one within that limit takes is the answer.
    plan.operations =
        request.recompute == Recompute::Rotor && is_exact
            ? solve_rotor(table, result.least_bytes - outside, request.rotor).operations
            : least.operations;
  }

  Lowered lowered =
      lower_and_verify(table, plan, result.is_feasible ? request.limit_bytes : 0, request);
  result.program = std::move(lowered.program);
  result.peak_bytes = lowered.peak.bytes;
  result.step_s = step_seconds(table, plan.operations, request.micro_batches);
  return result;
}

}  // namespace penstock::plan
