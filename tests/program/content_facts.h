// What a program says of itself, for the interpreter: where ranks stand, who works at what, which
// elements of a unit each rank moves. By its own arithmetic: the verifier's is on trial.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/base/text.h"
#include "penstock/program/program.h"

#include "program/content.h"

namespace penstock::test {

// Thrown by the interpreter where a program would do the wrong thing.
struct Harm {
  std::string text;
};

template <typename... Parts>
[[noreturn]] void harm(const Parts&... parts) {
  throw Harm{cat(parts...)};
}

inline bool has(const std::vector<int32_t>& list, int32_t one) {
  return std::find(list.begin(), list.end(), one) != list.end();
}

class ContentFacts {
 public:
  explicit ContentFacts(const program::Program& program) : program_(program) {
    check_extent();
    units_at_.resize(program.layers.size() + 1);
    for (size_t unit = 0; unit < program.units.size(); ++unit) {
      if (program.units[unit].elements < 0) {
        harm("a unit has less than no elements");
      }
      for (const int32_t layer : program.units[unit].layers) {
        if (layer < 0 || static_cast<size_t>(layer) >= units_at_.size()) {
          harm("a unit is of a layer that is not there");
        }
        units_at_[static_cast<size_t>(layer)].push_back(static_cast<int32_t>(unit));
      }
    }
    for (const program::Carried& one : program.carried) {
      const auto is_layer = [&](int32_t layer) { return layer >= 0 && layer <= loss_index(); };
      if (one.born < -1 || one.born >= loss_index() ||
          !std::all_of(one.readers.begin(), one.readers.end(), is_layer)) {
        harm("an element is of layers that are not there");
      }
    }
    for (int32_t rank = 0; rank < num_ranks(); ++rank) {
      check_values(rank);
      find_work(rank);
    }
    check_shard();
  }

  const program::Program& program() const { return program_; }
  const program::RankProgram& rank(int32_t number) const {
    return program_.ranks[static_cast<size_t>(number)];
  }
  const program::Unit& unit(int32_t number) const {
    return program_.units[static_cast<size_t>(number)];
  }
  int32_t num_ranks() const { return static_cast<int32_t>(program_.ranks.size()); }
  int32_t loss_index() const { return static_cast<int32_t>(program_.layers.size()); }
  size_t replicas() const { return static_cast<size_t>(program_.mesh.data); }
  size_t micro_batches() const { return static_cast<size_t>(program_.micro_batches); }
  bool is_evaluation() const { return program_.updates == 0; }
  // Of an update; of an evaluation, all.
  size_t batch() const {
    return is_evaluation() ? micro_batches()
                           : micro_batches() / static_cast<size_t>(program_.updates);
  }

  int32_t stage_of(int32_t rank) const {
    return rank / (program_.mesh.data * program_.mesh.context * program_.mesh.tensor);
  }
  int32_t replica_of(int32_t rank) const {
    return rank / (program_.mesh.context * program_.mesh.tensor) % program_.mesh.data;
  }

  // The ranks that meet a rank in a group, ascending; none where it is in none.
  std::vector<int32_t> members(int32_t group, int32_t rank) const {
    if (group < 0 || static_cast<size_t>(group) >= program_.groups.size()) {
      harm("there is no such group");
    }
    const comm::RankGroup& ranks = program_.groups[static_cast<size_t>(group)];
    const auto is_in = [&](int32_t one) {
      return ranks.stages.empty() || has(ranks.stages, stage_of(one));
    };
    std::vector<int32_t> found;
    for (int32_t other = 0; is_in(rank) && other < num_ranks(); ++other) {
      bool is_member = is_in(other);
      for (const comm::Axis axis : comm::kAxes) {
        is_member = is_member && (ranks.axes.contains(axis) ||
                                  coordinate(other, axis) == coordinate(rank, axis));
      }
      if (is_member) {
        found.push_back(other);
      }
    }
    return found;
  }

  const program::Carried& element(int32_t number) const {
    return program_.carried[static_cast<size_t>(number)];
  }
  // Elements that a layer (or the loss) reads, and that it makes.
  std::vector<int32_t> read_at(int32_t layer) const {
    return elements_where([&](const program::Carried& one) { return has(one.readers, layer); });
  }
  std::vector<int32_t> born_at(int32_t layer) const {
    return elements_where([&](const program::Carried& one) { return one.born == layer; });
  }

