// Properties of every schedule, over many sizes; and the errors of the names and numbers.
#include "penstock/schedule/schedule.h"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/schedule/clock.h"

#include "schedule/cases.h"
#include "support/error_text.h"

namespace penstock::schedule {

namespace {

using penstock::test::error_text;

// What is promised to be in flight on a rank, at most.
double promise(const test::Case& c, int32_t rank) {
  const int32_t p = c.ranks;
  const int32_t left = p - rank;
  switch (c.kind) {
    case Kind::GPipe:
      return c.micro_batches;
    case Kind::OneFOneB:
    case Kind::PipeDream:
    case Kind::PipeDream2BW:
    case Kind::PipeMare:
      return left;
    case Kind::Interleaved:
      return c.chunks == 1 ? left : (2.0 * left - 1 + (c.chunks - 1) * p) / c.chunks;
    case Kind::ZeroBubbleH2:
      return 2 * p - 1;
    case Kind::ZeroBubbleH1:
    case Kind::ZeroBubbleV:
      break;
  }
  return p;
}

TEST(Schedule, HasNoFaultAtAnySize) {
  for (const test::Case& c : test::all_cases()) {
    const Schedule schedule = c.make();
    ASSERT_EQ(find_fault(schedule), "") << c.name();
    EXPECT_EQ(schedule.ranks(), c.ranks) << c.name();
    EXPECT_EQ(schedule.stages(), c.ranks * stages_per_rank(c.kind, c.chunks)) << c.name();
    EXPECT_EQ(schedule.micro_batches, c.micro_batches) << c.name();
  }
}

TEST(Schedule, SplitsBackwardEverywhereOrNowhere) {
  for (const test::Case& c : test::all_cases()) {
    for (const std::vector<Turn>& turns : c.make().turns) {
      EXPECT_EQ(std::ranges::count(turns, Phase::Backward, &Turn::phase) == 0,
                splits_backward(c.kind))
          << c.name();
    }
  }
}

TEST(Schedule, KeepsWithinWhatItPromisesInFlight) {
  for (const test::Case& c : test::all_cases()) {
    const std::vector<double> most = most_in_flight(c.make());
    for (int32_t rank = 0; rank < c.ranks; ++rank) {
      const double allowed = std::min<double>(promise(c, rank), c.micro_batches);
      EXPECT_LE(most[static_cast<size_t>(rank)], allowed + 1e-9) << c.name() << ", rank " << rank;
    }
  }
}

TEST(Schedule, IsNeverSlowerThanOneMicroBatchAtATime) {
  for (const test::Case& c : test::all_cases()) {
    const double share = 1.0 / stages_per_rank(c.kind, c.chunks);
    const PhaseSeconds seconds{share, 2 * share, share, share};
    const double busy_s = 3.0 * c.micro_batches;
    const double step_s = run_clock(c.make(), seconds, 0).seconds;
    EXPECT_GE(step_s, busy_s - 1e-9) << c.name();
    EXPECT_LE(step_s, busy_s * c.ranks + 1e-9) << c.name();
  }
}

TEST(Schedule, InterleavedWithOneChunkIsOneFOneB) {
  EXPECT_EQ(make_schedule(Kind::Interleaved, 4, 6, 1).turns,
            make_schedule(Kind::OneFOneB, 4, 6).turns);
}

TEST(Schedule, PutsStagesInALoopOrInAV) {
  EXPECT_EQ(make_schedule(Kind::Interleaved, 3, 1, 2).rank_of,
            (std::vector<int32_t>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(make_schedule(Kind::ZeroBubbleV, 3, 1).rank_of,
            (std::vector<int32_t>{0, 1, 2, 2, 1, 0}));
}

TEST(Schedule, ReadsEveryNameItWrites) {
  EXPECT_EQ(kind_names(),
            (std::vector<std::string>{"gpipe",
                                      "1f1b",
                                      "interleaved",
                                      "zb-h1",
                                      "zb-h2",
                                      "zb-v",
                                      "pipedream",
                                      "2bw",
                                      "pipemare"}));
  for (const std::string& name : kind_names()) {
    EXPECT_EQ(kind_name(parse_kind(name)), name);
  }
  EXPECT_EQ(parse_kind("zb-h2"), Kind::ZeroBubbleH2);
}

TEST(Schedule, NamesTheNearestForAnUnknownName) {
  const std::string text = error_text<ConfigError>([] { parse_kind("gpip"); });
  EXPECT_EQ(text,
            "unknown pipeline schedule \"gpip\"; did you mean gpipe? (there are gpipe, 1f1b, "
            "interleaved, zb-h1, zb-h2, zb-v, pipedream, 2bw, pipemare)");
  const std::string lost = error_text<ConfigError>([] { parse_kind("something else"); });
  EXPECT_EQ(lost.find("did you mean"), std::string::npos) << lost;
}

TEST(Schedule, RefusesNumbersBelowOne) {
  const auto text = [](Kind kind, int32_t ranks, int32_t micro_batches, int32_t chunks) {
    return error_text<ConfigError>([=] { make_schedule(kind, ranks, micro_batches, chunks); });
  };
  EXPECT_EQ(text(Kind::GPipe, 0, 1, 1), "a pipeline with 0 ranks: it takes at least 1");
  EXPECT_EQ(text(Kind::GPipe, 1, -2, 1), "a pipeline with -2 micro-batches: it takes at least 1");
  EXPECT_EQ(text(Kind::Interleaved, 1, 1, 0),
            "a pipeline with 0 chunks on each rank: it takes at least 1");
  EXPECT_EQ(find_fault(make_schedule(Kind::GPipe, 1, 1, 0)), "") << "gpipe has no chunks";
}

TEST(Schedule, RefusesAbsurdSizesBeforeBuildingThem) {
  constexpr int32_t most = std::numeric_limits<int32_t>::max();
  for (const std::string& name : kind_names()) {
    const Kind kind = parse_kind(name);
    for (const auto& size : {std::pair{100'000, 1}, {4, most}, {most, most}}) {
      const std::string text =
          error_text<ConfigError>([&] { make_schedule(kind, size.first, size.second, 2); });
      EXPECT_NE(text.find("too large to schedule"), std::string::npos) << text;
    }
  }
}

}  // namespace

}  // namespace penstock::schedule
