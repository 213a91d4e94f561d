#include "penstock/report/trace.h"

#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "penstock/base/error.h"

#include "report/pipeline_example.h"
#include "report/step_example.h"

namespace penstock::report {
namespace {

using nlohmann::json;
using program::Program;
using program::Timeline;

std::vector<json> events_of(const json& trace, const std::string& phase) {
  std::vector<json> events;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == phase) {
      events.push_back(event);
    }
  }
  return events;
}

TEST(Trace, HasAProcessPerRankAndTimelineAndAThreadPerResource) {
  Program program = example_program({.ranks = 2});
  program.ranks[1].instructions[1].resource = {program::ResourceKind::Copy, 0};
  const Timeline predicted = program::simulate(program);
  const Timeline measured = example_measurement(program);
  const json trace = json::parse(trace_json({"A step", program, predicted, &measured}));
  EXPECT_EQ(trace["otherData"]["title"], "A step");
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> threads;
  for (const json& event : events_of(trace, "M")) {
    if (event["name"] == "process_name") {
      processes[event["pid"]] = event["args"]["name"];
    } else if (event["name"] == "thread_name") {
      threads[{event["pid"], event["tid"]}] = event["args"]["name"];
    }
  }
  EXPECT_EQ(processes,
            (std::map<int, std::string>{{1, "rank 0 predicted"},
                                        {2, "rank 0 measured"},
                                        {3, "rank 1 predicted"},
                                        {4, "rank 1 measured"}}));
  const std::map<std::pair<int, int>, std::string> expected = {{{1, 1}, "compute"},
                                                               {{2, 1}, "compute"},
                                                               {{3, 1}, "compute"},
                                                               {{3, 2}, "copy 0"},
                                                               {{4, 1}, "compute"},
                                                               {{4, 2}, "copy 0"}};
  EXPECT_EQ(threads, expected);
}

TEST(Trace, LinksAndInletsAreThreads) {
  const Program program = pipeline_program(2);
  const Timeline predicted = program::simulate(program);
  const json trace = json::parse(trace_json({"", program, predicted}));
  std::map<std::pair<int, int>, std::string> threads;
  for (const json& event : events_of(trace, "M")) {
    if (event["name"] == "thread_name") {
      threads[{event["pid"], event["tid"]}] = event["args"]["name"];
    }
  }
  const std::map<std::pair<int, int>, std::string> expected = {{{1, 1}, "compute"},
                                                               {{1, 2}, "link to rank 1"},
                                                               {{1, 3}, "inlet from rank 1"},
                                                               {{3, 1}, "compute"},
                                                               {{3, 2}, "link to rank 0"},
                                                               {{3, 3}, "inlet from rank 0"}};
  EXPECT_EQ(threads, expected);
  const std::vector<json> events = events_of(trace, "X");
  EXPECT_EQ(events[2]["name"], "send of block 1 attention, micro-batch 0, to rank 1");
  EXPECT_EQ(events[2]["cat"], "send");
  EXPECT_EQ(events[2]["tid"], 2);
}

TEST(Trace, CompleteEventsCarryTimesInMicrosecondsAndBytes) {
  const Program program = example_program({});
  const Timeline predicted = program::simulate(program);
  const json trace = json::parse(trace_json({"", program, predicted}));
  const std::vector<json> events = events_of(trace, "X");
  const auto& instructions = program.ranks[0].instructions;
  ASSERT_EQ(events.size(), instructions.size());
  for (size_t i = 0; i < events.size(); ++i) {
    const program::Span& span = predicted.ranks[0].spans[i];
    EXPECT_EQ(events[i]["name"], program::describe(program, instructions[i]));
    EXPECT_DOUBLE_EQ(events[i]["ts"], span.start * 1e6);
    EXPECT_DOUBLE_EQ(events[i]["dur"], (span.end - span.start) * 1e6);
  }
  // The first forward: 360 MiB are always held, and two micro-batches' inputs of 5 MiB before it.
  const json& args = events[0]["args"];
  EXPECT_EQ(args["kind"], "forward, keeps nothing");
  EXPECT_EQ(args["layer"], 0);
  EXPECT_EQ(args["micro_batch"], 0);
  EXPECT_EQ(args["keep"], "nothing");
  EXPECT_EQ(args["bytes_before"], 370 * kExampleMiB);
  EXPECT_EQ(args["bytes_during"], 418 * kExampleMiB);
  EXPECT_EQ(args["bytes_after"], 374 * kExampleMiB);
  EXPECT_FALSE(events.back()["args"].contains("layer"));
}

