#include "penstock/report/bubbles.h"

#include <gtest/gtest.h>

namespace penstock::report {
namespace {

using program::Op;
using program::ResourceKind;

struct Example {
  program::RankProgram rank;
  program::RankTimeline timeline;

  void add(double start, double end, program::Resource resource = {}) {
    timeline.spans.push_back({static_cast<int32_t>(rank.instructions.size()), start, end});
    rank.instructions.push_back({.op = Op::Step, .resource = resource});
  }
  Bubbles bubbles() const { return bubbles_of(rank, timeline); }
};

TEST(Bubbles, AreBetweenTheFirstAndTheLastOfTheComputeLane) {
  Example example;
  example.add(0, 1, {ResourceKind::Inlet, 1});  // before its first work
  example.add(2, 4);
  example.add(5, 6);
  example.add(6, 7);
  example.add(9, 12);
  example.add(13, 20, {ResourceKind::Link, 1});  // after its last
  const Bubbles bubbles = example.bubbles();
  ASSERT_EQ(bubbles.all.size(), 2u);
  EXPECT_EQ(bubbles.all[0].start, 4);
  EXPECT_EQ(bubbles.all[0].end, 5);
  EXPECT_EQ(bubbles.all[1].start, 7);
  EXPECT_EQ(bubbles.all[1].end, 9);
  EXPECT_DOUBLE_EQ(bubbles.share, 0.3);
}

TEST(Bubbles, WhatTakesNoTimeIsNeitherFirstNorLast) {
  Example example;
  example.add(0, 0);
  example.add(2, 4);
  example.add(6, 6);
  example.add(9, 9);
  EXPECT_TRUE(example.bubbles().all.empty());
  EXPECT_EQ(example.bubbles().share, 0);
}

TEST(Bubbles, RoundingIsNone) {
  Example example;
  example.add(0, 0.1 + 0.2);
  example.add(0.3 + 1e-13, 0.7);
  EXPECT_TRUE(example.bubbles().all.empty());
}

TEST(Bubbles, OfARankThatDoesNothingThereAreNone) {
  EXPECT_TRUE(Example().bubbles().all.empty());
}

TEST(Bubbles, TheirShareIsInTheLabel) {
  EXPECT_EQ(with_bubble_share("rank 2", {{}, 0.1234}), "rank 2 (12.3% idle)");
  EXPECT_EQ(with_bubble_share("rank 2", {{}, 0.0001}), "rank 2");
}

}  // namespace
}  // namespace penstock::report
