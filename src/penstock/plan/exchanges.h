// What the replicas of a program exchange in an update, beside the weights that each has moved. It
// depends on the optimizer and on the step; programs of different steps differ in nothing else.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "penstock/plan/link_cost.h"
#include "penstock/program/program.h"

namespace penstock::plan {

struct UpdateForm {
  // Gradients are added up in full precision. Else each replica has its own, and sketches tell the
  // norm of their mean.
  bool reduces = true;
  // What is averaged, compressed, in their place. Nothing: replicas move apart.
  enum class Average : uint8_t { None, Gradients, Momentum, Weights } average = Average::None;
  // Of a sharded state, what an average takes whole: the momentum; which elements have a variance.
  bool fills_momentum = false, fills_alive = false;
  int32_t lengths = 0;  // sums of each parameter that replicas have slices of

  bool is_apart() const { return !reduces && average == Average::None; }
  auto operator<=>(const UpdateForm&) const = default;
};

// What a rank sends to its replicas in each exchange.
struct ExchangeBytes {
  int64_t sketches = 0;
  int64_t momentum = 0, alive = 0;
  int64_t average = 0;
  int64_t lengths = 0;  // of one sum of each parameter
  // By unit: of a gradient that several stages have and no replica has reduced.
  std::vector<int64_t> shared = {};
};

// Between any two ranks, and between replicas.
struct UpdateLinks {
  LinkCost of_all = {};
  LinkCost of_replicas = {};
};

// A pass, on a finished program: from an update that reduces gradients to one of any form. `ranks`: of
// each rank.
program::Program write_exchanges(program::Program program,
                                 const UpdateForm& form,
                                 const std::vector<ExchangeBytes>& ranks,
                                 const UpdateLinks& links);

}  // namespace penstock::plan
