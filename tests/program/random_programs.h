// Sound programs of every sort, with not a byte to spare: for tests that change one thing in them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/plan/evaluation.h"
#include "penstock/plan/exchanges.h"
#include "penstock/plan/lower.h"
#include "penstock/plan/pipeline.h"
#include "penstock/plan/rotor.h"
#include "penstock/plan/shard.h"
#include "penstock/plan/update.h"
#include "penstock/program/program.h"
#include "penstock/schedule/schedule.h"

#include "plan/mutation_holdings.h"
#include "plan/random_chains.h"
#include "program/content_interpreter.h"

namespace penstock::test {

// ---- What planners leave open, decided at random

// Some values are freed by an instruction of their own.
inline void split_off_drops(program::RankProgram& rank, Dice& dice) {
  std::vector<program::Instruction> instructions;
  for (program::Instruction& instruction : rank.instructions) {
    program::Instruction drop{.op = program::Op::Drop};
    if (dice.chance(30) && instruction.op != program::Op::Drop) {
      drop.frees = std::move(instruction.frees);
      instruction.frees.clear();
    }
    instructions.push_back(std::move(instruction));
    if (!drop.frees.empty()) {
      instructions.push_back(std::move(drop));
    }
  }
  rank.instructions = std::move(instructions);
}

// What an instruction leaves behind it must have worked with, whatever it frees.
inline void cover_what_is_made(program::RankProgram& rank) {
  for (program::Instruction& instruction : rank.instructions) {
    instruction.working_bytes =
        std::max(instruction.working_bytes, rank.bytes_of(instruction.makes));
  }
}

// The steps of one rank in parts, each with some of its units; what was moved is gathered after all
// of them, or after its own. Replicas have equal dice.
class StepSplit {
 public:
  StepSplit(const program::RankProgram& rank, Dice dice) : rank_(rank), dice_(dice) {}

  std::vector<program::Instruction> run() {
    gathers_at_once_ = dice_.chance(50);
    for (const program::Instruction& one : rank_.instructions) {
      const bool gathers_moved = one.op == program::Op::Gather && one.makes.empty();
      if (one.op == program::Op::Step && !one.units.empty()) {
        split(one);
      } else if (gathers_moved && gathers_at_once_) {
        insert_after_step(one);
      } else {
        list_.push_back(one);
      }
    }
    return std::move(list_);
  }

 private:
  void split(const program::Instruction& step) {
    std::map<int64_t, std::vector<int32_t>> parts;
    const int64_t count = dice_.between(1, 3);
    for (const int32_t unit : step.units) {
      parts[dice_.between(1, count)].push_back(unit);
    }
    for (const auto& [part, units] : parts) {
      const auto is_of_others = [&, &mine = units](program::ValueId id) {
        const program::Value& value = rank_.value(id);
        return program::info_of(value.kind).has_unit && !has(mine, value.unit);
      };
      program::Instruction one = step;
      one.units = units;
      std::erase_if(one.reads, is_of_others);
      std::erase_if(one.updates, is_of_others);
      if (part != parts.rbegin()->first) {
        one.frees.clear();
      }
      list_.push_back(std::move(one));
    }
  }
  void insert_after_step(const program::Instruction& gather) {
    const auto moves_it = std::find_if(list_.rbegin(), list_.rend(), [&](const auto& one) {
      return one.op == program::Op::Step && has(one.units, gather.units[0]);
    });
    list_.insert(moves_it.base(), gather);
  }

