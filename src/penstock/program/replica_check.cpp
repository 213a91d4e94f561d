#include "penstock/program/replica_check.h"

#include <algorithm>
#include <functional>

#include "penstock/base/error.h"

namespace penstock::program {

namespace {

bool may_need_weights(Op op) {
  return op == Op::Forward || op == Op::Loss || op == Op::Backward || op == Op::BackwardInput;
}

bool makes_gradients(Op op) {
  return op == Op::Loss || op == Op::Backward || op == Op::BackwardInput;
}

}  // namespace

std::optional<Violation> find_wrong_units(const Program& program) {
  const auto refuse = [](const std::string& what) {
    return Violation{.text = cat("the program: ", what)};
  };
  if (program.replicas < 1 || program.ranks.size() % static_cast<size_t>(program.replicas) != 0) {
    return refuse(cat(program.ranks.size(), " ranks in ", program.replicas, " replicas"));
  }
  if (program.replicas == 1 && (!program.units.empty() || program.shard != Shard::None)) {
    return refuse("one replica shares nothing; it has no units and no shard");
  }
  if (program.replicas > 1 && program.updates > 1) {
    return refuse(cat(program.updates, " updates; replicas have one"));
  }
  if (program.step_reduces && (program.replicas == 1 || !program.keeps_gradients())) {
    return refuse("the step reduces gradients that no rank has whole, or that have no replicas");
  }
  for (const Unit& unit : program.units) {
    const std::vector<int32_t>& layers = unit.layers;
    const bool is_ascending =
        std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) == layers.end();
    if (layers.empty() || !is_ascending || layers.front() < 0 ||
        layers.back() > program.loss_index()) {
      return refuse(
          cat("the layers of unit ", unit.name, " are none, out of order or out of range"));
    }
    const std::vector<int32_t>& forward = unit.forward_only;
    const bool is_sorted =
        std::adjacent_find(forward.begin(), forward.end(), std::greater_equal<>()) == forward.end();
    const bool is_in_order =
        is_sorted && std::includes(layers.begin(), layers.end(), forward.begin(), forward.end());
    if (!is_in_order || (!forward.empty() && forward.back() == program.loss_index())) {
      return refuse(cat("unit ",
                        unit.name,
                        " names layers that need its weights forward alone, and they are out of "
                        "order, none of its own, or the loss"));
    }
  }
  return std::nullopt;
}

ReplicaCheck::ReplicaCheck(const RankLives& lives)
    : lives_(lives),
      program_(lives.program()),
      units_of_(program_.layers.size() + 1),
      is_own_(program_.units.size(), false),
      reduced_(program_.units.size(), 0),
      gathered_(program_.units.size(), 0),
      is_complete_(lives.rank().values.size(), false),
      is_reduced_(lives.rank().values.size(), false) {
  for (size_t unit = 0; unit < program_.units.size(); ++unit) {
    for (const int32_t layer : program_.units[unit].layers) {
      units_of_[static_cast<size_t>(layer)].push_back(static_cast<int32_t>(unit));
    }
  }
  for (const Instruction& instruction : lives.rank().instructions) {
    const bool is_loss = instruction.op == Op::Loss;
    const int32_t layer = is_loss ? program_.loss_index() : instruction.layer;
    if (may_need_weights(instruction.op) && layer >= 0 && layer <= program_.loss_index()) {
      for (const int32_t unit : units_of(layer)) {
        is_own_[static_cast<size_t>(unit)] = true;
      }
    }
  }
}

const std::string& ReplicaCheck::unit_name(int32_t unit) const {
  return program_.units[static_cast<size_t>(unit)].name;
}

