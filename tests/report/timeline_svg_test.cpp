#include "penstock/report/timeline_svg.h"

#include <limits>
#include <regex>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/report/memory_path.h"

#include "report/step_example.h"
#include "report/xml_checks.h"

namespace penstock::report {
namespace {

using program::Program;
using program::Timeline;

constexpr double kPlotWidth = 964;  // pixels, as timeline_svg has it

std::string draw(const Program& program, bool has_measured = true) {
  const Timeline predicted = program::simulate(program);
  const Timeline measured = example_measurement(program);
  return timeline_svg({"A step", program, predicted, has_measured ? &measured : nullptr});
}

TEST(TimelineSvg, IsWellFormedAndLoadsNothing) {
  for (const bool has_measured : {false, true}) {
    for (const int32_t ranks : {1, 3, 12}) {
      const std::string svg = draw(example_program({.ranks = ranks}), has_measured);
      EXPECT_TRUE(is_well_formed(svg));
      EXPECT_EQ(count_of(svg, "http"), 1u);
      EXPECT_EQ(count_of(svg, "xmlns=\"http://www.w3.org/2000/svg\""), 1u);
      EXPECT_EQ(svg.find("nan"), std::string::npos);
      EXPECT_EQ(svg.find("inf"), std::string::npos);
    }
  }
}

TEST(TimelineSvg, EachInstructionIsABarInEachLane) {
  const Program program = example_program({.layers = 6, .micro_batches = 2});
  const size_t num_instructions = program.ranks[0].instructions.size();
  EXPECT_EQ(count_of(draw(program, false), "</title></rect>"), num_instructions);
  EXPECT_EQ(count_of(draw(program, true), "</title></rect>"), 2 * num_instructions);
}

TEST(TimelineSvg, BarsAreAsWideAsTheirTime) {
  const Program program = example_program({.layers = 2, .micro_batches = 1, .recomputed = 0});
  const std::string svg = draw(program, false);
  const double seconds = program::simulate(program).seconds;
  const std::regex bar("<rect x=\"([0-9.]+)\" width=\"([0-9.]+)\"[^>]*><title>([a-z]+)");
  std::vector<std::pair<std::string, double>> found;
  for (std::sregex_iterator it(svg.begin(), svg.end(), bar), end; it != end; ++it) {
    found.push_back({(*it)[3], std::stod((*it)[2])});
  }
  const auto& instructions = program.ranks[0].instructions;
  ASSERT_EQ(found.size(), instructions.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].first, program::op_name(instructions[i].op));
    // Less the gap to the next bar.
    EXPECT_NEAR(found[i].second, instructions[i].seconds / seconds * kPlotWidth - 0.7, 0.11);
  }
}

