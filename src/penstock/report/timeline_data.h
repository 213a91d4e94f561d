// The numbers of a step's page, as JSON that can stand in it.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "penstock/report/step_picture.h"

namespace penstock::report {

// JSON that can stand in a script element: without "<" nothing in it can end the element, and
// outside of strings JSON has none.
std::string embedded_json(const nlohmann::json& value);

std::string timeline_data(const StepPicture& picture);

}  // namespace penstock::report
