// What a rank does before a step moves its weights: sketches and squares of gradients, the
// decision, and what it prepares for and takes from an exchange with its replicas.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "penstock/program/program.h"

#include "program/content.h"
#include "program/content_facts.h"
#include "program/content_rank_layers.h"

namespace penstock::test {

class RankPreparation : public RankLayers {
 public:
  using RankLayers::RankLayers;

  // What the rank's optimizer needs of its replicas' state is there.
  void fill(const Instruction& one) {
    if (facts_.program().shard != program::Shard::Optimizer) {
      harm("fills a state that is whole, or that nobody averages");
    }
    const ValueId made = find_kind(one.makes, ValueKind::Filled);
    if (made < 0) {
      harm("does not say that the state is there");
    }
    for (const int32_t number : facts_.moving_units(number_)) {
      if (moves_[number] > updates_done_) {
        harm("fills a state of which some has moved");
      }
      const ValueId state = change_of_unit(one, ValueKind::State, number);
      if (content(state).prepared != Content::Prepared::No) {
        harm("fills a state that has begun to move");
      }
    }
    require_version(value(made), updates_done_);
    make(one, made, {.kind = ValueKind::Filled});
    filled_ = made;
  }

  // `all`: what each replica has prepared.
  void take_average(const Instruction& one, const Content& all) {
    for (const int32_t number : facts_.moving_units(number_)) {
      change_averaged(one, all.prepared, number);
      Content& state = content(change_of_unit(one, ValueKind::State, number));
      const bool is_first = state.averaged.empty();
      state.averaged.assign(num_elements(unit(number)), kUnknown);
      for (size_t element = 0; is_first && element < state.averaged.size(); ++element) {
        state.averaged[element] = common_of_replicas(all.squares, number, element);
      }
    }
    change_rank_state(one);
  }

 protected:
  // Gradients that nobody has reduced: the rank's own, all of them.
  void sketch(const Instruction& one) {
    Content sketches{.kind = ValueKind::Sketches, .squares = no_squares()};
    std::vector<int32_t> covered;
    for (const ValueId id : one.reads) {
      if (value(id).kind != ValueKind::GradientSum) {
        continue;
      }
      const std::vector<bool> is_there = elements_of(unit(value(id).unit), value(id).slices);
      std::vector<int32_t>& part = part_of(sketches, value(id).unit);
      for (size_t element = 0; element < is_there.size(); ++element) {
        part.push_back(is_there[element]
                           ? facts_.own_update_of(content(id).gradient, element, number_)
                           : kUnknown);
      }
      covered.insert(covered.end(), part.begin(), part.end());
    }
    make_sums(one, std::move(sketches), covered);
  }

  void square(const Instruction& one) {
    Content squares{.kind = ValueKind::Squares, .squares = no_squares()};
    std::vector<int32_t> covered;
    const auto cover_moved = [&](int32_t number, const auto& known) {
      const std::vector<bool> moved = facts_.moved(number_, number);
      std::vector<int32_t>& part = part_of(squares, number);
      part.assign(moved.size(), kAbsent);
      for (size_t element = 0; element < moved.size(); ++element) {
        if (moved[element]) {
          part[element] = known(element);
          covered.push_back(part[element]);
        }
      }
    };
    const ValueId sketches = find_kind(one.reads, ValueKind::AllSketches);
    if (sketches >= 0) {
      squares.is_estimate = true;
      for (const int32_t number : facts_.moving_units(number_)) {
        cover_moved(number, [&](size_t element) {
          return common_of_replicas(content(sketches).squares, number, element);
        });
      }
    }
    for (const ValueId id : one.reads) {
      if (sketches < 0 && value(id).kind == ValueKind::GradientSum) {
        const std::vector<bool> is_there = elements_of(unit(value(id).unit), value(id).slices);
        cover_moved(value(id).unit, [&](size_t element) {
          return is_there[element] ? facts_.update_of(content(id).gradient, element) : kUnknown;
        });
      }
    }
    make_sums(one, std::move(squares), covered);
  }

