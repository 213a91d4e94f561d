// For builds without NCCL.
#include <string>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/comm/local.h"
#include "penstock/comm/nccl.h"

namespace penstock::comm {
namespace {

TEST(NoNccl, SaysSoAndLinksNothing) {
  try {
    require_nccl();
    ADD_FAILURE() << "a build without NCCL was taken for one with it";
  } catch (const ConfigError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "run.links = \"nccl\", but this penstock was built without NCCL; build it where CMake "
        "finds NCCL (docs/gpu.md), or try run.links = \"auto\"");
  }
  EXPECT_THROW(run_local(2, [](Group& group) { connect_gpus(group, 0, 1, 0); }), InternalError);
}

}  // namespace
}  // namespace penstock::comm
