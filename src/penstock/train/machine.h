// What a run has to work with: the recipe's device, and links between ranks as they are found.
#pragma once

#include <cstdint>

#include "penstock/comm/group.h"
#include "penstock/config/recipe.h"
#include "penstock/plan/machine.h"

namespace penstock::train {

// LibTorch's allocator for GPUs takes memory from the device in pages and may leave parts of them
// unused; a limit holds for all that it takes. What a plan under a limit leaves for that.
int64_t allocator_page_bytes();

// Without links, which nobody has measured.
plan::Machine find_machine(const config::Recipe& recipe);

// With the links between the group's ranks: measured by a few messages, or where plan.costs names a
// table, as that has them. All ranks call it; all get the same.
plan::Machine probe_machine(const config::Recipe& recipe, comm::Group& group);
// The same for a command that has no ranks: they would be so many threads.
plan::Machine probe_machine(const config::Recipe& recipe, int64_t ranks);

}  // namespace penstock::train
