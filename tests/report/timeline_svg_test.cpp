#include "penstock/report/timeline_svg.h"

#include <limits>
#include <regex>
#include <set>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/report/memory_path.h"

#include "report/pipeline_example.h"
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

// Those of the first rank that take time.
std::vector<program::Instruction> timed_instructions(const Program& program) {
  std::vector<program::Instruction> instructions = program.ranks[0].instructions;
  std::erase_if(instructions, [](const auto& one) { return one.seconds == 0; });
  return instructions;
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
  const size_t num_bars = timed_instructions(program).size();
  EXPECT_EQ(num_bars + 1, program.ranks[0].instructions.size());
  EXPECT_EQ(count_of(draw(program, false), "</title></rect>"), num_bars);
  EXPECT_EQ(count_of(draw(program, true), "</title></rect>"), 2 * num_bars);
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
  const auto instructions = timed_instructions(program);
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
                           ">recomputed forward<",
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
  const std::string svg = draw(program);  // the first instruction: 2 ms, measured 1.92 ms
  const std::string first = "<title>forward of block 0 attention, micro-batch 0, keeps all; ";
  EXPECT_NE(svg.find(first + "at 0.000 ms for 2.000 ms, measured 1.920 ms<"), std::string::npos);
  EXPECT_NE(svg.find(first + "at 0.000 ms for 1.920 ms, predicted 2.000 ms<"), std::string::npos);
}

TEST(TimelineSvg, OnlyKindsThatTakeTimeAreInTheLegend) {
  const std::string svg = draw(example_program({.recomputed = 0}), false);
  EXPECT_EQ(svg.find("recomputed"), std::string::npos);
  EXPECT_EQ(svg.find(">forward, keeps nothing<"), std::string::npos);
  EXPECT_NE(svg.find(">forward<"), std::string::npos);
  EXPECT_NE(svg.find(">squares<"), std::string::npos);
  EXPECT_EQ(svg.find(">decide<"), std::string::npos);
}

// What comes with every update, and takes a few numbers and no time.
TEST(TimelineSvg, DecisionsAndDropsOfNoTimeAreNotSeen) {
  const std::string svg = draw(pipeline_program(3), false);
  for (const char* text : {">squares<", ">decide<", ">drop<", ">add<"}) {
    EXPECT_EQ(svg.find(text), std::string::npos) << text;
  }
  EXPECT_NE(svg.find(">gather<"), std::string::npos);
  EXPECT_NE(svg.find("<title>gather of the squares, over all; at "), std::string::npos);
}

