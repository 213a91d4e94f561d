#include "penstock/train/step_records.h"

#include <gtest/gtest.h>

namespace penstock::train {

namespace {

StepRecord record(double seconds) {
  return {.timeline = {.seconds = seconds}};
}

}  // namespace

TEST(StepRecords, LeaveTheFirstStepOutOfTheMedian) {
  StepRecords records;
  EXPECT_EQ(records.median_seconds(), 0);
  EXPECT_FALSE(records.median().has_value());
  records.add(record(9));
  EXPECT_EQ(records.median_seconds(), 9);
  for (const double seconds : {3.0, 1.0, 2.0}) {
    records.add(record(seconds));
  }
  EXPECT_EQ(records.median_seconds(), 2);
}

TEST(StepRecords, ShowAStepOfMedianLengthAmongTheLast) {
  StepRecords records;
  for (int i = 0; i < 100; ++i) {
    records.add(record(50));
  }
  for (const double seconds : {1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 5.0}) {
    records.add(record(seconds));
  }
  ASSERT_EQ(records.last().size(), 9U);
  EXPECT_EQ(records.last().at(records.median().value()).timeline.seconds, 5);
}

TEST(StepRecords, CountThoseOfMostUpdatesForTheMedian) {
  StepRecords records;
  records.add(record(9), 1);
  records.add(record(7), 1);
  EXPECT_EQ(records.median_seconds(), 7);
  records.add(record(8), 4);
  records.add(record(12), 4);
  records.add(record(16), 4);
  records.add(record(40), 2);
  EXPECT_EQ(records.median_seconds(), 3);
  StepRecords of_one_long;
  of_one_long.add(record(8), 4);
  of_one_long.add(record(40), 2);
  EXPECT_EQ(of_one_long.median_seconds(), 2);
}

TEST(StepRecords, KeepInFullThoseOfMostUpdates) {
  StepRecords records;
  records.add(record(1), 1);
  records.add(record(8), 4);
  records.add(record(2), 2);
  ASSERT_EQ(records.last().size(), 1U);
  EXPECT_EQ(records.last().front().timeline.seconds, 8);
  EXPECT_EQ(records.updates_of_last(), 4);
}

}  // namespace penstock::train
