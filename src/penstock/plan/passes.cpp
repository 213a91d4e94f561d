#include "penstock/plan/passes.h"

#include <utility>

#include "penstock/plan/update.h"

namespace penstock::plan {

namespace {

using program::Program;

Program write_all_turns(Program, const PassInput& input) {
  if (input.sharding == nullptr || input.sharding->shard == program::Shard::None) {
    return write_turns(input.costs, input.pipeline);
  }
  CostTable costs = input.costs;
  costs.step_s /= input.sharding->replicas;  // each steps its slices alone
  return write_turns(costs, input.pipeline);
}

Program add_replicas(Program program, const PassInput& input) {
  return input.sharding ? shard(program, *input.sharding) : program;
}

Program hold_values(Program program, const PassInput& input) {
  return hold(std::move(program), input.holdings);
}

Program add_updates(Program program, const PassInput& input) {
  return write_updates(std::move(program), input.holdings, input.links.of_all);
}

Program finish(Program program, const PassInput& input) {
  for (program::RankProgram& rank : program.ranks) {
    renumber_values(rank);
    rank.limit_bytes = input.limit_bytes;
  }
  return program;
}

Program add_exchanges(Program program, const PassInput& input) {
  return input.exchanges.empty()
             ? program
             : write_exchanges(std::move(program), input.form, input.exchanges, input.links);
}

}  // namespace

// "exchanges" comes after "finish" because with_form() runs it alone, on a finished program.
const std::array<Pass, 6> kPasses = {{{"turns", write_all_turns},
                                      {"shard", add_replicas},
                                      {"hold", hold_values},
                                      {"update", add_updates},
                                      {"finish", finish},
                                      {"exchanges", add_exchanges}}};

program::Program lower_pipeline(const CostTable& table,
                                const Pipeline& pipeline,
                                const Holdings& holdings,
                                int64_t limit_bytes,
                                Spent* spent) {
  return run_passes({.costs = table,
                     .pipeline = pipeline,
                     .holdings = holdings,
                     .links = {.of_all = pipeline.link},
                     .limit_bytes = limit_bytes},
                    spent);
}

program::Program finish_program(program::Program program,
                                const Holdings& holdings,
                                const LinkCost& link,
                                int64_t limit_bytes) {
  const CostTable no_costs;
  const Pipeline no_turns;
  const PassInput input{.costs = no_costs,
                        .pipeline = no_turns,
                        .holdings = holdings,
                        .links = {.of_all = link},
                        .limit_bytes = limit_bytes};
  for (const auto pass : {hold_values, add_updates, finish}) {
    program = pass(std::move(program), input);
  }
  return program;
}

program::Program run_passes(const PassInput& input, Spent* spent) {
  Program program;
  for (const Pass& pass : kPasses) {
    const SpentScope scope(spent, pass.name);
    program = pass.run(std::move(program), input);
  }
  return program;
}

}  // namespace penstock::plan
