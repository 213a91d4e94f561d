// A recomputation schedule of one micro-batch, in ROTOR's operations, and the simple schedules that
// it is compared with.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "penstock/plan/cost_table.h"

namespace penstock::plan {

enum class OperationKind {
  ForwardAll,        // keeps what backward needs, in save mode `mode`
  ForwardKeepInput,  // keeps its input for a later forward
  ForwardDrop,       // keeps nothing; its input goes
  Loss,
  Backward,
};

struct Operation {
  OperationKind kind = OperationKind::Loss;
  int32_t layer = 0;  // Loss: the number of layers
  int32_t mode = 0;   // ForwardAll

  bool operator==(const Operation&) const = default;
};

using Operations = std::vector<Operation>;

std::string_view operation_name(OperationKind kind);  // "forward_keep_input"

// Every layer keeps all.
Operations keep_everything(const CostTable& table);

// Every layer keeps its input alone and is recomputed before its backward.
Operations recompute_everything(const CostTable& table);

// Chen et al., 2016: about sqrt(n) segments; inside one, all is kept when it is recomputed. The
// last segment is kept at once.
Operations recompute_segments(const CostTable& table);

// Whether the operation is a forward whose output nobody will read: its backward comes next, and
// that needs no output.
bool leaves_output_out(const CostTable& table, const Operations& operations, size_t index);

double seconds_of(const CostTable& table, const Operations& operations);

// Forwards beyond the one that each layer needs.
int64_t recomputed_forwards(const CostTable& table, const Operations& operations);

}  // namespace penstock::plan
