#include "penstock/report/text_width.h"

#include <gtest/gtest.h>

namespace penstock::report {
namespace {

TEST(TextWidth, IsTheNumberOfCodePoints) {
  EXPECT_EQ(text_width(""), 0u);
  EXPECT_EQ(text_width("abc"), 3u);
  EXPECT_EQ(text_width("µs→😀"), 4u);
}

TEST(TextWidth, PaddingNeverShortens) {
  EXPECT_EQ(pad_left("µ", 3), "  µ");
  EXPECT_EQ(pad_right("µ", 3), "µ  ");
  EXPECT_EQ(pad_left("long", 2), "long");
  EXPECT_EQ(pad_right("long", 2), "long");
}

TEST(TextWidth, CuttingKeepsCodePointsWhole) {
  EXPECT_EQ(cut_to_width("aµb", 2), "aµ");
  EXPECT_EQ(cut_to_width("aµb", 3), "aµb");
  EXPECT_EQ(cut_to_width("aµb", 9), "aµb");
  EXPECT_EQ(cut_to_width("aµb", 0), "");
}

}  // namespace
}  // namespace penstock::report
