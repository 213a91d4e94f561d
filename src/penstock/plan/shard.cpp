#include "penstock/plan/shard.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "penstock/base/error.h"

namespace penstock::plan {

namespace {

using program::Instruction;
using program::Op;
using program::RankProgram;
using program::Shard;
using program::ValueId;
using program::ValueKind;

constexpr int32_t kAllMicroBatches = -1;

bool has(const std::vector<int32_t>& list, int32_t one) {
  return std::find(list.begin(), list.end(), one) != list.end();
}

bool are_neighbours(int32_t layer, int32_t other) {
  return std::abs(layer - other) <= 1;
}

// The list of one rank of the pipeline, which becomes that of all replicas of the rank. It is taken
// as work at layers (forward, loss, backward, input gradient, weight gradient) with gaps between: gap
// i is before work i, the last one after all work.
class StageSharding {
 public:
  StageSharding(const program::Program& pipeline,
                const RankProgram& rank,
                const Sharding& sharding,
                const std::vector<std::vector<int32_t>>& units_of,
                int32_t group)
      : sharding_(sharding),
        is_evaluation_(pipeline.is_evaluation()),
        loss_index_(pipeline.loss_index()),
        units_of_(units_of),
        group_(group),
        line_{program::ResourceKind::Line, group},
        after_(rank) {
    after_.instructions.clear();
    gaps_.emplace_back();
    for (const Instruction& instruction : rank.instructions) {
      if (layer_of(instruction) < 0) {
        gaps_.back().others.push_back(instruction);
      } else {
        work_.push_back(instruction);
        gaps_.emplace_back();
      }
    }
  }

  RankProgram run() {
    if (sharding_.shard == Shard::Parameters) {
      plan_gathers();
    }
    if (is_evaluation_) {
      // It has no gradients.
    } else if (sharding_.shard == Shard::None || sharding_.shard == Shard::Optimizer) {
      plan_one_reduce_of_each();
    } else {
      plan_buckets();
    }
    for (size_t i = 0; i < gaps_.size(); ++i) {
      emit_gap(gaps_[i]);
      if (i < work_.size()) {
        emit(work_[i]);
      }
    }
    return std::move(after_);
  }

 private:
  struct Gap {
    std::vector<Instruction> reduces, gathers;
    std::vector<ValueId> drops;
    std::vector<Instruction> others;  // of the pipeline itself
  };

  // -1 for what is no work at a layer.
  int32_t layer_of(const Instruction& instruction) const {
    return !program::is_at_layer(instruction.op) ? -1
           : instruction.op == Op::Loss          ? loss_index_
                                                 : instruction.layer;
  }
  const std::vector<int32_t>& units_of(const Instruction& work) const {
    return units_of_[static_cast<size_t>(layer_of(work))];
  }
  // Those of it that have gradients.
  std::vector<int32_t> learning_units_of(const Instruction& work) const {
    std::vector<int32_t> units = units_of(work);
    std::erase_if(units, [&](int32_t unit) { return cost(unit).unit.is_frozen; });
    return units;
  }
  const UnitCost& cost(int32_t unit) const { return sharding_.units[static_cast<size_t>(unit)]; }

  ValueId make(ValueKind kind, int32_t unit, int32_t micro_batch, int64_t bytes) {
    after_.values.push_back(
        {.kind = kind, .unit = unit, .micro_batch = micro_batch, .bytes = bytes});
    return static_cast<ValueId>(after_.values.size() - 1);
  }

  // Whose weights it needs.
  std::vector<int32_t> weights_of(const Instruction& work) const {
    std::vector<int32_t> units = units_of(work);
    std::erase_if(units, [&](int32_t unit) {
      return !cost(unit).unit.is_needed_for(work.op, layer_of(work));
    });
    return units;
  }