TEST(TimelineSvg, AnUpdateIsNamedForWhatItDoesAndASumForItsUnit) {
  using program::Op;
  Program program = example_program({.layers = 2, .ranks = 1});
  program.units = {{.name = "table", .layers = {0, 2}, .is_shared = true},
                   {.name = "own", .layers = {1}}};
  program.ranks[0].instructions = {{.op = Op::Add, .layer = 0, .units = {0}},
                                   {.op = Op::Step, .units = {1}},
                                   {.op = Op::Step, .units = {0, 1}}};
  Timeline timeline;
  timeline.ranks.resize(1);
  timeline.ranks[0].spans = {{0, 0, 1}, {1, 1, 2}, {2, 2, 3}};
  timeline.seconds = 3;
  const std::string svg = timeline_svg({"", program, timeline});
  EXPECT_EQ(count_of(svg, ">step</text>"), 3u);  // two bars and the legend
  EXPECT_EQ(count_of(svg, "fill=\"#14181d\">0</text>"), 1u) << svg;
  EXPECT_NE(svg.find("<title>add of block 0 attention of table; at "), std::string::npos);
  EXPECT_NE(svg.find("<title>step of own; at "), std::string::npos);
  EXPECT_NE(svg.find("<title>step of 2 units; at "), std::string::npos);
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

// The y and height of each lane's background, from top to bottom.
std::vector<std::pair<double, double>> lanes_of(const std::string& svg) {
  const std::regex lane("y=\"([0-9.]+)\" width=\"964.0\" height=\"([0-9.]+)\" fill=\"#f3f4f6\"");
  std::vector<std::pair<double, double>> lanes;
  for (std::sregex_iterator it(svg.begin(), svg.end(), lane), end; it != end; ++it) {
    lanes.push_back({std::stod((*it)[1]), std::stod((*it)[2])});
  }
  return lanes;
}

TEST(TimelineSvg, EachResourceHasItsLane) {
  Program program = example_program({.ranks = 2});
  auto& instructions = program.ranks[1].instructions;
  instructions[1].resource = {program::ResourceKind::Copy, 1};
  instructions[2].resource = {program::ResourceKind::Link, 0};
  instructions[3].resource = {program::ResourceKind::Inlet, 0};
  const std::string svg = draw(program);
  for (const char* lane : {">rank 0<", ">rank 1 (", ">copy 1<", ">to rank 0<", ">from rank 0<"}) {
    EXPECT_EQ(count_of(svg, lane), 1u) << lane;
  }
  EXPECT_EQ(count_of(svg, ">measured"), 6u);  // five lanes and the name of a curve
}

TEST(TimelineSvg, WhatDoesNothingTakesNoRoom) {
  Program program = example_program({.ranks = 2});
  for (program::Instruction& instruction : program.ranks[1].instructions) {
    instruction.seconds = 0;
  }
  program.ranks[0].instructions.push_back(
      {.op = program::Op::Drop, .resource = {program::ResourceKind::Copy, 1}});
  const std::string svg = draw(program, false);
  EXPECT_EQ(lanes_of(svg).size(), 1u);
  EXPECT_EQ(svg.find(">copy 1"), std::string::npos);
  EXPECT_EQ(svg.find(">rank 1<"), std::string::npos);
  EXPECT_NE(svg.find(">rank 1 memory<"), std::string::npos);  // it still holds something
}

TEST(TimelineSvg, BubblesAreMarkedAndTheirShareIsInTheLabel) {
  const Program program = pipeline_program(4);
  const Timeline timeline = program::simulate(program);
  const std::string svg = draw(program, false);
  const size_t marked = count_of(svg, "fill=\"url(#idle)\"><title>idle for ");
  EXPECT_EQ(marked, 5u);
  EXPECT_EQ(count_of(svg, "<pattern id=\"idle\""), 1u);
  EXPECT_EQ(count_of(svg, ">bubble: idle between its first and last work<"), 1u);
  EXPECT_EQ(count_of(svg, ">rank 0 (23.2% idle)<"), 1u);
  const std::string whole = draw(example_program({}), false);
  EXPECT_EQ(whole.find("idle for"), std::string::npos);
  EXPECT_EQ(whole.find("bubble"), std::string::npos);
}

TEST(TimelineSvg, SaysWhatNamesOfValuesMean) {
  const std::string svg = draw(pipeline_program(2), false);
  EXPECT_EQ(count_of(svg, ">w3.0</text>"), 1u);
  EXPECT_EQ(count_of(svg, ">what enters layer 3, micro-batch 0</text>"), 1u);
  EXPECT_EQ(svg.find(">q.0</text>"), std::string::npos);  // it holds nothing
}

TEST(TimelineSvg, WhatWasMeasuredComesFirst) {
  const Program program = example_program({});
  EXPECT_NE(draw(program, true).find(">step 128.2 ms measured, 124.0 ms predicted (ratio 1.03)"),
            std::string::npos);
}

TEST(TimelineSvg, WhatGoesBetweenRanksIsInLowLanesBelowTheirWork) {
  const std::string svg = draw(pipeline_program(3), false);
  EXPECT_TRUE(is_well_formed(svg));
  const auto lanes = lanes_of(svg);
  ASSERT_EQ(lanes.size(), 6u);  // of each rank: work, out, in
  for (size_t i = 0; i < lanes.size(); ++i) {
    EXPECT_EQ(lanes[i].second, i % 3 == 0 ? 26 : 13) << i;
    if (i > 0) {
      EXPECT_GE(lanes[i].first, lanes[i - 1].first + lanes[i - 1].second) << i;
    }
  }
}

TEST(TimelineSvg, SplitBackwardsSendsAndReceivesAreNamed) {
  const std::string svg = draw(pipeline_program(3), false);
  for (const char* text :
       {">backward, input<",
        ">backward, weight<",
        ">send<",
        ">receive<",
        ">3.2<",
        "<title>backward-weight of block 0 mlp, micro-batch 1; at ",
        "<title>send of block 1 attention, micro-batch 2, to rank 1, 8.0 MiB; at ",
        "<title>receive of block 1 attention, micro-batch 0, from rank 1, "}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  }
}

TEST(TimelineSvg, SaysHowMuchOfTheTimeRanksCompute) {
  Program program = example_program({.layers = 1, .micro_batches = 1, .ranks = 2, .recomputed = 0});
  for (program::RankProgram& rank : program.ranks) {
    rank.instructions = {{.op = program::Op::Step, .seconds = 1}};
  }
  program.ranks[1].instructions[0].seconds = 4;
  EXPECT_NE(draw(program, false).find("; ranks compute 62.5% of the time<"), std::string::npos);
  program.ranks.resize(1);
  EXPECT_EQ(draw(program, false).find("of the time"), std::string::npos);
}

TEST(TimelineSvg, LongLegendsTakeARowMore) {
  using program::Op;
  Program program = example_program({.layers = 2, .ranks = 1});
  Timeline timeline;
  timeline.ranks.resize(1);
  program.ranks[0].instructions = {{.op = Op::Forward, .layer = 0, .keep = 0},
                                   {.op = Op::Forward, .layer = 1},
                                   {.op = Op::Forward, .layer = 1}};
  for (const Op op : {Op::Loss,
                      Op::Backward,
                      Op::BackwardInput,
                      Op::BackwardWeight,
                      Op::Send,
                      Op::Receive,
                      Op::Drop,
                      Op::Step,
                      Op::Stash,
                      Op::Gather,
                      Op::Reduce,
                      Op::Add,
                      Op::Sketch,
                      Op::Squares,
                      Op::Decide,
                      Op::Prepare,
                      Op::Exchange}) {  // a merge looks like an exchange
    program.ranks[0].instructions.push_back({.op = op, .layer = 0});
  }
  for (int32_t i = 0; i < static_cast<int32_t>(kNumBarKinds); ++i) {
    timeline.ranks[0].spans.push_back({i, static_cast<double>(i), i + 1.0});
  }
  timeline.seconds = static_cast<double>(kNumBarKinds);
  const std::string svg = timeline_svg({"", program, timeline});
  const std::regex entry("<rect x=\"([0-9.]+)\" y=\"([0-9.]+)\" width=\"12.0\" height=\"12.0\"");
  std::multiset<std::string> rows;
  for (std::sregex_iterator it(svg.begin(), svg.end(), entry), end; it != end; ++it) {
    EXPECT_LT(std::stod((*it)[1]), 1050);
    rows.insert((*it)[2]);
  }
  EXPECT_EQ(rows.size(), kNumBarKinds);
  EXPECT_EQ(std::set<std::string>(rows.begin(), rows.end()).size(), 2u);
}

TEST(TimelineSvg, UpdatesOfAnAsynchronousPipelineAreLines) {
  using program::Op;
  Program program = example_program({.layers = 2, .ranks = 1});
  program.micro_batches = program.updates = 3;
  program.ranks[0].instructions = {{.op = Op::Forward, .layer = 0, .keep = 0},
                                   {.op = Op::Step},
                                   {.op = Op::Step},
                                   {.op = Op::Step}};
  Timeline timeline;
  timeline.ranks.resize(1);
  timeline.ranks[0].spans = {{0, 0, 1}, {1, 1, 1}, {2, 1, 1}, {3, 1, 2}};
  timeline.seconds = 2;
  const auto lines = [](const std::string& svg) {
    const std::regex line("<line [^>]*stroke-width=\"2\"");
    return std::distance(std::sregex_iterator(svg.begin(), svg.end(), line), {});
  };
  const std::string svg = timeline_svg({"", program, timeline});
  EXPECT_EQ(lines(svg), 3);
  EXPECT_NE(svg.find("3 updates (black lines) in 2.0 s predicted"), std::string::npos) << svg;
  program.updates = 1;
  const std::string plain = timeline_svg({"", program, timeline});
  EXPECT_EQ(lines(plain), 0);
  EXPECT_NE(plain.find("step 2.0 s predicted"), std::string::npos) << plain;
}

TEST(TimelineSvg, NamesCannotBreakOut) {
  Program program = example_program({});
  program.layers[1].name = "</title></rect><script>alert(\"1\")</script> & \x01 \xFF";
  program.layers[1].modes[0].name = "<b>\"";
  program.ranks[0].labels[0] = "</text><b>";
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
