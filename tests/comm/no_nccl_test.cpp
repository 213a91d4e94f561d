// For builds without NCCL.
#include <gtest/gtest.h>

#include "penstock/comm/local.h"
#include "penstock/comm/nccl.h"

namespace penstock::comm {
namespace {

TEST(NoNccl, SaysSoAndLinksNothing) {
  EXPECT_FALSE(has_nccl());
  EXPECT_THROW(run_local(2, [](Group& group) { connect_cards(group, 0, 1, 0); }), InternalError);
}

}  // namespace
}  // namespace penstock::comm
