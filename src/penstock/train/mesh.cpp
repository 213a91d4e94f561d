#include "penstock/train/mesh.h"

#include <cstdint>

#include "penstock/base/error.h"

namespace penstock::train {

comm::Mesh mesh_of(const config::PlanOptions& plan) {
  const comm::Mesh mesh{.data = static_cast<int32_t>(plan.data),
                        .pipeline = static_cast<int32_t>(plan.pipeline)};
  PENSTOCK_CHECK(mesh.ranks() == plan.ranks(), "a mesh of ", mesh.ranks(), " of ", plan.ranks());
  return mesh;
}

}  // namespace penstock::train