  const program::RankProgram& rank_;
  Dice dice_;
  bool gathers_at_once_ = false;
  std::vector<program::Instruction> list_;
};

// Exchanges that hold ranks up and others that do not, alike on all ranks; work on any resource.
inline void vary_resources(program::Program& program, Dice& dice) {
  const bool replicas_wait = dice.chance(15);
  const bool stages_go_on = dice.chance(20), squares_go_on = dice.chance(20);
  const bool uses_others = dice.chance(20);
  for (program::RankProgram& rank : program.ranks) {
    std::vector<program::Instruction> list;
    for (program::Instruction& one : rank.instructions) {
      program::Instruction drop{.op = program::Op::Drop};
      const bool is_on_line = one.resource.kind == program::ResourceKind::Line;
      if (is_on_line && replicas_wait) {
        one.resource = {};
      } else if (program::is_collective(one.op) && !is_on_line &&
                 (one.units.empty() ? squares_go_on : stages_go_on)) {
        one.resource = {program::ResourceKind::Line, one.group};
        drop.frees = std::exchange(one.frees, {});
      } else if (one.resource == program::Resource{} && !program::is_collective(one.op) &&
                 uses_others && dice.chance(20)) {
        constexpr program::Resource others[] = {{program::ResourceKind::HostCompute, 0},
                                                {program::ResourceKind::Copy, 1},
                                                {program::ResourceKind::Disk, 0}};
        one.resource = others[dice.between(0, 2)];
      }
      list.push_back(std::move(one));
      if (!drop.frees.empty()) {
        list.push_back(std::move(drop));
      }
    }
    rank.instructions = std::move(list);
  }
}

// Groups that nobody uses, values on other tiers, drops and steps in parts.
inline void vary(program::Program& program, Dice& dice) {
  vary_resources(program, dice);
  if (dice.chance(30)) {
    program.groups.push_back(comm::along({comm::Axis::Data, comm::Axis::Tensor}));
  }
  const bool splits_steps = dice.chance(50), splits_drops = dice.chance(50);
  const int64_t away = dice.chance(40) ? 10 : 0;
  std::map<int32_t, Dice> dice_of;  // by stage
  for (int32_t number = 0; number < program.mesh.ranks(); ++number) {
    program::RankProgram& rank = program.ranks[static_cast<size_t>(number)];
    for (program::Value& value : rank.values) {
      if (!program::info_of(value.kind).is_persistent && dice.chance(away)) {
        value.tier = dice.chance(70) ? program::Tier::Host : program::Tier::Disk;
      }
    }
    if (splits_steps) {
      const Dice& same =
          dice_of.try_emplace(program.stage_of(number), dice.between(0, 1 << 30)).first->second;
      rank.instructions = StepSplit(rank, same).run();
    }
    if (splits_drops) {
      split_off_drops(rank, dice);
    }
    if (splits_drops || away > 0) {
      cover_what_is_made(rank);
    }
  }
}

// What the program holds at its most becomes the limit, tier by tier; now and then there is none.
inline void limit_exactly(program::Program& program, Dice& dice) {
  ContentInterpreter interpreter(program);
  if (const auto harm = interpreter.run()) {
    throw InternalError(cat("a program that should be sound: ", *harm));
  }
  const std::vector<RankMemory::Bytes> peaks = interpreter.peaks();
  for (size_t i = 0; i < peaks.size(); ++i) {
    program::RankProgram& rank = program.ranks[i];
    for (const auto& [limit, peak] : {std::pair{&rank.limit_bytes, peaks[i][0]},
                                      std::pair{&rank.host_limit_bytes, peaks[i][1]},
                                      std::pair{&rank.disk_limit_bytes, peaks[i][2]}}) {
      *limit = dice.chance(90) ? peak : 0;
    }
  }
}

// ---- Programs by how they are planned

// Of each layer, then of the loss.
inline std::vector<int32_t> ranks_of_layers(const plan::Pipeline& pipeline) {
  std::vector<int32_t> ranks;
  for (size_t stage = 0; stage + 1 < pipeline.cuts.size(); ++stage) {
    ranks.insert(ranks.end(),
                 static_cast<size_t>(pipeline.cuts[stage + 1] - pipeline.cuts[stage]),
                 pipeline.schedule.rank_of[stage]);
  }
  ranks.push_back(pipeline.schedule.rank_of.back());
  return ranks;
}

// Stages keep all, in any save mode, or recompute what they need: layer by layer, or all at once.
inline plan::StageOperations random_operations(Dice& dice,
                                               const plan::CostTable& table,
                                               int32_t first,
                                               int32_t end) {
  using plan::OperationKind;
  plan::StageOperations stage;
  const auto keep = [&](int32_t layer) {
    const auto modes = static_cast<int64_t>(table.layers[static_cast<size_t>(layer)].modes.size());
    return plan::Operation{
        OperationKind::ForwardAll, layer, static_cast<int32_t>(dice.between(0, modes - 1))};
  };
  const int64_t how = dice.between(0, 2);
  for (int32_t layer = first; layer < end; ++layer) {
    stage.forward.push_back(how == 0 ? keep(layer)
                            : how == 1 || layer == first
                                ? plan::Operation{OperationKind::ForwardKeepInput, layer}
                                : plan::Operation{OperationKind::ForwardDrop, layer});
  }
  if (end == static_cast<int32_t>(table.layers.size())) {
    stage.backward.push_back({OperationKind::Loss, end});
  }
  for (int32_t layer = first; how == 2 && layer < end; ++layer) {
    stage.backward.push_back(keep(layer));
  }
  for (int32_t layer = end - 1; layer >= first; --layer) {
    if (how == 1) {
      stage.backward.push_back(keep(layer));
    }
    stage.backward.push_back({OperationKind::Backward, layer});
  }
  return stage;
}

inline plan::Pipeline random_pipeline(Dice& dice,
                                      const plan::CostTable& table,
                                      schedule::Schedule schedule) {
  plan::Pipeline pipeline{.schedule = std::move(schedule),
                          .link = {.latency_s = 0.5, .bytes_per_s = 2}};
  const int32_t stages = pipeline.schedule.stages();
  for (int32_t stage = 0; stage <= stages; ++stage) {
    pipeline.cuts.push_back(static_cast<int32_t>(table.layers.size()) * stage / stages);
  }
  for (int32_t stage = 0; stage < stages; ++stage) {
    std::vector<plan::StageOperations>& all = pipeline.operations.emplace_back();
    for (int32_t i = 0; i < pipeline.schedule.micro_batches; ++i) {
      all.push_back(random_operations(dice,
                                      table,
                                      pipeline.cuts[static_cast<size_t>(stage)],
                                      pipeline.cuts[static_cast<size_t>(stage) + 1]));
    }
  }
  for (int32_t rank = 0; rank < pipeline.schedule.ranks(); ++rank) {
    pipeline.weight_bytes.push_back(dice.between(1, 9));
  }
  return pipeline;
}

inline schedule::Schedule random_synchronous(Dice& dice, int32_t ranks) {
  using schedule::Kind;
  constexpr Kind kinds[] = {Kind::GPipe,
                            Kind::OneFOneB,
                            Kind::Interleaved,
                            Kind::ZeroBubbleH1,
                            Kind::ZeroBubbleH2,
                            Kind::ZeroBubbleV};
  return schedule::make_schedule(
      kinds[dice.between(0, 5)], ranks, static_cast<int32_t>(dice.between(1, 3)), 2);
}

// A recomputed step of one rank, as fast as memory allows.
inline program::Program recomputed_program(Dice& dice) {
  const int64_t layers = dice.between(1, 5);
  const plan::CostTable table =
      dice.chance(50) ? small_chain(dice, layers) : rich_chain(dice, layers, {});
  const int64_t least = plan::solve_rotor(table, 0, {.threads = 1}).least_bytes;
  const int64_t limit =
      dice.chance(50) ? least : dice.between(least, std::max(least, keep_all_bytes(table)));
  const plan::RotorAnswer answer = plan::solve_rotor(table, limit, {.threads = 1});
  const HoldingsCase held{.rank_of = std::vector<int32_t>(static_cast<size_t>(layers) + 1, 0)};
  return plan::lower(table,
                     answer.operations,
                     static_cast<int32_t>(dice.between(1, 3)),
                     0,
                     dice.chance(85) ? random_holdings(dice, held) : plan::Holdings{});
}

// Ranks that update together.
inline program::Program pipeline_program(Dice& dice) {
  const auto ranks = static_cast<int32_t>(dice.between(2, 3));
  schedule::Schedule schedule = random_synchronous(dice, ranks);
  const plan::CostTable table =
      rich_chain(dice, dice.between(schedule.stages(), schedule.stages() + 1), {});
  const plan::Pipeline pipeline = random_pipeline(dice, table, std::move(schedule));
  const HoldingsCase held{.rank_of = ranks_of_layers(pipeline), .mesh = {.pipeline = ranks}};
  return plan::lower_pipeline(
      table,
      pipeline,
      dice.chance(85) ? random_holdings(dice, held) : bare_holdings(dice, ranks),
      0);
}

// Ranks that move their weights while micro-batches are in flight.
inline program::Program asynchronous_program(Dice& dice) {
  constexpr schedule::Kind kinds[] = {
      schedule::Kind::PipeDream, schedule::Kind::PipeDream2BW, schedule::Kind::PipeMare};
  const auto ranks = static_cast<int32_t>(dice.between(1, 3));
  schedule::Schedule schedule = schedule::make_schedule(
      kinds[dice.between(0, 2)],
      {.ranks = ranks,
       .micro_batches = static_cast<int32_t>(dice.between(ranks, ranks == 1 ? 2 : ranks)),
       .updates = static_cast<int32_t>(dice.between(2, 3))});
  const plan::CostTable table = rich_chain(dice, dice.between(ranks, ranks + 1), {});
  const plan::Pipeline pipeline = random_pipeline(dice, table, std::move(schedule));
  const HoldingsCase held{
      .rank_of = ranks_of_layers(pipeline), .mesh = {.pipeline = ranks}, .ties_ranks = false};
  return plan::lower_pipeline(
      table,
      pipeline,
      dice.chance(85) ? random_holdings(dice, held) : bare_holdings(dice, ranks),
      0);
}

// Of an optimizer that has more to exchange than gradients and weights.
inline plan::UpdateForm random_form(Dice& dice, const program::Program& program) {
  const bool is_sharded = program.shard != program::Shard::None;
  plan::UpdateForm form{.reduces = !program.keeps_gradients() || dice.chance(20)};
  if (is_sharded && (form.reduces || dice.chance(50))) {
    form.lengths = static_cast<int32_t>(dice.between(1, 2));
  }
  if (!form.reduces) {
    // Replicas that divide something neither move apart nor average weights.
    form.average = static_cast<plan::UpdateForm::Average>(is_sharded ? dice.between(1, 2)
                                                                     : dice.between(0, 3));
    form.fills_momentum = is_sharded && dice.chance(70);
    form.fills_alive = is_sharded && dice.chance(70);
  }
  return form;
}
inline std::vector<plan::ExchangeBytes> random_exchange_bytes(Dice& dice,
                                                              const program::Program& program) {
  std::vector<plan::ExchangeBytes> all;
  for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
    plan::ExchangeBytes& bytes = all.emplace_back();
    for (int64_t* one :
         {&bytes.sketches, &bytes.momentum, &bytes.alive, &bytes.average, &bytes.lengths}) {
      *one = dice.between(0, 9);
    }
    for (size_t unit = 0; unit < program.units.size(); ++unit) {
      bytes.shared.push_back(dice.between(0, 9));
    }
  }
  return all;
}

