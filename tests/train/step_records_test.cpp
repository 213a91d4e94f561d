#include "penstock/train/step_records.h"

#include <gtest/gtest.h>

namespace penstock::train {

TEST(StepRecords, LeaveTheFirstStepOutOfTheMedian) {
  StepRecords records;
  EXPECT_EQ(records.median_seconds(), 0);
  EXPECT_EQ(records.median(), nullptr);
  records.add({.seconds = 9});
  EXPECT_EQ(records.median_seconds(), 9);
  for (const double seconds : {3.0, 1.0, 2.0}) {
    records.add({.seconds = seconds});
  }
  EXPECT_EQ(records.median_seconds(), 2);
}

TEST(StepRecords, ShowAStepOfMedianLengthAmongTheLast) {
  StepRecords records;
  for (int i = 0; i < 100; ++i) {
    records.add({.seconds = 50});
  }
  for (const double seconds : {1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 5.0}) {
    records.add({.seconds = seconds});
  }
  EXPECT_EQ(records.median()->seconds, 5);
}

}  // namespace penstock::train