  // Ranks that update together decide by the gradients of all units; others by their own.
  void decide(const Instruction& one) {
    const program::Program& program = facts_.program();
    const ValueId from = find(one.reads, [](const Value& value) {
      return value.kind == ValueKind::Squares || value.kind == ValueKind::AllSquares;
    });
    const ValueId made =
        find(one.makes, [](const Value& value) { return value.kind == ValueKind::Decision; });
    if (from < 0 || made < 0) {
      harm("lacks what it needs");
    }
    std::vector<int32_t> covered;
    for (size_t number = 0; number < program.units.size(); ++number) {
      if (program.units[number].is_frozen) {
        continue;
      }
      if (program.updates == 1 || has(facts_.moving_units(number_), static_cast<int32_t>(number))) {
        cover(content(from).squares, number, covered);
      }
    }
    const int32_t update = covered.empty() ? value(from).version : common(covered);
    if (update != kUnknown) {
      require_version(value(from), update);
      require_version(value(made), update);
    }
    make(one,
         made,
         {.kind = ValueKind::Decision, .update = update, .is_estimate = content(from).is_estimate});
  }
  // What the optimizer does before an exchange. Gradients that replicas average are their own, and
  // the decision is by their sketches; what is measured is slices, each element by one replica.
  void prepare(const Instruction& one) {
    const ValueId decision = find_kind(one.reads, ValueKind::Decision);
    const bool gives = find_kind(one.makes, ValueKind::Prepared) >= 0;
    const bool measures = find_kind(one.makes, ValueKind::Lengths) >= 0;
    if (decision < 0 || (!gives && !measures)) {
      harm("decides nothing, or prepares nothing");
    }
    if (filled_ >= 0 && !has(one.reads, filled_)) {
      harm("does not wait for the state");
    }
    const Content& decided = content(decision);
    const int32_t update = decided.is_estimate == gives ? decided.update : kUnknown;
    Content ready{.kind = ValueKind::Prepared,
                  .squares = no_squares(),
                  .prepared = gives ? averaged_of(one) : Content::Prepared::Lengths};
    Content lengths{.kind = ValueKind::Lengths, .squares = no_squares()};
    for (const int32_t number : facts_.moving_units(number_)) {
      prepare_unit(one, number, update, ready, lengths);
    }
    if (gives) {
      change_rank_state(one);
      make_sums(one, std::move(ready), {decided.update});
    }
    if (measures) {
      measures_ = true;
      make_sums(one, std::move(lengths), {decided.update});
    }
  }
  std::map<int32_t, int32_t> moves_;  // by unit
  ValueId filled_ = -1;    // of the update at hand, what says that the state is there; -1: nothing
  bool measures_ = false;  // likewise: replicas need the sums of each other's slices