ReplicaCheck::Extra ReplicaCheck::check_units_of(const Instruction& instruction,
                                                 int32_t layer) const {
  Extra extra;
  for (const int32_t unit : units_of(layer)) {
    const bool needs_weights =
        program_.units[static_cast<size_t>(unit)].is_needed_for(instruction.op, layer);
    if (program_.shard == Shard::Parameters && needs_weights) {
      // Whichever is there: the weights do not move before the step.
      const auto is_gathered = [&](ValueId id) {
        return lives_.value(id).kind == ValueKind::Gathered && lives_.value(id).layer == unit;
      };
      if (std::none_of(instruction.reads.begin(), instruction.reads.end(), is_gathered)) {
        lives_.refuse("reads no gathered weights of ", unit_name(unit));
      }
      ++extra.reads;
    }
    if (program_.keeps_gradients()) {
      continue;
    }
    if (makes_gradients(instruction.op)) {
      lives_.made_of(instruction, ValueKind::Bucket, unit);
      ++extra.makes;
    } else if (instruction.op == Op::BackwardWeight) {
      const ValueId bucket = lives_.read_of(instruction, ValueKind::Bucket, unit);
      const Instruction& input_half = lives_.maker(bucket);
      if (input_half.op != Op::BackwardInput || input_half.layer != layer) {
        lives_.refuse("reads ", lives_.name(bucket), ", which its input half has not made");
      }
      ++extra.reads;
    }
  }
  return extra;
}

void ReplicaCheck::contribute(const Instruction& instruction, int32_t layer) {
  for (const int32_t unit : units_of(layer)) {
    if (!program_.keeps_gradients()) {
      const bool is_half = instruction.op == Op::BackwardWeight;
      const ValueId bucket = is_half ? lives_.read_of(instruction, ValueKind::Bucket, unit)
                                     : lives_.made_of(instruction, ValueKind::Bucket, unit);
      is_complete_[static_cast<size_t>(bucket)] = true;
    } else if (reduced_[static_cast<size_t>(unit)] > 0) {
      lives_.refuse("adds to the gradients of ", unit_name(unit), ", which were reduced before");
    }
  }
}

void ReplicaCheck::check_frees(const Instruction& instruction) const {
  if (is_collective(instruction.op) && !instruction.frees.empty()) {
    lives_.refuse(
        "frees ", lives_.name(instruction.frees[0]), "; a gather or reduce frees nothing");
  }
  for (const ValueId id : instruction.frees) {
    const ValueKind kind = lives_.value(id).kind;
    if (kind == ValueKind::Bucket && !is_reduced_[static_cast<size_t>(id)]) {
      lives_.refuse("frees ", lives_.name(id), ", which was not reduced");
    }
    if (kind == ValueKind::Reduced && instruction.op != Op::Step) {
      lives_.refuse("frees ", lives_.name(id), "; the step does that");
    }
  }
}

void ReplicaCheck::check_peer(int32_t peer) const {
  if (program_.replica_of(peer) != program_.replica_of(lives_.number())) {
    lives_.refuse("rank ", peer, " is of another replica");
  }
}

void ReplicaCheck::check_collective(const Instruction& instruction) const {
  if (program_.replicas == 1) {
    lives_.refuse("there are no replicas");
  }
  if (instruction.layer < 0 || static_cast<size_t>(instruction.layer) >= program_.units.size()) {
    lives_.refuse("there is no unit ", instruction.layer);
  }
  if (!is_own_[static_cast<size_t>(instruction.layer)]) {
    lives_.refuse("the rank runs no layer of it");
  }
}

// One that is of all micro-batches together has no number of one.
void ReplicaCheck::check_is_for_all(const Instruction& instruction) const {
  if (instruction.micro_batch != -1) {
    lives_.refuse("it is of all micro-batches, and names one");
  }
}

void ReplicaCheck::check_gather(const Instruction& instruction) {
  check_collective(instruction);
  if (program_.shard == Shard::None) {
    lives_.refuse("every replica has and moves all weights; there is nothing to gather");
  }
  if (program_.shard == Shard::Parameters) {
    if (has_stepped_) {
      lives_.refuse("comes after the step");
    }
    lives_.check_counts(instruction, 0, 1);
    lives_.made_of(instruction, ValueKind::Gathered, instruction.layer);
    return;
  }
  if (!has_stepped_) {
    lives_.refuse("comes before the step; until then every replica has all weights");
  }
  check_is_for_all(instruction);
  lives_.check_counts(instruction, 0, 0);
  if (gathered_[static_cast<size_t>(instruction.layer)]++ > 0) {
    lives_.refuse("is gathered a second time after the step");
  }
}