  // Units that have parameters of a layer, or of the loss.
  const std::vector<int32_t>& units_at(int32_t layer) const {
    return units_at_[static_cast<size_t>(layer)];
  }
  // The number of a layer within a unit that has it.
  size_t place_of(int32_t unit, int32_t layer) const {
    const std::vector<int32_t>& layers = this->unit(unit).layers;
    return static_cast<size_t>(std::find(layers.begin(), layers.end(), layer) - layers.begin());
  }
  bool works_at(int32_t rank, int32_t layer) const {
    return works_at_[static_cast<size_t>(rank)][static_cast<size_t>(layer)];
  }
  // Units of which the rank runs a layer.
  const std::vector<int32_t>& own_units(int32_t rank) const {
    return own_units_[static_cast<size_t>(rank)];
  }

  // Of those, the ones that steps move.
  const std::vector<int32_t>& moving_units(int32_t rank) const {
    return moving_units_[static_cast<size_t>(rank)];
  }

  // What a rank holds from step to step; -1: nothing of that kind.
  program::ValueId held(int32_t rank, program::ValueKind kind, int32_t unit) const {
    for (const program::ValueId id : this->rank(rank).persistent) {
      const program::Value& value = this->rank(rank).values[static_cast<size_t>(id)];
      if (value.kind == kind && value.unit == unit) {
        return id;
      }
    }
    return -1;
  }
  // The elements that the rank's step moves, or of a frozen unit those that it gives to others.
  std::vector<bool> moved(int32_t rank, int32_t unit) const {
    const program::ValueId own =
        held(rank,
             this->unit(unit).is_frozen ? program::ValueKind::Master : program::ValueKind::State,
             unit);
    if (own < 0) {
      harm("rank ", rank, " has no state of unit ", unit);
    }
    return elements_of(this->unit(unit), this->rank(rank).values[static_cast<size_t>(own)].slices);
  }

  Gradient empty_gradient(int32_t unit) const {
    return {num_elements(this->unit(unit)),
            this->unit(unit).layers.size(),
            replicas(),
            micro_batches()};
  }
  // The update that an element of a gradient is all of, and nothing else; or kUnknown. Of all
  // replicas, or of the rank's own.
  int32_t update_of(const Gradient& gradient, size_t element) const {
    return update_of(gradient, element, 0, replicas());
  }
  int32_t own_update_of(const Gradient& gradient, size_t element, int32_t rank) const {
    const auto replica = static_cast<size_t>(replica_of(rank));
    return update_of(gradient, element, replica, replica + 1);
  }

 private:
  template <typename Matches>
  std::vector<int32_t> elements_where(const Matches& matches) const {
    std::vector<int32_t> found;
    for (size_t i = 0; i < program_.carried.size(); ++i) {
      if (matches(program_.carried[i])) {
        found.push_back(static_cast<int32_t>(i));
      }
    }
    return found;
  }

  int32_t update_of(const Gradient& gradient, size_t element, size_t first, size_t end) const {
    for (size_t update = 0; update < static_cast<size_t>(program_.updates); ++update) {
      if (gradient.is_exactly(element, update * batch(), (update + 1) * batch(), first, end)) {
        return static_cast<int32_t>(update);
      }
    }
    return kUnknown;
  }

  int32_t coordinate(int32_t rank, comm::Axis axis) const {
    const comm::Mesh& mesh = program_.mesh;
    switch (axis) {
      case comm::Axis::Data:
        return replica_of(rank);
      case comm::Axis::Pipeline:
        return stage_of(rank);
      case comm::Axis::Tensor:
        return rank % mesh.tensor;
      case comm::Axis::Context:
        return rank / mesh.tensor % mesh.context;
    }
    return 0;
  }

  void check_extent() const {
    const comm::Mesh& mesh = program_.mesh;
    if (mesh.data < 1 || mesh.pipeline < 1 || mesh.tensor < 1 || mesh.context < 1 ||
        int64_t{mesh.data} * mesh.pipeline * mesh.tensor * mesh.context != num_ranks()) {
      harm("the mesh has other ranks than the program");
    }
    if (mesh.tensor > 1 || mesh.context > 1) {
      harm("nobody knows how layers are cut along these axes");
    }
    if (program_.updates < 0 || program_.micro_batches < 1 ||
        (!is_evaluation() && program_.micro_batches % program_.updates != 0)) {
      harm("updates have unlike numbers of micro-batches");
    }
    if (mesh.data == 1 && program_.shard != program::Shard::None) {
      harm("one replica divides nothing");
    }
    if (program_.is_apart && (mesh.data == 1 || program_.shard != program::Shard::None)) {
      harm("replicas move apart, and there are none, or none has all");
    }
  }

