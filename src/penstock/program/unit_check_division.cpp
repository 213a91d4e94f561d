// What verify() demands of units before it looks at a rank's list: their layers, and slices that
// divide each among the replicas.
#include <algorithm>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/program/unit_check.h"
#include "penstock/program/unit_check_shared.h"

namespace penstock::program {

namespace {

const std::vector<Slice>* held_slices(const RankProgram& rank, ValueKind kind, int32_t unit) {
  for (const ValueId id : rank.persistent) {
    if (id >= 0 && static_cast<size_t>(id) < rank.values.size() && rank.value(id).kind == kind &&
        rank.value(id).unit == unit) {
      return &rank.value(id).slices;
    }
  }
  return nullptr;
}

}  // namespace

const std::vector<Slice>* owned_slices(const RankProgram& rank, int32_t unit) {
  return held_slices(rank, ValueKind::State, unit);
}

namespace {

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
  const std::vector<int32_t>& weight = unit.weight_too;
  if (!is_ascending(weight) ||
      !std::includes(layers.begin(), layers.end(), weight.begin(), weight.end()) ||
      std::any_of(weight.begin(), weight.end(), [&](int32_t layer) {
        return layer == program.loss_index() ||
               std::binary_search(forward.begin(), forward.end(), layer);
      })) {
    return cat("unit ",
               unit.name,
               " names layers whose weight gradient needs its weights, and they are out of order, "
               "none of its own, the loss, or need them forward alone");
  }
  if (unit.elements < 0) {
    return cat("unit ", unit.name, " has ", unit.elements, " elements");
  }
  return "";
}

// Where replicas divide a unit, each element is moved by one of them; of a frozen one, each element
// is at one of them.
std::string wrong_slices(const Program& program, int32_t number) {
  const Unit& unit = program.units[static_cast<size_t>(number)];
  const ValueKind owned = unit.is_frozen ? ValueKind::Master : ValueKind::State;
  const std::string name = cat(unit.is_frozen ? "frozen unit " : "unit ", unit.name);
  for (int32_t first = 0; first < program.mesh.ranks(); ++first) {
    if (program.replica_of(first) != 0) {
      continue;
    }
    std::vector<Slice> all;
    bool is_held = false;
    const std::vector<int32_t> replicas =
        comm::members(program.mesh, comm::along(comm::Axis::Data), first);
    const auto has_slices = [&](int32_t rank) {
      const auto* own = held_slices(program.ranks[static_cast<size_t>(rank)], owned, number);
      return own != nullptr && !own->empty();
    };
    // Weights that do not move may be whole at every replica.
    const bool may_be_whole = unit.is_frozen && program.shard != Shard::Parameters &&
                              std::none_of(replicas.begin(), replicas.end(), has_slices);
    if (may_be_whole) {
      continue;
    }
    for (const int32_t rank : replicas) {
      const auto* own = held_slices(program.ranks[static_cast<size_t>(rank)], owned, number);
      is_held = is_held || own != nullptr;
      if (own != nullptr && own->empty() && program.shard != Shard::None) {
        return cat("rank ",
                   rank,
                   unit.is_frozen ? " has" : " moves",
                   " all of ",
                   name,
                   ", which replicas divide");
      }
      if (own != nullptr) {
        all.insert(all.end(), own->begin(), own->end());
      }
    }
    if (program.shard == Shard::None || !is_held) {
      if (!all.empty()) {
        return cat(name, " has slices, and nothing is sharded");
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
        return cat("the slices of ", name, " leave a gap or overlap at element ", end);
      }
      end = slice.end;
    }
    if (end != unit.elements) {
      return cat("the slices of ", name, " end at ", end, " of ", unit.elements);
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

}  // namespace penstock::program
