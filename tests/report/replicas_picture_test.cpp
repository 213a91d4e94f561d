// Pictures of a program of replicas: the line between them is a row of its own for each rank.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "penstock/program/simulate.h"
#include "penstock/report/layer_table.h"
#include "penstock/report/timeline_html.h"
#include "penstock/report/timeline_svg.h"
#include "penstock/report/trace.h"

#include "report/replicas_example.h"

namespace penstock::report {
namespace {

using program::Program;
using program::Shard;
using program::Timeline;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST(ReplicasPicture, TheSvgHasALaneForTheLine) {
  const Program program = replicas_program(Shard::Parameters);
  const Timeline timeline = simulate(program);
  const std::string svg = timeline_svg({"", program, timeline});
  EXPECT_EQ(count(svg, ">data</text>"), 2u) << svg;
  EXPECT_EQ(count(svg, ">gather</text>"), 1u);
  EXPECT_EQ(count(svg, ">reduce</text>"), 1u);
  EXPECT_NE(svg.find("gather of table, micro-batch 0"), std::string::npos);
  EXPECT_NE(svg.find("reduce of b, micro-batch 1"), std::string::npos);
}

TEST(ReplicasPicture, ThePageHasUnitsByName) {
  const Program program = replicas_program(Shard::None);
  const Timeline timeline = simulate(program);
  const std::string page = timeline_html({"", program, timeline});
  EXPECT_NE(page.find("\"units\":[{\"name\":\"a\"},{\"name\":\"b\"},{\"name\":\"table\"}]"),
            std::string::npos);
  EXPECT_NE(page.find("\"stash\",\"gather\",\"reduce\",\"add\",\"sketch\",\"squares\",\"decide\","
                      "\"prepare\",\"exchange\",\"merge\",\"step\"]"),
            std::string::npos);
}

TEST(ReplicasPicture, TheTraceHasAThreadForTheLine) {
  const Program program = replicas_program(Shard::Optimizer);
  const Timeline timeline = simulate(program);
  const auto trace = nlohmann::json::parse(trace_json({"", program, timeline}));
  size_t lines = 0, reduces = 0, gathers = 0;
  for (const auto& event : trace["traceEvents"]) {
    lines += event["name"] == "thread_name" && event["args"]["name"] == "line of data";
    reduces += event["name"] == "reduce of table, over data" && event["args"]["unit"] == 2 ? 1 : 0;
    gathers += event["name"] == "gather of b, over data" && event["args"]["unit"] == 1 ? 1 : 0;
  }
  EXPECT_EQ(lines, 2u);
  EXPECT_EQ(reduces, 2u);
  EXPECT_EQ(gathers, 2u);
}

TEST(ReplicasPicture, WhatNobodyComputesIsNotInTheSumOfWork) {
  const Program program = replicas_program(Shard::Parameters);
  const Timeline timeline = simulate(program);
  const StepSums sums = step_sums({"", program, timeline});
  std::vector<std::string> names;
  for (const OpRow& row : sums.transfers) {
    names.emplace_back(row.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"gather", "reduce"}));
  // Two micro-batches of 1 + 1 + 1 + 2 + 2 seconds on each of two replicas.
  EXPECT_DOUBLE_EQ(sums.all.predicted, 28);
}

}  // namespace
}  // namespace penstock::report