// Replicas of a pipeline, or of one rank; and the costs of its layers.
inline std::pair<program::Program, plan::CostTable> replicated_step(Dice& dice) {
  const auto ranks = static_cast<int32_t>(dice.between(1, 2));
  const auto replicas = static_cast<int32_t>(dice.chance(75) ? 2 : 3);
  schedule::Schedule schedule = random_synchronous(dice, ranks);
  const plan::CostTable table =
      rich_chain(dice, dice.between(schedule.stages(), schedule.stages() + 1), {});
  const plan::Pipeline pipeline = random_pipeline(dice, table, std::move(schedule));
  const program::Shard shard = program::kShards[static_cast<size_t>(dice.between(0, 3))];
  const plan::Holdings holdings = random_holdings(dice,
                                                  {.rank_of = ranks_of_layers(pipeline),
                                                   .mesh = {.data = replicas, .pipeline = ranks},
                                                   .shard = shard});
  plan::Sharding sharding{.replicas = replicas, .shard = shard, .keeps_gathered = dice.chance(30)};
  for (const program::Unit& unit : holdings.units) {
    plan::UnitCost cost{.unit = unit,
                        .gathered_bytes = dice.between(0, 9),
                        .bucket_bytes = dice.between(0, 9),
                        .gather_s = static_cast<double>(dice.between(0, 5)),
                        .reduce_s = static_cast<double>(dice.between(0, 5))};
    for (int32_t replica = 0; replica < replicas; ++replica) {
      cost.gather_sent.push_back(dice.between(0, 9));
      cost.reduce_sent.push_back(dice.between(0, 9));
    }
    sharding.units.push_back(std::move(cost));
  }
  program::Program program = plan::finish_program(
      plan::shard(plan::write_turns(table, pipeline), sharding), holdings, pipeline.link, 0);
  return {std::move(program), table};
}
inline program::Program replicated_program(Dice& dice) {
  const program::Program program = replicated_step(dice).first;
  return dice.chance(50) && !program.units.empty()
             ? plan::write_exchanges(program,
                                     random_form(dice, program),
                                     random_exchange_bytes(dice, program),
                                     plan::UpdateLinks{{.latency_s = 1}, {.latency_s = 1}})
             : program;
}

