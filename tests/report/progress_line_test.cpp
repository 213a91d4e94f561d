#include "penstock/report/progress_line.h"

#include <gtest/gtest.h>

#include "penstock/report/text_width.h"

namespace penstock::report {
namespace {

ProgressState training() {
  return {"train", 20, 100, {{"loss", "2.3100"}, {"lr", "3.0e-04"}, {"", "12.3k tok/s"}}, 80.0};
}

TEST(ProgressLine, PlainHasCountFieldsAndTimeLeft) {
  EXPECT_EQ(plain_progress_line(training()),
            "train 20/100  loss 2.3100  lr 3.0e-04  12.3k tok/s  1m 20s left");
}

TEST(ProgressLine, TheLastSecondIsNotCountedDown) {
  EXPECT_EQ(plain_progress_line({"", 9, 10, {}, 0.25}), "9/10  <1 s left");
  EXPECT_EQ(plain_progress_line({"", 9, 10, {}, 4.25}), "9/10  4.2 s left");
}

TEST(ProgressLine, WithoutTotalOrTitleOnlyTheCountIsLeft) {
  EXPECT_EQ(plain_progress_line({"", 7, 0, {}, std::nullopt}), "7");
  EXPECT_EQ(live_progress_line({"", 7, 0, {}, std::nullopt}, 80), "7");
}

TEST(ProgressLine, LiveHasABarOfTheShareThatIsDone) {
  EXPECT_EQ(live_progress_line({"plan", 5, 10, {}, std::nullopt}, 28),
            "plan [=======>       ]  5/10");
  EXPECT_EQ(live_progress_line({"plan", 0, 10, {}, std::nullopt}, 28),
            "plan [>              ]  0/10");
  EXPECT_EQ(live_progress_line({"plan", 10, 10, {}, std::nullopt}, 28),
            "plan [===============] 10/10");
}

TEST(ProgressLine, BarStaysWithinItsBracketsWhenTheCountDoesNot) {
  EXPECT_EQ(live_progress_line({"", 30, 10, {}, std::nullopt}, 19), "[===========] 30/10");
  EXPECT_EQ(live_progress_line({"", -5, 10, {}, std::nullopt}, 19), "[>          ] -5/10");
}

TEST(ProgressLine, LiveIsNeverWiderThanTheTerminal) {
  ProgressState state = training();
  state.title = "größe";
  for (size_t width = 0; width < 120; ++width) {
    EXPECT_LE(text_width(live_progress_line(state, width)), width);
  }
}

TEST(ProgressLine, NarrowLinesLoseTheBarThenTheLastFields) {
  const std::string wide = live_progress_line(training(), 100);
  EXPECT_NE(wide.find('['), std::string::npos);
  EXPECT_TRUE(wide.ends_with("12.3k tok/s  1m 20s left")) << wide;
  const std::string without_bar =
      "train  20/100  loss 2.3100  lr 3.0e-04  12.3k tok/s  1m 20s left";
  EXPECT_EQ(live_progress_line(training(), without_bar.size()), without_bar);
  EXPECT_EQ(live_progress_line(training(), without_bar.size() - 1),
            "train  20/100  loss 2.3100  lr 3.0e-04  1m 20s left");
  EXPECT_EQ(live_progress_line(training(), 26), "train  20/100  1m 20s left");
  EXPECT_EQ(live_progress_line(training(), 10), "train  20/");
}

TEST(ProgressLine, AdvancingDoesNotMoveTheFields) {
  ProgressState state = training();
  state.done = 9;
  const size_t before = live_progress_line(state, 100).find("loss");
  state.done = 100;
  EXPECT_EQ(live_progress_line(state, 100).find("loss"), before);
}

}  // namespace
}  // namespace penstock::report
