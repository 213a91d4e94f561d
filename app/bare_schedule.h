// simulate --schedule without a recipe: a pipeline of bare numbers.
#pragma once

#include <optional>
#include <string>

#include "pictures.h"
#include "plan_arguments.h"

namespace penstock::app {

struct BareScheduleArguments {
  int64_t ranks = 0;
  std::optional<double> forward, backward, backward_input, backward_weight, transfer;
};

// --ranks, --forward, --backward-input, --backward-weight, --transfer
void add_bare_schedule_arguments(Command& command, BareScheduleArguments& arguments);

bool is_bare_schedule(const BareScheduleArguments& arguments);

int simulate_bare_schedule(const BareScheduleArguments& arguments,
                           const PlanArguments& plan,
                           const PictureArguments& pictures);

}  // namespace penstock::app
