// From the plan to the mesh of its ranks.
#pragma once

#include "penstock/comm/mesh.h"
#include "penstock/config/recipe.h"

namespace penstock::train {

comm::Mesh mesh_of(const config::PlanOptions& plan);

}  // namespace penstock::train