TEST(TimelineSvg, NamesLayersTimesBytesAndTheLimit) {
  const Program program = example_program({});
  const Timeline predicted = program::simulate(program);
  const std::string svg = draw(program, true);
  for (const char* text : {">A step<",
                           ">forward again<",
                           ">forward, keeps nothing<",
                           ">backward<",
                           ">ms<",
                           ">limit 1.00 GiB<",
                           ">500 MiB<",
                           ">parameters, gradients 360.0 MiB<",
                           ">5<",
                           "forward of block 1 mlp, micro-batch 1, keeps all; at "}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(predicted.ranks[0].peak_bytes / kExampleMiB, 537);
  EXPECT_NE(svg.find(">peak 537.0 MiB predicted, "), std::string::npos);
}

TEST(TimelineSvg, TooltipsHaveBothTimes) {
  const Program program = example_program({.layers = 2, .micro_batches = 1, .recomputed = 0});
  const std::string svg = draw(program);  // the first instruction: 1 ms, measured 0.96 ms
  EXPECT_NE(svg.find("<title>clear; at 0.000 ms for 1.000 ms, measured 0.960 ms<"),
            std::string::npos);
  EXPECT_NE(svg.find("<title>clear; at 0.000 ms for 0.960 ms, predicted 1.000 ms<"),
            std::string::npos);
}

TEST(TimelineSvg, OnlyKindsThatTakeTimeAreInTheLegend) {
  const std::string svg = draw(example_program({.recomputed = 0}), false);
  EXPECT_EQ(svg.find("again"), std::string::npos);
  EXPECT_EQ(svg.find(">forward, keeps nothing<"), std::string::npos);
  EXPECT_NE(svg.find(">forward<"), std::string::npos);
}

TEST(TimelineSvg, ALimitFarAboveIsWrittenInsteadOfDrawn) {
  Program program = example_program({});
  program.ranks[0].limit_bytes = 80 * 1024 * kExampleMiB;
  std::string svg = draw(program);
  EXPECT_EQ(svg.find("stroke-dasharray"), std::string::npos);
  EXPECT_NE(svg.find("; limit 80.00 GiB"), std::string::npos);
  EXPECT_NE(svg.find(">400 MiB<"), std::string::npos);
  program.ranks[0].limit_bytes = 0;
  svg = draw(program);
  EXPECT_EQ(svg.find("limit"), std::string::npos);
}

TEST(TimelineSvg, EachResourceHasItsLane) {
  Program program = example_program({.ranks = 2});
  auto& instructions = program.ranks[1].instructions;
  instructions[1].resource = {program::ResourceKind::Copy, 1};
  instructions[2].resource = {program::ResourceKind::Link, 0};
  const std::string svg = draw(program);
  for (const char* lane :
       {">rank 0 compute<", ">rank 1 compute<", ">rank 1 copy 1<", ">rank 1 link to rank 0<"}) {
    EXPECT_EQ(count_of(svg, lane), 1u) << lane;
  }
  EXPECT_EQ(count_of(svg, ">measured</text>"), 5u);  // four lanes and the name of a curve
}

TEST(TimelineSvg, NamesCannotBreakOut) {
  Program program = example_program({});
  program.layers[1].name = "</title></rect><script>alert(\"1\")</script> & \x01 \xFF";
  program.layers[1].ways[0].name = "<b>\"";
  program.ranks[0].residents[0].name = "</text><b>";
  const Timeline predicted = program::simulate(program);
  const std::string svg = timeline_svg({"</svg><b>&\"'", program, predicted});
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
}

TEST(TimelineSvg, SizeIsBoundedForManyRanksAndInstructions) {
  const Program program =
      example_program({.layers = 50, .micro_batches = 80, .ranks = 32, .recomputed = 25});
  ASSERT_GE(program.ranks[0].instructions.size(), 10'000u);
  const std::string svg = draw(program);
  EXPECT_LT(svg.size(), 4'000'000u);
  EXPECT_TRUE(is_well_formed(svg));
}

TEST(TimelineSvg, EmptyProgramsAreDrawn) {
  for (const size_t num_ranks : {0u, 1u}) {
    Program program;
    program.ranks.resize(num_ranks);
    const std::string svg = draw(program);
    EXPECT_TRUE(is_well_formed(svg));
    EXPECT_EQ(svg.find("nan"), std::string::npos);
  }
}

TEST(TimelineSvg, TimelinesOfOtherProgramsAreRefused) {
  const Program program = example_program({});
  const Timeline good = program::simulate(program);
  Timeline fewer = good, later = good, endless = good, no_rank = good;
  fewer.ranks[0].spans.pop_back();
  std::swap(later.ranks[0].spans[1], later.ranks[0].spans[2]);
  endless.ranks[0].spans[1].end = std::numeric_limits<double>::infinity();
  no_rank.ranks.clear();
  for (const Timeline& bad : {fewer, later, endless, no_rank}) {
    EXPECT_THROW(timeline_svg({"", program, bad}), InternalError);
    EXPECT_THROW(timeline_svg({"", program, good, &bad}), InternalError);
  }
}

// One pixel per second and per byte, upwards.
const PathScale kPixels = {[](double seconds) { return seconds; },
                           [](double bytes) { return 100 - bytes; }};

TEST(MemoryPath, IsAStepFunctionFromAndToZero) {
  EXPECT_EQ(memory_path({{0, 10}, {5, 30}, {9, 20}}, 12, kPixels),
            "M0.0 100.0V90.0H5.0V70.0H9.0V80.0H12.0V100.0");
  EXPECT_EQ(memory_path({}, 12, kPixels), "");
}

TEST(MemoryPath, WhatLastsNoTimeIsDrawnOnlyIfItIsAPeak) {
  // 30 ends, 10 for no time, then 30 again: no dip.
  EXPECT_EQ(memory_path({{0, 30}, {5, 10}, {5, 30}}, 9, kPixels), "M0.0 100.0V70.0H9.0V100.0");
  EXPECT_EQ(memory_path({{0, 30}, {5, 60}, {5, 30}}, 9, kPixels),
            "M0.0 100.0V70.0H5.0V40.0V70.0H9.0V100.0");
}

TEST(MemoryPath, ThePeakSurvivesThinning) {
  std::vector<program::MemoryPoint> curve;
  for (int i = 0; i < 1'000'000; ++i) {
    curve.push_back({i * 1e-4, i == 543'210 ? 97 : 20 + i % 7});
  }
  const std::string path = memory_path(curve, 100, kPixels);
  EXPECT_LT(path.size(), 100u * 30);
  EXPECT_EQ(count_of(path, "V3.0"), 1u);
}

}  // namespace
}  // namespace penstock::report
