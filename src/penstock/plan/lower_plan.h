// The program of a plan: everything that a plan leaves to be computed, none of it to be decided.
#pragma once

#include <cstdint>

#include "penstock/plan/cost_table.h"
#include "penstock/plan/holdings.h"
#include "penstock/plan/machine.h"
#include "penstock/plan/model_sizes.h"
#include "penstock/plan/plan.h"
#include "penstock/plan/spent.h"
#include "penstock/program/program.h"

namespace penstock::plan {

// What a plan rests on.
struct Ground {
  const CostTable& costs;
  const ModelSizes& model;  // not known: ranks hold what the table says
  const Machine& machine;
};

// Of so many updates, more than one for asynchronous schedules alone. limit_bytes: of every rank; 0: none.
program::Program lower_plan(const Plan& plan,
                            const Ground& ground,
                            int32_t updates,
                            int64_t limit_bytes,
                            Spent* spent = nullptr);

// The program of a step whose replicas exchange something else, from the plan's: both hold the same
// from step to step.
program::Program with_form(program::Program program,
                           const Plan& plan,
                           const ModelSizes& model,
                           const Machine& machine,
                           const UpdateForm& form);

}  // namespace penstock::plan
