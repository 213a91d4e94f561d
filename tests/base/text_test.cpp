#include "penstock/base/text.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(Cat, JoinsValuesOfAnyPrintableType) {
  EXPECT_EQ(cat("layer ", 3, " of ", size_t{12}, ", ", 0.5, 'x', std::string("!")),
            "layer 3 of 12, 0.5x!");
}

TEST(Join, PutsTheSeparatorBetweenWordsOnly) {
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(join({"a"}, ", "), "a");
  EXPECT_EQ(join({"a", "", "c"}, ", "), "a, , c");
}

TEST(EditDistance, CountsEachKindOfSlipOnce) {
  EXPECT_EQ(edit_distance("steps", "steps"), 0);
  EXPECT_EQ(edit_distance("steps", "step"), 1);    // deletion
  EXPECT_EQ(edit_distance("steps", "stepps"), 1);  // insertion
  EXPECT_EQ(edit_distance("steps", "stops"), 1);   // replacement
  EXPECT_EQ(edit_distance("steps", "setps"), 1);   // neighbours swapped
  EXPECT_EQ(edit_distance("ab", "ba"), 1);
}

TEST(EditDistance, AddsUpOverAWord) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("abcdef", "badcfe"), 3);
  EXPECT_EQ(edit_distance("abc", "xyz"), 3);
  EXPECT_EQ(edit_distance("abc", "cab"), 2);  // not neighbours: one goes, one comes
}

TEST(EditDistance, ToTheEmptyWordIsTheLength) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
}

TEST(EditDistance, IsTheSameBothWays) {
  const std::vector<std::string> words = {
      "", "a", "ba", "abc", "bca", "train.lr", "lr", "trian.rl"};
  for (const std::string& a : words) {
    for (const std::string& b : words) {
      EXPECT_EQ(edit_distance(a, b), edit_distance(b, a)) << a << " " << b;
    }
  }
}

TEST(Nearest, FindsTheClosestCandidate) {
  const std::vector<std::string> keys = {"train.steps", "train.batch", "train.lr"};
  EXPECT_EQ(nearest("train.step", keys), "train.steps");
  EXPECT_EQ(nearest("tarin.batch", keys), "train.batch");
  EXPECT_EQ(nearest("train.lr", keys), "train.lr");
}

TEST(Nearest, TakesTheFirstOfEquallyCloseOnes) {
  EXPECT_EQ(nearest("cat", {"bat", "rat"}), "bat");
}

TEST(Nearest, SuggestsNothingFarAway) {
  EXPECT_EQ(nearest("elephant", {"cat", "dog"}), "");
  EXPECT_EQ(nearest("abcd", {"abxy"}), "abxy");  // half the letters is still plausible
  EXPECT_EQ(nearest("abcd", {"axyz"}), "");
  EXPECT_EQ(nearest("word", {}), "");
  EXPECT_EQ(nearest("", {"a"}), "");
}

}  // namespace
}  // namespace penstock