  // All that a value says it belongs to must be there.
  void check_values(int32_t number) const {
    for (const program::Value& value : rank(number).values) {
      const program::ValueKindInfo& info = program::info_of(value.kind);
      const auto is_within = [](int32_t field, size_t end) {
        return field >= 0 && static_cast<size_t>(field) < end;
      };
      if ((info.has_unit && !is_within(value.unit, program_.units.size())) ||
          (info.has_layer && !is_within(value.layer, program_.layers.size() + 1)) ||
          (info.has_element && !is_within(value.element, program_.carried.size())) ||
          (info.has_micro_batch && !is_within(value.micro_batch, micro_batches())) ||
          (info.has_label && !is_within(value.label, rank(number).labels.size()))) {
        harm("a value is of something that is not there");
      }
      int64_t end = 0;
      for (const program::Slice& slice : value.slices) {
        if (slice.first < end || slice.end < slice.first ||
            (info.has_unit && slice.end > unit(value.unit).elements)) {
          harm("a slice is of elements that are not there, or twice");
        }
        end = slice.end;
      }
      if (value.bytes < 0) {
        harm("a value is smaller than nothing");
      }
    }
    for (const auto* list : {&rank(number).persistent, &rank(number).given}) {
      for (const program::ValueId id : *list) {
        if (id < 0 || static_cast<size_t>(id) >= rank(number).values.size()) {
          harm("there is no value ", id);
        }
      }
    }
  }

  void find_work(int32_t number) {
    std::vector<bool>& works = works_at_.emplace_back(program_.layers.size() + 1, false);
    for (const program::Instruction& one : rank(number).instructions) {
      using program::Op;
      const bool is_work = one.op == Op::Forward || one.op == Op::Backward ||
                           one.op == Op::BackwardInput || one.op == Op::BackwardWeight;
      if (is_work && one.layer >= 0 && one.layer < loss_index()) {
        works[static_cast<size_t>(one.layer)] = true;
      } else if (one.op == Op::Loss) {
        works.back() = true;
      }
    }
    std::vector<int32_t>& own = own_units_.emplace_back();
    for (size_t unit = 0; unit < program_.units.size(); ++unit) {
      const std::vector<int32_t>& layers = program_.units[unit].layers;
      if (std::any_of(layers.begin(), layers.end(), [&](int32_t layer) {
            return works[static_cast<size_t>(layer)];
          })) {
        own.push_back(static_cast<int32_t>(unit));
      }
    }
    moving_units_.push_back(own);
    std::erase_if(moving_units_.back(), [&](int32_t one) { return unit(one).is_frozen; });
  }

  // What the program says is divided, and nothing else, is there in slices.
  void check_shard() const {
    using program::Shard;
    using program::ValueKind;
    const Shard shard = program_.shard;
    for (int32_t number = 0; number < num_ranks(); ++number) {
      for (const program::ValueId id : rank(number).persistent) {
        const program::Value& value = rank(number).values[static_cast<size_t>(id)];
        const bool is_gradient =
            value.kind == ValueKind::GradientSum || value.kind == ValueKind::Share;
        if ((is_gradient || value.kind == ValueKind::State) && unit(value.unit).is_frozen) {
          harm("has a gradient or state of what never moves");
        }
        const bool is_divided = value.kind == ValueKind::State
                                    ? shard != Shard::None
                                    : shard == Shard::Gradients || shard == Shard::Parameters;
        if ((value.kind == ValueKind::State || is_gradient) && is_divided == value.slices.empty()) {
          harm("state or gradients are divided otherwise than the program says");
        }
        if (value.kind == ValueKind::Compute && shard == Shard::Parameters) {
          harm("layers see gathered weights and a copy");
        }
        const bool is_seen_whole =
            value.kind == ValueKind::Master && held(number, ValueKind::Compute, value.unit) < 0;
        if (is_seen_whole && value.slices.empty() == (shard == Shard::Parameters)) {
          harm("layers see weights whole, or gathered, and the program says otherwise");
        }
      }
    }
  }

  const program::Program& program_;
  std::vector<std::vector<int32_t>> units_at_;
  std::vector<std::vector<bool>> works_at_;
  std::vector<std::vector<int32_t>> own_units_, moving_units_;
};

}  // namespace penstock::test