void ReplicaCheck::check_reduce(const Instruction& instruction) {
  check_collective(instruction);
  if (has_stepped_) {
    lives_.refuse("comes after the step");
  }
  if (program_.step_reduces) {
    lives_.refuse("the step reduces the gradients itself");
  }
  if (program_.keeps_gradients()) {
    reduce_resident(instruction);
  } else {
    reduce_bucket(instruction);
  }
}

void ReplicaCheck::reduce_resident(const Instruction& instruction) {
  check_is_for_all(instruction);
  lives_.check_counts(instruction, 0, 1);
  const Value& done = lives_.value(instruction.makes[0]);
  if (done.kind != ValueKind::Reduced || done.layer != instruction.layer || done.micro_batch != 0) {
    lives_.refuse("does not make r", instruction.layer, ".0");
  }
  if (reduced_[static_cast<size_t>(instruction.layer)]++ > 0) {
    lives_.refuse("is reduced a second time");
  }
}

void ReplicaCheck::reduce_bucket(const Instruction& instruction) {
  lives_.check_counts(instruction, 1, 1);
  const ValueId bucket = lives_.read_of(instruction, ValueKind::Bucket, instruction.layer);
  lives_.made_of(instruction, ValueKind::Reduced, instruction.layer);
  if (!is_complete_[static_cast<size_t>(bucket)]) {
    lives_.refuse("comes before the weight half that adds to ", lives_.name(bucket));
  }
  if (is_reduced_[static_cast<size_t>(bucket)]) {
    lives_.refuse("reduces ", lives_.name(bucket), " a second time");
  }
  is_reduced_[static_cast<size_t>(bucket)] = true;
}

void ReplicaCheck::require_reduced() const {
  if (program_.step_reduces) {
    return;
  }
  if (program_.keeps_gradients()) {
    for (size_t unit = 0; unit < is_own_.size(); ++unit) {
      if (is_own_[unit] && reduced_[unit] == 0) {
        lives_.refuse("the gradients of ", program_.units[unit].name, " are not reduced");
      }
    }
    return;
  }
  for (size_t i = 0; i < is_reduced_.size(); ++i) {
    const ValueId id = static_cast<ValueId>(i);
    if (lives_.value(id).kind == ValueKind::Bucket && lives_.is_live(id) && !is_reduced_[i]) {
      lives_.refuse(lives_.name(id), " is not reduced");
    }
  }
}

void ReplicaCheck::check_step(const Instruction& instruction) {
  require_reduced();
  const auto marked = [&](const std::vector<ValueId>& list) {
    std::vector<bool> marks(lives_.rank().values.size(), false);
    for (const ValueId id : list) {
      marks[static_cast<size_t>(id)] = true;
    }
    return marks;
  };
  const std::vector<bool> is_read = marked(instruction.reads), is_freed = marked(instruction.frees);
  size_t expected = 0;
  for (size_t i = 0; i < is_read.size(); ++i) {
    const ValueId id = static_cast<ValueId>(i);
    if (lives_.value(id).kind != ValueKind::Reduced || !(lives_.is_live(id) || is_freed[i])) {
      continue;
    }
    if (!is_read[i] || !is_freed[i]) {
      lives_.refuse("does not read and free ", lives_.name(id), "; it needs every reduce done");
    }
    ++expected;
  }
  lives_.check_counts(instruction, expected, 0);
  has_stepped_ = true;
}

void ReplicaCheck::check_end() const {
  if (program_.shard != Shard::Optimizer && program_.shard != Shard::Gradients) {
    return;
  }
  for (size_t unit = 0; unit < is_own_.size(); ++unit) {
    if (is_own_[unit] && gathered_[unit] == 0) {
      lives_.refuse("the moved pieces of ", program_.units[unit].name, " are not gathered");
    }
  }
}

}  // namespace penstock::program