 private:
  // It changes what it has of a unit, and has said so. What it sets is lost.
  ValueId change_of_unit(const Instruction& one, ValueKind kind, int32_t number) {
    const ValueId id = find_of_unit(changes(one), kind, number);
    if (id < 0) {
      harm("changes what it does not say");
    }
    if (change(one, id)) {
      spoil(id);
    }
    return id;
  }
  void change_averaged(const Instruction& one, Content::Prepared prepared, int32_t number) {
    if (prepared == Content::Prepared::Gradients) {
      change_of_unit(one, ValueKind::GradientSum, number);
    } else if (prepared == Content::Prepared::Weights) {
      change_of_unit(one, ValueKind::Master, number);
    }
  }
  void change_rank_state(const Instruction& one) {
    for (const ValueId id : rank_.persistent) {
      if (value(id).kind == ValueKind::RankState) {
        if (!has(changes(one), id)) {
          harm("changes what it does not say");
        }
        if (change(one, id)) {
          spoil(id);
        }
      }
    }
  }
  // What all replicas say of an element, each of them something.
  int32_t common_of_replicas(const SquaresContent& all, int32_t number, size_t element) const {
    std::vector<int32_t> known;
    for (const std::vector<std::vector<int32_t>>& of_replica : all) {
      const std::vector<int32_t>& part = of_replica[static_cast<size_t>(number)];
      known.push_back(element < part.size() ? part[element] : kUnknown);
    }
    return common(known);
  }
  SquaresContent no_squares() const {
    return SquaresContent(facts_.replicas(),
                          std::vector<std::vector<int32_t>>(facts_.program().units.size()));
  }
  std::vector<int32_t>& part_of(Content& content, int32_t number) const {
    return content.squares[static_cast<size_t>(replica())][static_cast<size_t>(number)];
  }
  // Where it is of one update, the value says so.
  void make_sums(const Instruction& one, Content sums, const std::vector<int32_t>& covered) {
    const ValueId made = find_kind(one.makes, sums.kind);
    if (made >= 0) {
      const int32_t update = covered.empty() ? updates_done_ : common(covered);
      if (update != kUnknown) {
        require_version(value(made), update);
      }
      make(one, made, std::move(sums));
    }
  }

  // What is known of each element of a unit. Where replicas divide it, one of them squares it and
  // the others do not; else any of them will do.
  void cover(const SquaresContent& squares, size_t number, std::vector<int32_t>& covered) const {
    const program::Program& program = facts_.program();
    for (size_t element = 0; element < num_elements(program.units[number]); ++element) {
      std::vector<int32_t> known;
      for (const std::vector<std::vector<int32_t>>& of_replica : squares) {
        const std::vector<int32_t>& part = of_replica[number];
        if (element < part.size() && part[element] != kAbsent) {
          known.push_back(part[element]);
        }
      }
      const bool is_once = program.shard == program::Shard::None || known.size() == 1;
      covered.push_back(is_once ? common(known) : kUnknown);
    }
  }

  Content::Prepared averaged_of(const Instruction& one) const {
    const std::vector<ValueId> changed = changes(one);
    const bool gradients = find_kind(changed, ValueKind::GradientSum) >= 0;
    const bool weights = find_kind(changed, ValueKind::Master) >= 0;
    if ((gradients && weights) || (weights && facts_.program().shard != program::Shard::None)) {
      harm("averages two things, or slices of weights");
    }
    return gradients ? Content::Prepared::Gradients
           : weights ? Content::Prepared::Weights
                     : Content::Prepared::Momentum;
  }
  void prepare_unit(
      const Instruction& one, int32_t number, int32_t update, Content& ready, Content& lengths) {
    const ValueId state = change_of_unit(one, ValueKind::State, number);
    change_averaged(one, ready.prepared, number);
    std::vector<ValueId> used = one.reads;
    if (ready.prepared == Content::Prepared::Gradients) {
      used = changes(one);
    }
    const ValueId sum = find_of_unit(used, ValueKind::GradientSum, number);
    if (sum < 0) {
      harm("lacks what it prepares");
    }
    if (content(state).prepared != Content::Prepared::No || moves_[number] > updates_done_) {
      spoil(state);
    }
    content(state).prepared = ready.prepared;
    const bool gives = ready.prepared != Content::Prepared::Lengths;
    const std::vector<bool> moved = facts_.moved(number_, number);
    const std::vector<bool> is_there = elements_of(unit(number), value(sum).slices);
    for (size_t element = 0; element < moved.size(); ++element) {
      const Gradient& gradient = content(sum).gradient;
      const int32_t own = facts_.own_update_of(gradient, element, number_);
      const int32_t found = gives ? own : facts_.update_of(gradient, element);
      const int32_t known = is_there[element] && found == update ? update : kUnknown;
      part_of(ready, number).push_back(known);
      part_of(lengths, number).push_back(moved[element] ? known : kAbsent);
    }
  }
};

}  // namespace penstock::test