  // Indices of work that needs weights.
  std::vector<size_t> find_uses() const {
    std::vector<size_t> uses;
    for (size_t i = 0; i < work_.size(); ++i) {
      if (!weights_of(work_[i]).empty()) {
        uses.push_back(i);
      }
    }
    return uses;
  }

  // Weights for work `next` may be there from work `from` on.
  bool is_near(size_t from, size_t next) const {
    const int32_t layer = layer_of(work_[next]);
    return std::all_of(
        work_.begin() + static_cast<int64_t>(from),
        work_.begin() + static_cast<int64_t>(next),
        [&](const Instruction& one) { return are_neighbours(layer_of(one), layer); });
  }

  void plan_gathers() {
    const std::vector<size_t> uses = find_uses();
    std::map<int32_t, size_t> last_use;  // of each unit
    for (const size_t use : uses) {
      for (const int32_t unit : weights_of(work_[use])) {
        last_use[unit] = use;
      }
    }
    std::map<int32_t, ValueId> gathered;  // live, by unit
    const auto gather = [&](size_t gap, const Instruction& use) {
      for (const int32_t unit : weights_of(use)) {
        if (!gathered.contains(unit)) {
          gathered[unit] = add_gather(gaps_[gap], unit, use.micro_batch);
        }
      }
    };
    for (size_t i = 0; i < uses.size(); ++i) {
      Instruction& use = work_[uses[i]];
      gather(uses[i], use);  // unless that was done ahead
      const bool is_last = i + 1 == uses.size();
      const bool is_ahead = !is_last && (sharding_.keeps_gathered || is_near(uses[i], uses[i + 1]));
      if (is_ahead) {
        gather(uses[i], work_[uses[i + 1]]);
      }
      for (const int32_t unit : weights_of(use)) {
        use.reads.push_back(gathered.at(unit));
        const bool stays = sharding_.keeps_gathered
                               ? last_use.at(unit) > uses[i]
                               : is_ahead && has(weights_of(work_[uses[i + 1]]), unit);
        if (!stays) {
          use.frees.push_back(gathered.at(unit));
          gathered.erase(unit);
        }
      }
    }
  }

  ValueId add_gather(Gap& gap, int32_t unit, int32_t micro_batch) {
    const int64_t bytes = cost(unit).gathered_bytes;
    const ValueId weights = make(ValueKind::Gathered, unit, micro_batch, bytes);
    gap.gathers.push_back({.op = Op::Gather,
                           .units = {unit},
                           .micro_batch = micro_batch,
                           .group = group_,
                           .makes = {weights},
                           .resource = line_,
                           .seconds = cost(unit).gather_s,
                           .working_bytes = bytes});
    return weights;
  }

  // Right after the last contribution to each unit.
  void plan_one_reduce_of_each() {
    std::map<int32_t, size_t> last;
    for (size_t i = 0; i < work_.size(); ++i) {
      if (work_[i].op != Op::Forward && work_[i].op != Op::BackwardInput) {
        for (const int32_t unit : learning_units_of(work_[i])) {
          last[unit] = i;
        }
      }
    }
    for (const auto& [unit, work] : last) {
      add_reduce(gaps_[work + 1], unit, kAllMicroBatches, {});
    }
  }

  void plan_buckets() {
    // Made by the input gradient, completed by the weight gradient; by layer and micro-batch.
    std::map<std::pair<int32_t, int32_t>, std::vector<ValueId>> begun;
    for (size_t i = 0; i < work_.size(); ++i) {
      Instruction& work = work_[i];
      const std::pair place{work.layer, work.micro_batch};
      if (work.op == Op::BackwardInput) {
        begun[place] = make_buckets(work);
      } else if (work.op == Op::BackwardWeight) {
        work.updates.insert(work.updates.end(), begun[place].begin(), begun[place].end());
        reduce_and_drop(i, begun[place]);
      } else if (work.op == Op::Backward || work.op == Op::Loss) {
        reduce_and_drop(i, make_buckets(work));
      }
    }
  }