// A loss without a gradient, by the ranks of any step.
inline program::Program evaluation_program(Dice& dice) {
  const auto micro_batches = static_cast<int32_t>(dice.between(1, 3));
  if (dice.chance(60)) {
    const auto [step, table] = replicated_step(dice);
    return plan::write_evaluation(step, table, micro_batches);
  }
  const auto ranks = static_cast<int32_t>(dice.between(1, 3));
  schedule::Schedule schedule = random_synchronous(dice, ranks);
  const plan::CostTable table =
      rich_chain(dice, dice.between(schedule.stages(), schedule.stages() + 1), {});
  const plan::Pipeline pipeline = random_pipeline(dice, table, std::move(schedule));
  const HoldingsCase held{.rank_of = ranks_of_layers(pipeline), .mesh = {.pipeline = ranks}};
  return plan::write_evaluation(plan::lower_pipeline(table,
                                                     pipeline,
                                                     dice.chance(85) ? random_holdings(dice, held)
                                                                     : bare_holdings(dice, ranks),
                                                     0),
                                table,
                                micro_batches);
}

// The i-th, of all sorts in turn; replicas have most that can go wrong.
inline program::Program sound_program(Dice& dice, int i) {
  constexpr program::Program (*makers[])(Dice&) = {recomputed_program,
                                                   pipeline_program,
                                                   asynchronous_program,
                                                   asynchronous_program,
                                                   replicated_program,
                                                   replicated_program,
                                                   replicated_program,
                                                   replicated_program,
                                                   evaluation_program};
  program::Program program = makers[i % 9](dice);
  vary(program, dice);
  limit_exactly(program, dice);
  return program;
}

}  // namespace penstock::test