TEST(Trace, PredictedAndMeasuredBytesAgreeOnTheSameTimeline) {
  // Instructions that take no time say nothing in a curve.
  const Program program = example_program({});
  const Timeline timeline = program::simulate(program);
  const json trace = json::parse(trace_json({"", program, timeline, &timeline}));
  const std::vector<json> events = events_of(trace, "X");
  const size_t half = events.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    if (events[i]["dur"] == 0) {
      EXPECT_EQ(events[i]["cat"], "decide");
      continue;
    }
    EXPECT_EQ(events[i]["args"], events[half + i]["args"]) << i;
  }
}

TEST(Trace, InstructionsThatTakeNoTimeHaveTheirBytes) {
  Program program;
  program.ranks.resize(1);
  program.ranks[0].values = {layer_value(program::ValueKind::Activation, 0, 0, 8),
                             layer_value(program::ValueKind::Activation, 0, 1, 4)};
  program.ranks[0].given = {0, 1};
  program.ranks[0].instructions = {{.op = program::Op::Squares, .seconds = 1, .working_bytes = 100},
                                   {.op = program::Op::Drop, .frees = {0}},
                                   {.op = program::Op::Drop, .frees = {1}},
                                   {.op = program::Op::Step, .seconds = 1, .working_bytes = 50}};
  const Timeline predicted = program::simulate(program);
  const json trace = json::parse(trace_json({"", program, predicted}));
  const std::vector<json> events = events_of(trace, "X");
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[1]["args"]["bytes_before"], 12);
  EXPECT_EQ(events[1]["args"]["bytes_after"], 4);
  EXPECT_EQ(events[2]["args"]["bytes_before"], 4);
  EXPECT_EQ(events[2]["args"]["bytes_after"], 0);
  EXPECT_EQ(events[3]["args"]["bytes_during"], 50);
}

TEST(Trace, MemoryIsACounter) {
  const Program program = example_program({});
  const Timeline predicted = program::simulate(program);
  const json trace = json::parse(trace_json({"", program, predicted}));
  const std::vector<json> counters = events_of(trace, "C");
  const auto& memory = predicted.ranks[0].memory;
  ASSERT_EQ(counters.size(), memory.size());
  for (size_t i = 0; i < memory.size(); ++i) {
    EXPECT_DOUBLE_EQ(counters[i]["ts"], memory[i].seconds * 1e6);
    EXPECT_EQ(counters[i]["args"]["bytes"], memory[i].bytes);
  }
}

TEST(Trace, NamesCannotBreakOut) {
  Program program = example_program({});
  program.layers[0].name = "\"},{\"ph\":\"X\" \xFF \n";
  const Timeline predicted = program::simulate(program);
  const json trace = json::parse(trace_json({"\"}", program, predicted}));
  EXPECT_EQ(events_of(trace, "X").size(), program.ranks[0].instructions.size());
  EXPECT_EQ(trace["otherData"]["title"], "\"}");
}

TEST(Trace, EmptyProgramsAreJson) {
  EXPECT_EQ(json::parse(trace_json({"", Program(), Timeline()}))["traceEvents"], json::array());
}

TEST(Trace, TimelinesOfOtherProgramsAreRefused) {
  const Timeline other = program::simulate(example_program({.layers = 4}));
  EXPECT_THROW(trace_json({"", example_program({}), other}), InternalError);
}

}  // namespace
}  // namespace penstock::report
