#include "penstock/program/unit_check.h"

#include <algorithm>
#include <functional>
#include <set>

#include "penstock/base/error.h"

namespace penstock::program {

namespace {

bool has(const std::vector<ValueId>& list, ValueId id) {
  return std::find(list.begin(), list.end(), id) != list.end();
}

bool is_ascending(const std::vector<int32_t>& list) {
  return std::adjacent_find(list.begin(), list.end(), std::greater_equal<>()) == list.end();
}

// -1 for what is no work at a layer.
int32_t layer_of(const Program& program, const Instruction& instruction) {
  const bool is_loss = instruction.op == Op::Loss;
  const int32_t layer = is_loss ? program.loss_index() : instruction.layer;
  const bool is_in_range = layer >= 0 && layer <= program.loss_index();
  return is_at_layer(instruction.op) && is_in_range ? layer : -1;
}

std::string wrong_layers(const Program& program, const Unit& unit) {
  const std::vector<int32_t>& layers = unit.layers;
  if (layers.empty() || !is_ascending(layers) || layers.front() < 0 ||
      layers.back() > program.loss_index()) {
    return cat("the layers of unit ", unit.name, " are none, out of order or out of range");
  }
  const std::vector<int32_t>& forward = unit.forward_only;
  if (!is_ascending(forward) ||
      !std::includes(layers.begin(), layers.end(), forward.begin(), forward.end()) ||
      (!forward.empty() && forward.back() == program.loss_index())) {
    return cat("unit ",
               unit.name,
               " names layers that need its weights forward alone, and they are out of order, none "
               "of its own, or the loss");
  }
  if (unit.elements < 0) {
    return cat("unit ", unit.name, " has ", unit.elements, " elements");
  }
  return "";
}

// The slices that a rank's step moves; nothing where it does not hold the unit.
const std::vector<Slice>* owned_slices(const RankProgram& rank, int32_t unit) {
  for (const ValueId id : rank.persistent) {
    if (id >= 0 && static_cast<size_t>(id) < rank.values.size() &&
        rank.value(id).kind == ValueKind::State && rank.value(id).unit == unit) {
      return &rank.value(id).slices;
    }
  }
  return nullptr;
}

// Where replicas divide a unit, each element is moved by one of them.
std::string wrong_slices(const Program& program, int32_t number) {
  const Unit& unit = program.units[static_cast<size_t>(number)];
  for (int32_t first = 0; first < program.mesh.ranks(); ++first) {
    if (program.replica_of(first) != 0) {
      continue;
    }
    std::vector<Slice> all;
    bool is_held = false;
    for (const int32_t rank : comm::members(program.mesh, comm::along(comm::Axis::Data), first)) {
      const auto* own = owned_slices(program.ranks[static_cast<size_t>(rank)], number);
      is_held = is_held || own != nullptr;
      if (own != nullptr && own->empty() && program.shard != Shard::None) {
        return cat("rank ", rank, " moves all of unit ", unit.name, ", which replicas divide");
      }
      if (own != nullptr) {
        all.insert(all.end(), own->begin(), own->end());
      }
    }
    if (program.shard == Shard::None || !is_held) {
      if (!all.empty()) {
        return cat("unit ", unit.name, " has slices, and nothing is sharded");
      }
      continue;
    }
    std::sort(
        all.begin(), all.end(), [](const Slice& a, const Slice& b) { return a.first < b.first; });
    int64_t end = 0;
    for (const Slice& slice : all) {
      if (slice.count() == 0) {
        continue;
      }
      if (slice.first != end) {
        return cat("the slices of unit ", unit.name, " leave a gap or overlap at element ", end);
      }
      end = slice.end;
    }
    if (end != unit.elements) {
      return cat("the slices of unit ", unit.name, " end at ", end, " of ", unit.elements);
    }
  }
  return "";
}

}  // namespace

std::optional<Violation> find_wrong_units(const Program& program) {
  const auto refuse = [](const std::string& what) {
    return Violation{.text = cat("the program: ", what)};
  };
  if (program.replicas() == 1 && program.shard != Shard::None) {
    return refuse("one replica shares nothing; it has no shard");
  }
  if (program.replicas() > 1 && program.updates > 1) {
    return refuse(cat(program.updates, " updates; replicas have one"));
  }
  if (program.is_apart && (program.replicas() == 1 || program.shard != Shard::None)) {
    return refuse("replicas move apart, and there are none, or they divide what they move");
  }
  for (size_t i = 0; i < program.units.size(); ++i) {
    std::string wrong = wrong_layers(program, program.units[i]);
    if (wrong.empty()) {
      wrong = wrong_slices(program, static_cast<int32_t>(i));
    }
    if (!wrong.empty()) {
      return refuse(wrong);
    }
  }
  return std::nullopt;
}

UnitCheck::UnitCheck(const RankLives& lives)
    : lives_(lives),
      program_(lives.program()),
      units_of_(units_by_layer(program_.units, program_.loss_index())),
      works_at_(program_.layers.size() + 1, 0),
      holdings_(program_.units.size()),
      parts_(lives.rank().values.size()),
      gathered_after_(lives.rank().values.size(), -1) {
  find_ranks();
  for (const Instruction& instruction : lives.rank().instructions) {
    has_own_gradients_ = has_own_gradients_ || instruction.op == Op::Sketch;
    if (const int32_t layer = layer_of(program_, instruction); layer >= 0) {
      works_at_[static_cast<size_t>(layer)] = 1;
      for (const int32_t number : units_of(layer)) {
        holding(number).is_own = true;
      }
    }
  }
  find_holdings();
}

// Which ranks of this pipeline work at layers of a unit: gradients of a unit that several have are
// added up over them.
void UnitCheck::find_ranks() {
  if (program_.units.empty()) {
    return;
  }
  const std::vector<int32_t> pipeline =
      comm::members(program_.mesh, comm::along(comm::Axis::Pipeline), lives_.number());
  for (const int32_t rank : pipeline) {
    std::vector<bool> is_here(program_.units.size(), false);
    for (const Instruction& one : program_.ranks[static_cast<size_t>(rank)].instructions) {
      if (const int32_t layer = layer_of(program_, one); layer >= 0) {
        for (const int32_t number : units_of(layer)) {
          is_here[static_cast<size_t>(number)] = true;
        }
      }
    }
    for (size_t i = 0; i < is_here.size(); ++i) {
      if (is_here[i]) {
        holdings_[i].ranks.push_back(rank);
      }
    }
  }
}

void UnitCheck::find_holdings() {
  for (const ValueId id : lives_.rank().persistent) {
    if (id < 0 || static_cast<size_t>(id) >= lives_.rank().values.size()) {
      continue;  // begin() of the lives refuses it
    }
    const Value& value = lives_.value(id);
    if (value.kind == ValueKind::RankState) {
      rank_state_.push_back(id);
    }
    if (!info_of(value.kind).has_unit || static_cast<size_t>(value.unit) >= holdings_.size()) {
      continue;
    }
    Holding& held = holding(value.unit);
    ValueId& place = value.kind == ValueKind::Master        ? held.master
                     : value.kind == ValueKind::Compute     ? held.compute
                     : value.kind == ValueKind::GradientSum ? held.sum
                     : value.kind == ValueKind::State
                         ? held.state
                         : held.shares.try_emplace(value.layer, kNone).first->second;
    if (!held.is_own) {
      lives_.refuse("the rank holds ", lives_.name(id), " and runs no layer of its unit");
    }
    if (place != kNone) {
      lives_.refuse(lives_.name(id), " is held beside ", lives_.name(place), "; it is there once");
    }
    place = id;
  }
  for (size_t i = 0; i < holdings_.size(); ++i) {
    const Holding& held = holdings_[i];
    const auto number = static_cast<int32_t>(i);
    if (held.is_own && (held.master == kNone || held.sum == kNone || held.state == kNone)) {
      lives_.refuse("the rank works at ",
                    unit(number).name,
                    " and does not hold its weights, gradient and state");
    }
    if (held.is_own) {
      check_forms(number);
    }
    if (held.ranks.size() > 1 && !unit(number).is_shared) {
      lives_.refuse("several stages have ",
                    unit(number).name,
                    ", and its layers do not share its parameters");
    }
    for (const auto& [layer, share] : held.shares) {
      if (!unit(number).is_shared || !unit(number).has_layer(layer)) {
        lives_.refuse(lives_.name(share), " is a share of what no layers share");
      }
    }
  }
}

// Which of them are whole, and which are the slices that the rank's step moves.
void UnitCheck::check_forms(int32_t number) const {
  const Holding& held = holding(number);
  const std::vector<Slice>& own = lives_.value(held.state).slices;
  const auto require_slices = [&](ValueId id, const std::vector<Slice>& wanted) {
    if (lives_.value(id).slices != wanted) {
      lives_.refuse(lives_.name(id),
                    wanted.empty() ? " has slices; it is there whole"
                                   : cat(" has other slices than ", lives_.name(held.state)));
    }
  };
  const std::vector<Slice> whole;
  if (held.compute != kNone) {
    require_slices(held.compute, whole);
  }
  require_slices(held.sum, program_.keeps_gradients() ? whole : own);
  for (const auto& [layer, share] : held.shares) {
    require_slices(share, program_.keeps_gradients() ? whole : own);
  }
  if (held.compute != kNone && program_.shard == Shard::Parameters) {
    lives_.refuse(lives_.name(held.compute), " is a copy of what layers see gathered");
  }
  // Layers see weights that are whole: the copy, or the master itself.
  const bool may_be_whole = program_.shard != Shard::Parameters;
  const bool must_be_whole = may_be_whole && held.compute == kNone;
  if (must_be_whole || !(may_be_whole && lives_.value(held.master).slices.empty())) {
    require_slices(held.master, must_be_whole ? whole : own);
  }
}

bool UnitCheck::is_sharded(int32_t number) const {
  return program_.shard != Shard::None && holding(number).state != kNone;
}

bool UnitCheck::meets_replicas() const {
  return program_.replicas() > 1 && !has_own_gradients_;
}

UnitCheck::Parts& UnitCheck::parts(ValueId id) {
  Parts& found = parts_[static_cast<size_t>(id)];
  if (found.update != update_) {
    const Unit& of = unit(lives_.value(id).unit);
    const size_t count = of.layers.size();
    found = {.has = std::vector<uint8_t>(count * static_cast<size_t>(program_.micro_batches), 0),
             .begun = std::vector<uint8_t>(count, 0),
             .update = update_};
  }
  return found;
}

size_t UnitCheck::part_index(int32_t number, int32_t layer, int32_t micro_batch) const {
  const std::vector<int32_t>& layers = unit(number).layers;
  const auto at = std::lower_bound(layers.begin(), layers.end(), layer) - layers.begin();
  return static_cast<size_t>(at) * static_cast<size_t>(program_.micro_batches) +
         static_cast<size_t>(micro_batch);
}

int32_t UnitCheck::only_unit(const Instruction& instruction) const {
  if (instruction.units.size() != 1) {
    lives_.refuse("is of ", instruction.units.size(), " units; it takes one");
  }
  const int32_t number = instruction.units[0];
  if (number < 0 || static_cast<size_t>(number) >= program_.units.size()) {
    lives_.refuse("there is no unit ", number);
  }
  if (!holding(number).is_own) {
    lives_.refuse("the rank runs no layer of it");
  }
  return number;
}

void UnitCheck::require_read(const Instruction& instruction, ValueId id) const {
  if (!has(instruction.reads, id)) {
    lives_.refuse("does not read ", lives_.name(id));
  }
}

void UnitCheck::require_change(const Instruction& instruction, ValueId id, bool sets) const {
  if (!has(sets ? instruction.sets : instruction.updates, id)) {
    lives_.refuse(has(sets ? instruction.updates : instruction.sets, id)
                      ? (sets ? "updates what an earlier update has left in "
                              : "sets, and so loses, what is in ")
                      : (sets ? "does not set " : "does not update "),
                  lives_.name(id));
  }
}

void UnitCheck::require_group(const Instruction& instruction, const comm::RankGroup& group) const {
  const auto index = static_cast<size_t>(instruction.group);
  if (index >= program_.groups.size()) {
    lives_.refuse("there is no group ", instruction.group);
  }
  const comm::RankGroup& found = program_.groups[index];
  if (comm::members(program_.mesh, found, lives_.number()) !=
      comm::members(program_.mesh, group, lives_.number())) {
    lives_.refuse("is over ", found.name, "; it takes the ranks of ", group.name);
  }
}

// What layers see, from step to step.
std::vector<ValueId> UnitCheck::visible_weights(int32_t number) const {
  const Holding& held = holding(number);
  std::vector<ValueId> visible;
  if (held.compute != kNone) {
    visible.push_back(held.compute);
  }
  if (lives_.value(held.master).slices.empty()) {
    visible.push_back(held.master);
  }
  return visible;
}

size_t UnitCheck::check_weights(const Instruction& instruction,
                                int32_t number,
                                bool reads_copy) const {
  if (reads_copy) {
    return 0;
  }
  if (program_.shard == Shard::Parameters) {
    const auto gathered =
        std::find_if(instruction.reads.begin(), instruction.reads.end(), [&](ValueId id) {
          return lives_.value(id).kind == ValueKind::Gathered && lives_.value(id).unit == number;
        });
    if (gathered == instruction.reads.end()) {
      lives_.refuse("reads no gathered weights of ", unit(number).name);
    }
    if (gathered_after_[static_cast<size_t>(*gathered)] != holding(number).steps) {
      lives_.refuse("reads ", lives_.name(*gathered), ", which was gathered before a step");
    }
    return 1;
  }
  if (holding(number).is_partial) {
    lives_.refuse("reads the weights of ", unit(number).name, " before they are gathered again");
  }
  const std::vector<ValueId> visible = visible_weights(number);
  for (const ValueId id : visible) {
    require_read(instruction, id);
  }
  return visible.size();
}

// Where a layer's work adds its gradient.
ValueId UnitCheck::target_of(int32_t number, int32_t layer) const {
  const auto share = holding(number).shares.find(layer);
  return share == holding(number).shares.end() ? holding(number).sum : share->second;
}

// The first work of an update at a layer sets its part of the gradient, later work adds to it; all
// of a gradient that layers share is one part.
void UnitCheck::add_work(const Instruction& instruction,
                         int32_t number,
                         int32_t layer,
                         ValueId target) {
  Parts& into = parts(target);
  const std::vector<int32_t>& layers = unit(number).layers;
  const bool is_one_part =
      unit(number).is_shared && lives_.value(target).kind == ValueKind::GradientSum;
  const auto at = static_cast<size_t>(
      is_one_part ? 0 : std::lower_bound(layers.begin(), layers.end(), layer) - layers.begin());
  require_change(instruction, target, /*sets=*/into.begun[at] == 0);
  into.begun[at] = 1;
  if (into.is_reduced || into.is_exchanged || into.is_done) {
    lives_.refuse(
        "adds to ", lives_.name(target), " after it was ", into.is_done ? "added up" : "reduced");
  }
  if (contributes(instruction.op)) {
    into.has[part_index(number, layer, instruction.micro_batch)] = 1;
  }
}

RankLives::Counts UnitCheck::check_work(const Instruction& instruction,
                                        int32_t layer,
                                        bool reads_copy) {
  RankLives::Counts extra;
  if (work_.is_prepared) {
    lives_.refuse("comes after the update was prepared");
  }
  for (const int32_t number : units_of(layer)) {
    if (unit(number).is_needed_for(instruction.op, layer)) {
      extra.reads += check_weights(instruction, number, reads_copy);
    }
    const bool touches_gradient = instruction.op != Op::Forward && !program_.is_evaluation();
    if (!touches_gradient) {
      continue;
    }
    if (program_.keeps_gradients()) {
      add_work(instruction, number, layer, target_of(number, layer));
      ++extra.changes;
      continue;
    }
    const auto is_bucket = [&](ValueId id) {
      const Value& value = lives_.value(id);
      return value.kind == ValueKind::Bucket && value.unit == number &&
             value.micro_batch == instruction.micro_batch;
    };
    const bool is_second_half = instruction.op == Op::BackwardWeight;
    const std::vector<ValueId>& list = is_second_half ? instruction.updates : instruction.makes;
    const auto bucket = std::find_if(list.begin(), list.end(), is_bucket);
    if (bucket == list.end()) {
      lives_.refuse(
          "does not ", is_second_half ? "update" : "make", " a bucket of ", unit(number).name);
    }
    Parts& into = parts(*bucket);
    if (is_second_half && (lives_.maker(*bucket).op != Op::BackwardInput || into.layer != layer)) {
      lives_.refuse("updates ", lives_.name(*bucket), ", which its input gradient has not made");
    }
    into.layer = layer;
    if (contributes(instruction.op)) {
      into.has[part_index(number, layer, instruction.micro_batch)] = 1;
    }
    (is_second_half ? extra.changes : extra.makes) += 1;
  }
  return extra;
}

// A step may move some units of the rank, and the next step the others.
std::optional<int32_t> UnitCheck::version_of(int32_t layer) const {
  const std::vector<int32_t>& units = units_of(layer);
  for (const int32_t number : units) {
    if (holding(number).steps != holding(units[0]).steps) {
      lives_.refuse("works with the weights of ",
                    unit(units[0]).name,
                    " after ",
                    holding(units[0]).steps,
                    " updates and those of ",
                    unit(number).name,
                    " after ",
                    holding(number).steps);
    }
  }
  return units.empty() ? std::nullopt : std::optional(holding(units[0]).steps);
}

void UnitCheck::check_frees(const Instruction& instruction) const {
  // A gather or reduce on a line may still run when the rank goes on.
  if (instruction.resource.kind == ResourceKind::Line && !instruction.frees.empty()) {
    lives_.refuse(
        "frees ", lives_.name(instruction.frees[0]), "; what runs on a line frees nothing");
  }
  for (const ValueId id : instruction.frees) {
    if (lives_.value(id).kind == ValueKind::Bucket && !parts_[static_cast<size_t>(id)].is_done) {
      lives_.refuse("frees ", lives_.name(id), ", which was not reduced");
    }
  }
}

void UnitCheck::check_peer(int32_t peer) const {
  if (program_.mesh.with(peer, comm::Axis::Pipeline, 0) !=
      program_.mesh.with(lives_.number(), comm::Axis::Pipeline, 0)) {
    lives_.refuse("rank ", peer, " is of another pipeline");
  }
}

void UnitCheck::check_stash(const Instruction& instruction) const {
  size_t reads = 0;
  for (size_t i = 0; i < holdings_.size(); ++i) {
    if (holdings_[i].is_own) {
      if (holdings_[i].steps != update_) {
        lives_.refuse("copies the weights of ",
                      program_.units[i].name,
                      " after ",
                      holdings_[i].steps,
                      " updates and others after ",
                      update_);
      }
      for (const ValueId id : visible_weights(static_cast<int32_t>(i))) {
        require_read(instruction, id);
        ++reads;
      }
    }
  }
  lives_.check_counts(instruction, {.reads = reads, .makes = 1});
}

void UnitCheck::check_gather(const Instruction& instruction) {
  if (instruction.units.empty()) {
    return gather_of_no_unit(instruction);
  }
  const int32_t number = only_unit(instruction);
  require_group(instruction, comm::along(comm::Axis::Data));
  Holding& held = holding(number);
  if (program_.replicas() == 1 || program_.shard == Shard::None) {
    lives_.refuse("every replica has and moves all weights; there is nothing to gather");
  }
  if (program_.shard == Shard::Parameters) {
    lives_.check_counts(instruction, {.reads = 1, .makes = 1});
    require_read(instruction, held.master);
    const Value& made = lives_.value(instruction.makes[0]);
    if (made.kind != ValueKind::Gathered || made.unit != number ||
        made.micro_batch != instruction.micro_batch) {
      lives_.refuse("does not make p", number, ".", instruction.micro_batch);
    }
    gathered_after_[static_cast<size_t>(instruction.makes[0])] = held.steps;
    return;
  }
  if (instruction.micro_batch != -1) {
    lives_.refuse("it is of all micro-batches, and names one");
  }
  if (!held.is_partial) {
    lives_.refuse(held.steps == 0
                      ? "comes before the step; until then every replica has all weights"
                      : "is gathered a second time after the step");
  }
  const bool has_copy = held.compute != kNone;
  lives_.check_counts(instruction, {.reads = has_copy ? size_t{1} : 0, .changes = 1});
  if (has_copy) {
    require_read(instruction, held.master);
  }
  require_change(instruction, has_copy ? held.compute : held.master, /*sets=*/false);
  held.is_partial = false;
}

// All parts that this rank adds to a gradient, or those of one layer.
void UnitCheck::require_local_parts(ValueId id, int32_t number, int32_t layer) {
  const Parts& found = parts(id);
  const int32_t count = program_.micro_batches / program_.updates;
  for (const int32_t one : unit(number).layers) {
    const bool is_elsewhere = lives_.value(id).kind == ValueKind::Share && one != layer;
    const bool is_here = !is_elsewhere && works_at(one);
    for (int32_t i = 0; is_here && i < count; ++i) {
      const int32_t micro_batch = update_ * count + i;
      if (found.has[part_index(number, one, micro_batch)] == 0) {
        lives_.refuse(lives_.name(id),
                      " lacks the part of micro-batch ",
                      micro_batch,
                      " at ",
                      one == program_.loss_index()
                          ? std::string("the loss")
                          : program_.layers[static_cast<size_t>(one)].name);
      }
    }
  }
}

void UnitCheck::check_reduce(const Instruction& instruction) {
  const int32_t number = only_unit(instruction);
  const auto index = static_cast<size_t>(instruction.group);
  if (index >= program_.groups.size()) {
    lives_.refuse("there is no group ", instruction.group);
  }
  if (!program_.groups[index].axes.contains(comm::Axis::Pipeline)) {
    if (program_.replicas() == 1) {
      lives_.refuse("there are no replicas");
    }
    if (has_own_gradients_) {
      lives_.refuse("replicas sketch their own gradients; they are not reduced");
    }
    require_group(instruction, comm::along(comm::Axis::Data));
    return program_.keeps_gradients() ? reduce_over_replicas(instruction, number)
                                      : reduce_bucket(instruction, number);
  }
  reduce_over_stages(instruction, number);
}

void UnitCheck::reduce_over_replicas(const Instruction& instruction, int32_t number) {
  if (instruction.micro_batch != -1) {
    lives_.refuse("it is of all micro-batches, and names one");
  }
  lives_.check_counts(instruction, {.changes = 1});
  const ValueId sum = holding(number).sum;
  require_change(instruction, sum, /*sets=*/false);
  require_local_parts(sum, number, -1);
  if (instruction.scatters != (program_.shard != Shard::None)) {
    lives_.refuse(instruction.scatters ? "scatters, and every replica needs the whole sum"
                                       : "gives the whole sum, and replicas need their slices");
  }
  if (parts(sum).is_reduced) {
    lives_.refuse("is reduced a second time");
  }
  parts(sum).is_reduced = true;
}

void UnitCheck::reduce_bucket(const Instruction& instruction, int32_t number) {
  lives_.check_counts(instruction, {.reads = 1, .changes = 1});
  const ValueId bucket = instruction.reads[0];
  const Value& value = lives_.value(bucket);
  if (value.kind != ValueKind::Bucket || value.unit != number ||
      value.micro_batch != instruction.micro_batch) {
    lives_.refuse("does not read a bucket of ", unit(number).name);
  }
  if (!instruction.scatters) {
    lives_.refuse("gives the whole sum, and replicas need their slices");
  }
  Parts& from = parts(bucket);
  const size_t part = part_index(number, from.layer, value.micro_batch);
  if (from.has[part] == 0) {
    lives_.refuse("comes before the weight gradient that adds to ", lives_.name(bucket));
  }
  if (from.is_done) {
    lives_.refuse("reduces ", lives_.name(bucket), " a second time");
  }
  from.is_done = true;
  const ValueId target = target_of(number, from.layer);
  Parts& into = parts(target);
  if (into.is_done || into.is_exchanged) {
    lives_.refuse("adds to ", lives_.name(target), " after it was added up");
  }
  // Buckets are whole units, so the first sets all of the rank's slices.
  const bool is_first =
      std::none_of(into.begun.begin(), into.begun.end(), [](uint8_t begun) { return begun != 0; });
  require_change(instruction, target, /*sets=*/is_first);
  std::fill(into.begun.begin(), into.begun.end(), uint8_t{1});
  into.has[part] = 1;
  into.is_reduced = true;
}

void UnitCheck::reduce_over_stages(const Instruction& instruction, int32_t number) {
  if (holding(number).ranks.size() < 2) {
    lives_.refuse("no other stage has ", unit(number).name);
  }
  const comm::RankGroup& group = program_.groups[static_cast<size_t>(instruction.group)];
  if (comm::members(program_.mesh, group, lives_.number()) != holding(number).ranks) {
    lives_.refuse("is over ",
                  group.name,
                  "; it takes the ranks of this pipeline that have ",
                  unit(number).name);
  }
  // Of gradients that are sharded each rank has its slices alone.
  for (const int32_t rank : holding(number).ranks) {
    const auto* theirs = owned_slices(program_.ranks[static_cast<size_t>(rank)], number);
    if (theirs == nullptr || *theirs != lives_.value(holding(number).state).slices) {
      lives_.refuse("rank ", rank, " moves other slices of ", unit(number).name);
    }
  }
  if (instruction.scatters || instruction.micro_batch != -1) {
    lives_.refuse("stages need the whole sum of all micro-batches");
  }
  lives_.check_counts(instruction, {.changes = 1});
  const ValueId sum = holding(number).sum;
  require_change(instruction, sum, /*sets=*/false);
  require_local_parts(sum, number, -1);
  if (meets_replicas() && !parts(sum).is_reduced) {
    lives_.refuse("the gradients of ", unit(number).name, " are not reduced over the replicas");
  }
  if (parts(sum).is_exchanged) {
    lives_.refuse("is reduced a second time");
  }
  parts(sum).is_exchanged = true;
}

void UnitCheck::check_add(const Instruction& instruction) {
  const int32_t number = only_unit(instruction);
  const auto share = holding(number).shares.find(instruction.layer);
  if (share == holding(number).shares.end()) {
    lives_.refuse("the rank has no share of layer ", instruction.layer);
  }
  lives_.check_counts(instruction, {.reads = 1, .changes = 1});
  const ValueId sum = holding(number).sum;
  require_read(instruction, share->second);
  require_change(instruction, sum, /*sets=*/false);
  require_local_parts(share->second, number, instruction.layer);
  Parts& from = parts(share->second);
  Parts& into = parts(sum);
  if (from.is_done) {
    lives_.refuse("adds ", lives_.name(share->second), " a second time");
  }
  const bool was_reduced_alone = program_.keeps_gradients() && into.is_reduced;
  if (was_reduced_alone || into.is_exchanged ||
      std::none_of(into.begun.begin(), into.begun.end(), [](uint8_t one) { return one != 0; })) {
    lives_.refuse("adds to ", lives_.name(sum), " before it has parts, or after it was added up");
  }
  for (size_t i = 0; i < into.has.size(); ++i) {
    into.has[i] = static_cast<uint8_t>(into.has[i] | from.has[i]);
  }
  from.is_done = true;
}

void UnitCheck::require_complete(int32_t number) {
  const Holding& held = holding(number);
  require_local_parts(held.sum, number, -1);
  if (meets_replicas() && !parts(held.sum).is_reduced) {
    lives_.refuse("the gradients of ", unit(number).name, " are not reduced");
  }
  if (held.ranks.size() > 1 && !parts(held.sum).is_exchanged) {
    lives_.refuse(
        "the gradients of ", unit(number).name, " are not added up over the stages that have it");
  }
}

void UnitCheck::check_end() const {
  for (size_t i = 0; i < holdings_.size(); ++i) {
    if (holdings_[i].is_partial) {
      lives_.refuse("what replicas moved of ", program_.units[i].name, " is not gathered");
    }
  }
}

}  // namespace penstock::program
