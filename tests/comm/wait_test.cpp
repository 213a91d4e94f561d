#include "penstock/comm/wait.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "comm/seconds.h"

namespace penstock::comm {
namespace {

const What kWhat = [] { return "block 3"; };

TEST(Wait, CountsTheTimeBetweenLooks) {
  Wait wait(0, 1, kWhat);
  for (int look = 0; look < 4; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
    wait.seconds();
  }
  EXPECT_GE(wait.seconds(), 0.1);
}

// A job that was stopped by Ctrl-Z and goes on has not timed out.
TEST(Wait, AGapBetweenLooksCountsASecondAtMost) {
  Wait wait(0, 1, kWhat);
  std::this_thread::sleep_for(std::chrono::milliseconds(1300));
  EXPECT_EQ(wait.seconds(), 1.0);
}

TEST(Wait, ItsLinesNameBothRanksAndWhatWasWaitedFor) {
  using test::without_seconds;
  Wait wait(2, 1, kWhat);
  EXPECT_EQ(without_seconds(wait.timeout_line()), "rank 2 has waited N s for rank 1: block 3");
  EXPECT_EQ(without_seconds(wait.stopped_line("SIGTERM")),
            "rank 2 was stopped by SIGTERM while waiting N s for rank 1: block 3");
  EXPECT_EQ(wait.ended_line(), "rank 2 waits for rank 1, which has ended its work: block 3");
  Wait for_all(2, Wait::kOthers, kWhat);
  EXPECT_EQ(without_seconds(for_all.timeout_line()),
            "rank 2 has waited N s for the other ranks: block 3");
  const PeerError error = wait.peer_error({ExitCode::Negative, "rank 0 failed: no room"});
  EXPECT_EQ(without_seconds(error.what()),
            "rank 0 failed: no room (rank 2 had waited N s for rank 1: block 3)");
  EXPECT_EQ(error.exit_code(), ExitCode::Negative);
}

TEST(Wait, ItsLinesSayTheSecondsToATenth) {
  Wait wait(2, 1, kWhat);
  std::this_thread::sleep_for(std::chrono::milliseconds(1300));
  EXPECT_EQ(wait.timeout_line(), "rank 2 has waited 1.0 s for rank 1: block 3");
}

}  // namespace
}  // namespace penstock::comm
