// Step times and bubbles against known numbers: simulations that share no code with ours, the
// schedules' own formulas, and the published table of the zero-bubble paper.
#include "penstock/schedule/clock.h"

#include <utility>

#include <gtest/gtest.h>

#include "penstock/base/error.h"

namespace penstock::schedule {

namespace {

constexpr double kClose = 1e-9;

// One second forward and two backward for a rank's whole share.
double unit_step(Kind kind, int32_t ranks, int32_t micro_batches, int32_t chunks = 2) {
  const double share = 1.0 / stages_per_rank(kind, chunks);
  const PhaseSeconds seconds{share, 2 * share, share, share};
  return run_clock(make_schedule(kind, ranks, micro_batches, chunks), seconds, 0).seconds;
}

// Seconds that the rank with the longest step waits, with one stage on each rank.
double waiting(Kind kind, int32_t ranks, int32_t micro_batches, double f, double b, double w) {
  const PhaseSeconds seconds{f, b + w, b, w};
  const Clock clock = run_clock(make_schedule(kind, ranks, micro_batches), seconds, 0);
  const double busy_s = micro_batches * (f + b + w);
  const double bubble = bubble_of(clock, busy_s);
  return busy_s * bubble / (1 - bubble);
}

// What is in flight, less by `step` from each rank to the next.
std::vector<double> falling(double first, double step, int32_t ranks) {
  std::vector<double> values;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    values.push_back(first - step * rank);
  }
  return values;
}

TEST(Clock, GivesTheKnownStepSeconds) {
  EXPECT_DOUBLE_EQ(unit_step(Kind::GPipe, 4, 8), 33);
  EXPECT_DOUBLE_EQ(unit_step(Kind::OneFOneB, 4, 8), 33);
  EXPECT_DOUBLE_EQ(unit_step(Kind::Interleaved, 4, 8, 2), 28.5);
  EXPECT_DOUBLE_EQ(unit_step(Kind::Interleaved, 4, 8, 4), 26.25);
  EXPECT_DOUBLE_EQ(unit_step(Kind::ZeroBubbleH1, 4, 8), 27);

  EXPECT_DOUBLE_EQ(unit_step(Kind::GPipe, 8, 32), 117);
  EXPECT_DOUBLE_EQ(unit_step(Kind::OneFOneB, 8, 32), 117);
  EXPECT_DOUBLE_EQ(unit_step(Kind::Interleaved, 8, 32, 2), 106.5);
  EXPECT_DOUBLE_EQ(unit_step(Kind::Interleaved, 8, 32, 4), 101.25);
  EXPECT_DOUBLE_EQ(unit_step(Kind::ZeroBubbleH1, 8, 32), 103);
}

TEST(Clock, SchedulesHoldTheKnownMostInFlight) {
  const auto most = [](Kind kind, int32_t ranks, int32_t micro_batches, int32_t chunks = 2) {
    return most_in_flight(make_schedule(kind, ranks, micro_batches, chunks));
  };
  EXPECT_EQ(most(Kind::GPipe, 4, 8), falling(8, 0, 4));
  EXPECT_EQ(most(Kind::OneFOneB, 4, 8), falling(4, 1, 4));
  EXPECT_EQ(most(Kind::Interleaved, 4, 8, 2), falling(5.5, 1, 4));
  EXPECT_EQ(most(Kind::ZeroBubbleH1, 4, 8), falling(4, 0, 4));
  EXPECT_EQ(most(Kind::ZeroBubbleH2, 4, 8), falling(7, 0, 4));
  EXPECT_EQ(most(Kind::ZeroBubbleV, 4, 8), falling(4, 0, 4));

  EXPECT_EQ(most(Kind::OneFOneB, 8, 32), falling(8, 1, 8));
  EXPECT_EQ(most(Kind::Interleaved, 8, 32, 2), falling(11.5, 1, 8));
  EXPECT_EQ(most(Kind::Interleaved, 8, 32, 4), falling(9.75, 0.5, 8));
  EXPECT_EQ(most(Kind::ZeroBubbleH1, 8, 32), falling(8, 0, 8));
  EXPECT_EQ(most(Kind::ZeroBubbleH2, 8, 32), falling(15, 0, 8));
  EXPECT_EQ(most(Kind::ZeroBubbleV, 8, 32), falling(8, 0, 8));
}

// The paper's calculated bubbles, of models of 1.5 and 6.2 billion parameters on 8 ranks.
struct PublishedBubble {
  int32_t micro_batches;
  double f_ms, b_ms, w_ms, transfer_ms;
  double one_f_one_b, zero_bubble_h1;
};

TEST(Clock, GivesTheBubblesOfTheZeroBubblePaper) {
  constexpr PublishedBubble table[] = {
      {24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585},
      {32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.1242},
      {64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674},
      {24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323},
      {32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.1045},
      {64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0554},
  };
  for (const PublishedBubble& row : table) {
    const PhaseSeconds ms{row.f_ms, row.b_ms + row.w_ms, row.b_ms, row.w_ms};
    const double busy_ms = row.micro_batches * (row.f_ms + row.b_ms + row.w_ms);
    const auto bubble = [&](Kind kind) {
      const Schedule schedule = make_schedule(kind, 8, row.micro_batches);
      return bubble_of(run_clock(schedule, ms, row.transfer_ms), busy_ms);
    };
    EXPECT_NEAR(bubble(Kind::OneFOneB), row.one_f_one_b, 0.00005) << row.f_ms;
    EXPECT_NEAR(bubble(Kind::ZeroBubbleH1), row.zero_bubble_h1, 0.00005) << row.f_ms;
  }
}

TEST(Clock, ZeroBubbleH2WaitsForItsFormula) {
  for (int32_t p = 1; p <= 8; ++p) {
    for (int32_t m = 2 * p; m <= 4 * p; ++m) {
      EXPECT_NEAR(waiting(Kind::ZeroBubbleH2, p, m, 1, 1, 1), 0, kClose) << p << " " << m;
      EXPECT_NEAR(waiting(Kind::ZeroBubbleH2, p, m, 1, 1, 0.75), (p - 1) * 0.5, kClose);
      EXPECT_NEAR(waiting(Kind::ZeroBubbleH2, p, m, 1, 1.25, 0.75), (p - 1) * 0.75, kClose);
      EXPECT_NEAR(waiting(Kind::ZeroBubbleH2, p, m, 1, 0.875, 0.75), (p - 1) * 0.375, kClose);
    }
  }
}

TEST(Clock, ZeroBubbleH1WaitsForItsFormula) {
  for (int32_t p = 1; p <= 8; ++p) {
    for (int32_t m = 2 * p; m <= 4 * p; ++m) {
      EXPECT_NEAR(waiting(Kind::ZeroBubbleH1, p, m, 1, 1, 1), p - 1, kClose) << p << " " << m;
      EXPECT_NEAR(waiting(Kind::ZeroBubbleH1, p, m, 1, 1.25, 0.75), (p - 1) * 1.5, kClose);
    }
  }
}

TEST(Clock, ZeroBubbleVLetsNoRankWaitOnceItHasBegun) {
  for (int32_t p = 1; p <= 8; ++p) {
    for (const int32_t m : {2 * p, 2 * p + 1, 3 * p, 64}) {
      const Clock clock =
          run_clock(make_schedule(Kind::ZeroBubbleV, p, m), PhaseSeconds{1, 2, 1, 1}, 0);
      EXPECT_NEAR(bubble_of(clock, 6.0 * m), 0, kClose) << p << " ranks, " << m;
      EXPECT_DOUBLE_EQ(clock.seconds, 6.0 * m + p - 1) << p << " ranks, " << m;
    }
  }
}

TEST(Clock, InterleavedWithAShortLastGroupCostsNoMoreThanAFullOne) {
  for (int32_t p = 2; p <= 8; ++p) {
    for (int32_t m = 1; m <= 40; ++m) {
      const int32_t full = (m + p - 1) / p * p;
      EXPECT_LE(unit_step(Kind::Interleaved, p, m, 3),
                unit_step(Kind::Interleaved, p, full, 3) + kClose);
    }
  }
}

// Two ranks, one micro-batch, by hand: forward 0..1, transfer, 1.5..2.5; backward there 2.5..4.5,
// transfer, here 5..7.
TEST(Clock, TellsWhenEachTurnStartsAndEnds) {
  const Schedule schedule = make_schedule(Kind::GPipe, 2, 1);
  const Clock clock = run_clock(schedule, PhaseSeconds{1, 2, 0, 0}, 0.5);
  EXPECT_EQ(clock.start, (std::vector<std::vector<double>>{{0, 5}, {1.5, 2.5}}));
  EXPECT_EQ(clock.end, (std::vector<std::vector<double>>{{1, 7}, {2.5, 4.5}}));
  EXPECT_EQ(clock.first_start, (std::vector<double>{0, 1.5}));
  EXPECT_EQ(clock.last_end, (std::vector<double>{7, 4.5}));
  EXPECT_EQ(clock.seconds, 7);
  EXPECT_DOUBLE_EQ(bubble_of(clock, 3), 4.0 / 7);
}

TEST(Clock, ATransferDelaysTheReceiverAndBlocksNobody) {
  const Schedule schedule = make_schedule(Kind::GPipe, 2, 3);
  const Clock clock = run_clock(schedule, PhaseSeconds{1, 2, 0, 0}, 10);
  EXPECT_EQ(clock.start[0], (std::vector<double>{0, 1, 2, 26, 28, 30}));
  EXPECT_EQ(clock.start[1], (std::vector<double>{11, 12, 13, 14, 16, 18}));
}

TEST(Clock, StagesOfTheSameRankNeedNoTransfer) {
  const Schedule schedule = make_schedule(Kind::ZeroBubbleV, 1, 4);
  EXPECT_DOUBLE_EQ(run_clock(schedule, PhaseSeconds{1, 2, 1, 1}, 100).seconds, 24);
}

TEST(Clock, AsksForTheSecondsOfEachTurn) {
  const Schedule schedule = make_schedule(Kind::OneFOneB, 1, 3);
  const auto seconds_of = [](const Turn& turn) { return turn.micro_batch == 1 ? 10.0 : 1.0; };
  EXPECT_DOUBLE_EQ(run_clock(schedule, seconds_of, 0).seconds, 24);
}

TEST(Clock, RefusesRanksThatWaitForEver) {
  Schedule schedule = make_schedule(Kind::GPipe, 2, 1);
  std::swap(schedule.turns[0][0], schedule.turns[0][1]);
  EXPECT_THROW(run_clock(schedule, PhaseSeconds{1, 2, 1, 1}, 0), InternalError);
}

}  // namespace

}  // namespace penstock::schedule
