#include "penstock/report/axis.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace penstock::report {
namespace {

std::vector<std::string> labels(const Axis& axis, int about = 6) {
  std::vector<std::string> out;
  for (const Tick& tick : axis.ticks(about)) {
    out.push_back(tick.label);
  }
  return out;
}

using Labels = std::vector<std::string>;

TEST(Axis, LinearTicksAreRoundNumbers) {
  EXPECT_EQ(labels(Axis({0, 100}, Scale::Linear)), (Labels{"0", "20", "40", "60", "80", "100"}));
  EXPECT_EQ(labels(Axis({0.3, 1.1}, Scale::Linear)), (Labels{"0.4", "0.6", "0.8", "1.0"}));
  EXPECT_EQ(labels(Axis({-1, 1}, Scale::Linear)), (Labels{"-1.0", "-0.5", "0", "0.5", "1.0"}));
}

TEST(Axis, LargeAndSmallNumbersAreShort) {
  EXPECT_EQ(labels(Axis({0, 20000}, Scale::Linear)), (Labels{"0", "5k", "10k", "15k", "20k"}));
  EXPECT_EQ(labels(Axis({0, 2.5e6}, Scale::Linear)),
            (Labels{"0", "0.5M", "1.0M", "1.5M", "2.0M", "2.5M"}));
  EXPECT_EQ(labels(Axis({0, 6e-4}, Scale::Linear)),
            (Labels{"0", "1e-4", "2e-4", "3e-4", "4e-4", "5e-4", "6e-4"}));
  EXPECT_EQ(labels(Axis({0, 4e20}, Scale::Linear)), (Labels{"0", "1e20", "2e20", "3e20", "4e20"}));
}

TEST(Axis, NeighbouringLabelsDiffer) {
  const std::vector<std::vector<double>> ranges = {{1e6, 1e6 + 1},
                                                   {49990, 50010},
                                                   {1e10, 1e10 + 20},
                                                   {0.01, 0.0100002},
                                                   {-3e-7, 5e-7},
                                                   {1e15, 1e15 + 1e7},
                                                   {1e-200, 2e-200}};
  for (const auto& range : ranges) {
    const Labels texts = labels(Axis(range, Scale::Linear));
    EXPECT_GE(texts.size(), 3u);
    for (size_t i = 1; i < texts.size(); ++i) {
      EXPECT_NE(texts[i - 1], texts[i]);
    }
  }
}

TEST(Axis, TicksStayWithinTheEndsAndTheirNumber) {
  for (const double low : {-1e280, -7.3, 0.0, 1e-9, 0.1, 3.0, 1e12}) {
    for (const double width : {1e-3, 0.7, 1.0, 9.0, 12345.0, 1e285}) {
      for (const int about : {2, 4, 6, 10}) {
        const Axis axis({low, low + width}, Scale::Linear);
        const std::vector<Tick> ticks = axis.ticks(about);
        EXPECT_LE(ticks.size(), static_cast<size_t>(about) + 1);
        EXPECT_GE(ticks.size(), 1u);
        for (const Tick& tick : ticks) {
          EXPECT_GE(axis.position(tick.value), 0);
          EXPECT_LE(axis.position(tick.value), 1);
        }
      }
    }
  }
}

TEST(Axis, RoundEndsAreTicks) {
  for (const auto& range : std::vector<std::vector<double>>{
           {0.3, 1.1}, {0.5, 6.4}, {-2.2, 7.9}, {10.1, 10.2}, {0.3, 0.9}}) {
    Axis axis(range, Scale::Linear);
    axis.round_ends(6);
    EXPECT_LE(axis.low(), range[0]);
    EXPECT_GE(axis.high(), range[1]);
    const std::vector<Tick> ticks = axis.ticks(6);
    EXPECT_DOUBLE_EQ(ticks.front().value, axis.low());
    EXPECT_DOUBLE_EQ(ticks.back().value, axis.high());
  }
}

TEST(Axis, RoundEndsLeaveRoundNumbersAlone) {
  Axis axis({0.3, 0.9}, Scale::Linear);  // 0.3 / 0.1 is a little less than 3
  axis.round_ends(6);
  EXPECT_DOUBLE_EQ(axis.low(), 0.3);
  EXPECT_DOUBLE_EQ(axis.high(), 0.9);
}

TEST(Axis, LogTicksAreDecades) {
  EXPECT_EQ(labels(Axis({1e-6, 1}, Scale::Log10)),
            (Labels{"1e-6", "1e-5", "1e-4", "0.001", "0.01", "0.1", "1"}));
  EXPECT_EQ(labels(Axis({1, 1e6}, Scale::Log10)),
            (Labels{"1", "10", "100", "1000", "10k", "100k", "1M"}));
  EXPECT_EQ(labels(Axis({1, 1e12}, Scale::Log10)),
            (Labels{"1", "100", "10k", "1M", "100M", "10G", "1T"}));
}

TEST(Axis, ShortLogAxesHaveTicksWithinTheDecade) {
  EXPECT_EQ(labels(Axis({1, 60}, Scale::Log10)), (Labels{"1", "2", "5", "10", "20", "50"}));
  EXPECT_EQ(labels(Axis({2.1, 2.9}, Scale::Log10)), (Labels{"2.2", "2.4", "2.6", "2.8"}));
}

TEST(Axis, LogPositionsAreEvenPerDecade) {
  const Axis axis({1e-4, 1}, Scale::Log10);
  EXPECT_DOUBLE_EQ(axis.position(1e-4), 0);
  EXPECT_NEAR(axis.position(1e-2), 0.5, 1e-12);
  EXPECT_DOUBLE_EQ(axis.position(1), 1);
}

TEST(Axis, AlikeValuesGetRoomAround) {
  for (const double value : {0.0, 5.0, -3e9, 1e-300, 1e280}) {
    const Axis axis({value, value}, Scale::Linear);
    EXPECT_NEAR(axis.position(value), 0.5, 1e-9);
    EXPECT_GE(axis.ticks(6).size(), 2u);
  }
  const Axis log_axis({3, 3}, Scale::Log10);
  EXPECT_NEAR(log_axis.position(3), 0.5, 1e-9);
  EXPECT_GE(log_axis.ticks(6).size(), 2u);
}

TEST(Axis, WithoutValuesHasDefaultEnds) {
  EXPECT_EQ(labels(Axis({}, Scale::Linear), 2), (Labels{"0", "0.5", "1.0"}));
  EXPECT_EQ(labels(Axis({}, Scale::Log10)), (Labels{"1", "2", "5", "10"}));
}

TEST(Axis, LeavesOutWhatCannotBeShown) {
  const double inf = std::numeric_limits<double>::infinity();
  const Axis linear({1, std::nan(""), inf, -inf, 1.7e308, -1.7e308, 2}, Scale::Linear);
  EXPECT_EQ(linear.low(), 1);
  EXPECT_EQ(linear.high(), 2);
  EXPECT_FALSE(linear.can_show(std::nan("")));
  EXPECT_FALSE(linear.can_show(-inf));
  EXPECT_TRUE(linear.can_show(-1));
  const Axis log_axis({0, -5, 1, 100}, Scale::Log10);
  EXPECT_EQ(log_axis.low(), 1);
  EXPECT_FALSE(log_axis.can_show(0));
  EXPECT_FALSE(log_axis.can_show(-1));
}

TEST(Axis, TheWidestLogAxisStillHasPositions) {
  const Axis axis({1e-289, 1e289}, Scale::Log10);
  EXPECT_NEAR(axis.position(1), 0.5, 1e-12);
  EXPECT_LE(axis.ticks(6).size(), 7u);
}

}  // namespace
}  // namespace penstock::report