  std::vector<ValueId> make_buckets(Instruction& work) {
    std::vector<ValueId> buckets;
    for (const int32_t unit : learning_units_of(work)) {
      const int64_t bytes = cost(unit).bucket_bytes;
      buckets.push_back(make(ValueKind::Bucket, unit, work.micro_batch, bytes));
      work.makes.push_back(buckets.back());
      work.working_bytes += bytes;
    }
    return buckets;
  }

  void reduce_and_drop(size_t work, const std::vector<ValueId>& buckets) {
    const std::vector<int32_t> units = learning_units_of(work_[work]);
    for (size_t i = 0; i < buckets.size(); ++i) {
      add_reduce(gaps_[work + 1], units[i], work_[work].micro_batch, {buckets[i]});
    }
    // The bucket stays while a neighbour works, so that its reduce runs beside that work; the Drop
    // waits for the reduce. with_sharding() counts one such bucket.
    const bool stays =
        work + 1 < work_.size() && are_neighbours(layer_of(work_[work]), layer_of(work_[work + 1]));
    std::vector<ValueId>& drops = gaps_[work + (stays ? 2 : 1)].drops;
    drops.insert(drops.end(), buckets.begin(), buckets.end());
  }

  void add_reduce(Gap& gap, int32_t unit, int32_t micro_batch, std::vector<ValueId> bucket) {
    gap.reduces.push_back({.op = Op::Reduce,
                           .units = {unit},
                           .micro_batch = micro_batch,
                           .group = group_,
                           .scatters = sharding_.shard != Shard::None,
                           .reads = std::move(bucket),
                           .resource = line_,
                           .seconds = cost(unit).reduce_s});
  }

  // Reduces start; sends go out, since peers wait for them; the Drop waits for the reduces; gathers
  // start in what it freed; the rest, receives among it, comes last.
  void emit_gap(const Gap& gap) {
    const auto waits_for_nobody = [](const Instruction& one) { return one.op == Op::Send; };
    const auto rest = std::find_if_not(gap.others.begin(), gap.others.end(), waits_for_nobody);
    emit_all(gap.reduces);
    emit_all({gap.others.begin(), rest});
    if (!gap.drops.empty()) {
      emit({.op = Op::Drop, .frees = gap.drops});
    }
    emit_all(gap.gathers);
    for (auto other = rest; other != gap.others.end(); ++other) {
      emit(*other);
      // With Shard::Parameters no replica keeps whole weights: each use gathers its own.
      const bool keeps_whole_weights =
          sharding_.shard == Shard::Optimizer || sharding_.shard == Shard::Gradients;
      if (other->op == Op::Step && keeps_whole_weights) {
        gather_moved();
      }
    }
  }

  // Every replica has moved its slices of the weights.
  void gather_moved() {
    std::vector<bool> is_own(sharding_.units.size(), false);
    for (const Instruction& work : work_) {
      for (const int32_t unit : learning_units_of(work)) {
        is_own[static_cast<size_t>(unit)] = true;
      }
    }
    for (size_t unit = 0; unit < is_own.size(); ++unit) {
      if (is_own[unit]) {
        emit({.op = Op::Gather,
              .units = {static_cast<int32_t>(unit)},
              .group = group_,
              .resource = line_,
              .seconds = sharding_.units[unit].gather_s});
      }
    }
  }

  void emit_all(const std::vector<Instruction>& instructions) {
    for (const Instruction& instruction : instructions) {
      emit(instruction);
    }
  }
  void emit(Instruction instruction) { after_.instructions.push_back(std::move(instruction)); }

