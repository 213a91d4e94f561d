// Where simulate has a step from: a program file, a recipe or a cost table.
#pragma once

#include <string>

#include "penstock/program/program.h"

#include "plan_arguments.h"

namespace penstock::app {

struct StepSource {
  std::string title;
  program::Program program;  // sound
};

// Reads the program or plans it, as `arguments` say.
StepSource load_step(const PlanArguments& arguments);

// Of a program file or a recipe, as it is: the arguments for it alone.
StepSource load_step(const std::string& file);

}  // namespace penstock::app
