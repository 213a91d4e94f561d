#include "penstock/report/peak_values.h"

#include <gtest/gtest.h>

#include "report/pipeline_example.h"
#include "report/replicas_example.h"
#include "report/step_example.h"

namespace penstock::report {
namespace {

using program::Program;
using program::Timeline;

// Whatever overlaps: the list is all of the peak, and nothing else.
TEST(PeakValues, AddUpToThePeak) {
  for (const Program& program : {example_program({}),
                                 example_program({.micro_batches = 3, .ranks = 2}),
                                 pipeline_program(4),
                                 replicas_program(program::Shard::None),
                                 replicas_program(program::Shard::Parameters)}) {
    const Timeline timeline = program::simulate(program);
    for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
      const PeakValues peak = values_at_peak(program, rank, timeline.ranks[rank]);
      EXPECT_EQ(peak.bytes, timeline.ranks[rank].peak_bytes);
      EXPECT_EQ(peak.instruction, timeline.ranks[rank].peak_instruction);
      for (size_t i = 1; i < peak.values.size(); ++i) {
        EXPECT_GE(peak.values[i - 1].bytes, peak.values[i].bytes);
      }
    }
  }
}

// By hand: the peak of the example is the backward of layer 2, right after the loss and the
// backwards above it.
TEST(PeakValues, AreNamedByWhatTheyAreOf) {
  const Program program =
      example_program({.layers = 2, .micro_batches = 1, .ranks = 1, .recomputed = 0});
  const Timeline timeline = program::simulate(program);
  const PeakValues peak = values_at_peak(program, 0, timeline.ranks[0]);
  const auto row = [&](size_t i) {
    const HeldValue& one = peak.values.at(i);
    return cat(one.name, "|", one.what, "|", one.of, "|", one.micro_batch, "|", one.bytes >> 20);
  };
  ASSERT_EQ(peak.values.size(), 8u);
  EXPECT_EQ(row(0), "k0|fixed|parameters|-1|180");
  EXPECT_EQ(row(1), "k1|fixed|gradients|-1|180");
  EXPECT_EQ(row(2), "|working memory|backward of block 0 mlp, micro-batch 0|0|60");
  EXPECT_EQ(row(3), "s1.0|saved|layer 1, block 0 mlp|0|32");
  EXPECT_EQ(row(4), "s0.0|saved|layer 0, block 0 attention|0|20");
  EXPECT_EQ(row(5), "x0.0|activation|layer 0, block 0 attention|0|4");
  EXPECT_EQ(row(6), "x1.0|activation|layer 1, block 0 mlp|0|4");
  EXPECT_EQ(row(7), "d2.0|gradient|loss|0|4");
}

TEST(PeakValues, OtherTiersAreNotCounted) {
  Program program = example_program({.layers = 2, .micro_batches = 1, .recomputed = 0});
  program.ranks[0].values[0].tier = program::Tier::Host;
  const Timeline timeline = program::simulate(program);
  const PeakValues peak = values_at_peak(program, 0, timeline.ranks[0]);
  EXPECT_EQ(peak.bytes, timeline.ranks[0].peak_bytes);
  EXPECT_EQ(peak.values[0].name, "k1");
}

TEST(PeakValues, TextHasTheLargestAndWhatTheOthersAre) {
  const Program program =
      example_program({.layers = 2, .micro_batches = 1, .ranks = 1, .recomputed = 0});
  const Timeline timeline = program::simulate(program);
  EXPECT_EQ(
      peak_values_text(program, 0, timeline.ranks[0], 3),
      "rank 0 holds most, 484.0 MiB, in backward of block 0 mlp, micro-batch 0\n\n"
      "value  what            of                                      micro-batch      bytes\n"
      "-------------------------------------------------------------------------------------\n"
      "k0     fixed           parameters                                           180.0 MiB\n"
      "k1     fixed           gradients                                            180.0 MiB\n"
      "       working memory  backward of block 0 mlp, micro-batch 0            0   60.0 MiB\n"
      "       5 more                                                                64.0 MiB\n");
}

TEST(PeakValues, OfARankThatDoesNothingAreWhatItHolds) {
  Program program = example_program({});
  program.ranks[0].instructions.clear();
  program.ranks[0].given.clear();
  const Timeline timeline = program::simulate(program);
  const PeakValues peak = values_at_peak(program, 0, timeline.ranks[0]);
  EXPECT_EQ(peak.bytes, 360 * kExampleMiB);
  EXPECT_EQ(peak.instruction, -1);
  EXPECT_EQ(peak.values.size(), 2u);
}

}  // namespace
}  // namespace penstock::report