  const Sharding& sharding_;
  const bool is_evaluation_;
  const int32_t loss_index_;
  const std::vector<std::vector<int32_t>>& units_of_;
  const int32_t group_;
  const program::Resource line_;
  RankProgram after_;
  std::vector<Instruction> work_;
  std::vector<Gap> gaps_;  // one more than work
};

int64_t sent_by(const std::vector<int64_t>& sent, int32_t replica) {
  return sent.empty() ? 0 : sent.at(static_cast<size_t>(replica));
}

// Of one rank of the mesh. Its peers are those of the same replica.
RankProgram replica_of(RankProgram stage,
                       const comm::Mesh& mesh,
                       const Sharding& sharding,
                       int32_t replica) {
  for (Instruction& instruction : stage.instructions) {
    if (is_transfer(instruction.op)) {
      instruction.resource.index =
          mesh.rank_at({.data = replica, .pipeline = instruction.resource.index});
    } else if (is_collective(instruction.op)) {
      const UnitCost& unit = sharding.units[static_cast<size_t>(instruction.units[0])];
      instruction.sent_bytes =
          sent_by(instruction.op == Op::Gather ? unit.gather_sent : unit.reduce_sent, replica);
    }
  }
  return stage;
}

}  // namespace

std::vector<program::Unit> Sharding::program_units() const {
  std::vector<program::Unit> all;
  for (const UnitCost& unit : units) {
    all.push_back(unit.unit);
  }
  return all;
}

namespace {

// True before the passes "hold" and "update" have run.
bool holds_nothing(const program::Program& pipeline) {
  return pipeline.groups.empty() &&
         std::all_of(pipeline.ranks.begin(), pipeline.ranks.end(), [](const RankProgram& rank) {
           const auto is_of_update = [](const Instruction& one) { return one.op == Op::Squares; };
           return rank.persistent.empty() &&
                  std::none_of(rank.instructions.begin(), rank.instructions.end(), is_of_update);
         });
}

}  // namespace

program::Program shard(const program::Program& pipeline, const Sharding& sharding) {
  PENSTOCK_CHECK(pipeline.replicas() == 1 && pipeline.updates <= 1 && pipeline.units.empty(),
                 "a program of ",
                 pipeline.replicas(),
                 " replicas and ",
                 pipeline.updates,
                 " updates is to be replicated");
  PENSTOCK_CHECK(holds_nothing(pipeline), "a program that holds something is to be replicated");
  if (sharding.replicas == 1) {
    return pipeline;
  }
  program::Program result = pipeline;
  result.ranks.clear();
  result.mesh.data = sharding.replicas;
  result.shard = sharding.shard;
  const int32_t group = result.add_group(comm::along(comm::Axis::Data));
  const std::vector<std::vector<int32_t>> units_of =
      program::units_by_layer(sharding.program_units(), pipeline.loss_index());
  std::vector<RankProgram> stages;
  for (const RankProgram& rank : pipeline.ranks) {
    stages.push_back(StageSharding(pipeline, rank, sharding, units_of, group).run());
  }
  for (int32_t rank = 0; rank < result.mesh.ranks(); ++rank) {
    result.ranks.push_back(replica_of(stages[static_cast<size_t>(result.stage_of(rank))],
                                      result.mesh,
                                      sharding,
                                      result.replica_of(rank)));
  }
  return result;
}

SentBytes count_sent(const program::Program& program) {
  SentBytes most;
  for (const RankProgram& rank : program.ranks) {
    SentBytes sent;
    std::vector<bool> was_gathered(program.units.size(), false);
    for (const Instruction& one : rank.instructions) {
      const bool is_of_replicas =
          is_collective(one.op) &&
          !program.groups[static_cast<size_t>(one.group)].axes.contains(comm::Axis::Pipeline);
      if (!is_of_replicas) {
        continue;
      }
      sent.all += one.sent_bytes;
      if (one.op == Op::Gather && !one.units.empty()) {
        const auto unit = static_cast<size_t>(one.units[0]);
        sent.gathered_again += was_gathered[unit] ? one.sent_bytes : 0;
        was_gathered[unit] = true;
      }
    }
    most = sent.all > most.all ? sent : most;
  }
  return most;
}

}  // namespace penstock::plan
