// simulate --compare: two programs side by side.
#pragma once

#include "pictures.h"
#include "step_source.h"

namespace penstock::app {

int compare_steps(const StepSource& a,
                  const StepSource& b,
                  const PictureArguments& pictures,
                  bool as_json);

}  // namespace penstock::app
