#include "penstock/program/program_text.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/plan/shard.h"
#include "penstock/program/program_reader.h"

#include "program/asynchronous_program.h"
#include "program/replicated_program.h"
#include "support/error_text.h"
#include "support/temp_folder.h"

namespace penstock::program {
namespace {

std::string text_error(std::string_view text) {
  return test::error_text<ConfigError>([&] { parse_program(text, "p.txt"); });
}

const std::string kHead =
    "penstock-program 1\n"
    "micro-batches 2\n"
    "layer 0 \"a\" ways=all,few+output\n"
    "layer 1 \"b\" ways=all\n"
    "rank 0 limit=none\n";

// The error of one more line, the sixth.
std::string line_error(const std::string& line) {
  return text_error(kHead + line + "\n");
}

// A well-formed forward with one word put in place of another.
std::string forward_error(const std::string& word, const std::string& replacement) {
  std::string line =
      "forward layer=0 mb=0 keep=all reads=x0.0 makes=x1.0:8 frees=- on=compute seconds=1 "
      "working=9";
  line.replace(line.find(word), word.size(), replacement);
  return text_error(kHead + "given x0.0:4\n" + line + "\n");
}

const char* const kOneRank =
    R"(penstock-program 1
micro-batches 2
layer 0 "embedding" ways=all
layer 1 "own \"module\" \\ 1" ways=all+output,no-norm
rank 0 limit=629145600
resident 4194304 "parameters"
resident 0 ""
given x0.0:16384 t.1:16384
clear on=compute seconds=0.0012 working=0
forward layer=0 mb=0 keep=all reads=x0.0 makes=x1.0:64,s0.0:128 frees=- on=compute seconds=1e-05 working=200
forward layer=1 mb=0 keep=nothing reads=x1.0 makes=x2.0:64 frees=x1.0 on=copy:3 seconds=0 working=64
forward layer=0 mb=0 keep=nothing reads=x0.0 makes=x1.0#2:64 frees=x0.0 on=link:1 seconds=2 working=64
loss mb=1 reads=x2.0,t.1 makes=d2.0:64 frees=x2.0,t.1 on=compute seconds=0.1 working=70
drop frees=x1.0#2
backward layer=1 mb=1 reads=s0.0,d2.0 makes=- frees=- on=compute seconds=3 working=0
drop reads=d2.0 frees=- on=copy:0 seconds=0.5 working=1
step on=compute seconds=0.3333333333333333 working=9223372036850000000
)";

Program one_rank() {
  RankProgram rank{.limit_bytes = 629145600,
                   .residents = {{"parameters", 4194304}, {"", 0}},
                   .values = {{ValueKind::Activation, 0, 0, 16384},
                              {ValueKind::Targets, 2, 1, 16384},
                              {ValueKind::Activation, 1, 0, 64},
                              {ValueKind::Saved, 0, 0, 128},
                              {ValueKind::Activation, 2, 0, 64},
                              {ValueKind::Activation, 1, 0, 64},
                              {ValueKind::Gradient, 2, 0, 64}},
                   .given = {0, 1}};
  const Resource compute;
  const Resource copy0{ResourceKind::Copy, 0}, copy3{ResourceKind::Copy, 3};
  const Resource link1{ResourceKind::Link, 1};
  rank.instructions = {
      {Op::Clear, -1, -1, kKeepNothing, {}, {}, {}, compute, 0.0012, 0},
      {Op::Forward, 0, 0, 0, {0}, {2, 3}, {}, compute, 1e-5, 200},
      {Op::Forward, 1, 0, kKeepNothing, {2}, {4}, {2}, copy3, 0, 64},
      {Op::Forward, 0, 0, kKeepNothing, {0}, {5}, {0}, link1, 2, 64},
      {Op::Loss, -1, 1, kKeepNothing, {4, 1}, {6}, {4, 1}, compute, 0.1, 70},
      {Op::Drop, -1, -1, kKeepNothing, {}, {}, {5}},
      {Op::Backward, 1, 1, kKeepNothing, {3, 6}, {}, {}, compute, 3, 0},
      {Op::Drop, -1, -1, kKeepNothing, {6}, {}, {}, copy0, 0.5, 1},
      {Op::Step, -1, -1, kKeepNothing, {}, {}, {}, compute, 1.0 / 3, 9223372036850000000},
  };
  return {
      .layers = {{"embedding", {{"all"}}}, {"own \"module\" \\ 1", {{"all", true}, {"no-norm"}}}},
      .micro_batches = 2,
      .ranks = {rank}};
}

TEST(ProgramText, OneRankPrintsAndReadsBack) {
  EXPECT_EQ(format_program(one_rank()), kOneRank);
  EXPECT_EQ(parse_program(kOneRank, "p.txt"), one_rank());
}

TEST(ProgramText, TwoRanksNumberTheirValuesApart) {
  const char* text =
      R"(penstock-program 1
micro-batches 1
layer 0 "a" ways=all
rank 0 limit=none
given x0.0:4
forward layer=0 mb=0 keep=nothing reads=x0.0 makes=x1.0:8 frees=x0.0,x1.0 on=link:1 seconds=1 working=8
rank 1 limit=100
resident 5 "weights"
given t.0:4
drop frees=t.0
)";
  const Program program = parse_program(text, "p.txt");
  ASSERT_EQ(program.ranks.size(), 2U);
  EXPECT_EQ(program.ranks[0].values.size(), 2U);
  EXPECT_EQ(program.ranks[0].instructions[0].frees, (std::vector<ValueId>{0, 1}));
  EXPECT_EQ(program.ranks[1].values, (std::vector<Value>{{ValueKind::Targets, 1, 0, 4}}));
  EXPECT_EQ(program.ranks[1].given, std::vector<ValueId>{0});
  EXPECT_EQ(program.ranks[1].limit_bytes, 100);
  EXPECT_EQ(format_program(program), text);
}

const char* const kPipeline =
    R"(penstock-program 1
micro-batches 1
layer 0 "a" ways=all
layer 1 "b" ways=all
rank 0 limit=none
given x0.0:4
forward layer=0 mb=0 keep=all reads=x0.0 makes=x1.0:8,s0.0:16 frees=- on=compute seconds=1 working=24
send layer=1 mb=0 reads=x1.0 on=link:1 seconds=0.25 working=0
receive layer=1 mb=0 makes=d1.0:8 on=inlet:1 working=8
backward-input layer=0 mb=0 reads=x0.0,s0.0,d1.0 makes=w0.0:12 frees=x0.0,s0.0,d1.0 on=compute seconds=2 working=12
backward-weight layer=0 mb=0 reads=w0.0 makes=- frees=w0.0,x1.0 on=compute seconds=3 working=1
rank 1 limit=none
receive layer=1 mb=0 makes=x1.0:8 on=inlet:0 working=8
drop makes=d1.0:8,x2.0:2 frees=x1.0
send layer=1 mb=0 reads=d1.0 frees=d1.0 on=link:0 seconds=0.5 working=0
send layer=2 mb=0 reads=x2.0 frees=x2.0 on=link:0 seconds=0 working=0
)";

TEST(ProgramText, WhatPipelinesNeedPrintsAndReadsBack) {
  const Program program = parse_program(kPipeline, "p.txt");
  const RankProgram& first = program.ranks[0];
  EXPECT_EQ(first.values[4], (Value{ValueKind::WeightWork, 0, 0, 12}));
  const Instruction send = {
      Op::Send, 1, 0, kKeepNothing, {1}, {}, {}, {ResourceKind::Link, 1}, 0.25};
  EXPECT_EQ(first.instructions[1], send);
  const Instruction receive = {
      Op::Receive, 1, 0, kKeepNothing, {}, {3}, {}, {ResourceKind::Inlet, 1}, 0, 8};
  EXPECT_EQ(first.instructions[2], receive);
  EXPECT_EQ(first.instructions[3].op, Op::BackwardInput);
  EXPECT_EQ(first.instructions[4].op, Op::BackwardWeight);
  EXPECT_EQ(program.ranks[1].instructions[3].layer, program.loss_index());
  EXPECT_EQ(format_program(program), kPipeline);
}

// The error of kPipeline with one part put in place of another.
std::string pipeline_error(const std::string& part, const std::string& replacement) {
  std::string text = kPipeline;
  text.replace(text.find(part), part.size(), replacement);
  return text_error(text);
}

TEST(ProgramTextError, SendsAndReceivesAreOfOneValue) {
  EXPECT_EQ(pipeline_error("send layer=1 mb=0 reads=x1.0", "send layer=1 mb=0 reads=x1.0,x0.0"),
            "p.txt:8: send reads 2 values; it takes exactly one");
  EXPECT_EQ(pipeline_error("send layer=1 mb=0 reads=x1.0", "send layer=1 mb=0 reads=-"),
            "p.txt:8: send reads 0 values; it takes exactly one");
  EXPECT_EQ(pipeline_error("makes=d1.0:8", "makes=-"),
            "p.txt:9: receive makes 0 values; it takes exactly one");
  EXPECT_EQ(pipeline_error(" reads=x1.0 on", " on"),
            "p.txt:8: field reads is missing; send needs it");
  EXPECT_EQ(pipeline_error("on=link:1", "makes=d0.0:4 on=link:1"),
            "p.txt:8: unknown field of send \"makes\" (known: layer, mb, reads, frees, on, "
            "seconds, working)");
  EXPECT_EQ(pipeline_error("on=inlet:1", "on=inlet:1 seconds=1"),
            "p.txt:9: unknown field of receive \"seconds\" (known: layer, mb, makes, frees, on, "
            "working)");
}

TEST(ProgramTextError, SendsAndReceivesNameAnotherRank) {
  EXPECT_EQ(pipeline_error("on=link:1", "on=link:0"),
            "p.txt:8: link:0 leads to rank 0 itself; the peer is another rank");
  EXPECT_EQ(pipeline_error("on=inlet:0", "on=inlet:1"),
            "p.txt:13: inlet:1 leads to rank 1 itself; the peer is another rank");
  EXPECT_EQ(pipeline_error("on=link:1", "on=link:2"),
            "p.txt:8: rank 2 is out of range; the program has 2");
  EXPECT_EQ(pipeline_error("on=link:1", "on=inlet:1"),
            "p.txt:8: send is on inlet:1; it should be on link:N, where N receives");
  EXPECT_EQ(pipeline_error("on=inlet:1", "on=compute"),
            "p.txt:9: receive is on compute; it should be on inlet:N, where N sends");
  EXPECT_EQ(pipeline_error("send layer=2", "send layer=3"),
            "p.txt:16: layer 3 is out of range; the program has 2");
}

TEST(ProgramText, SeveralUpdatesPrintAndReadBack) {
  Program program = parse_program(test::kAsynchronousText, "p.txt");
  EXPECT_EQ(program.updates, 2);
  EXPECT_FALSE(program.mixes_weights);
  const RankProgram& rank = program.ranks[0];
  const Instruction& stash = rank.instructions[test::kStash];
  EXPECT_EQ(stash.op, Op::Stash);
  EXPECT_EQ(rank.values[static_cast<size_t>(stash.makes[0])],
            (Value{ValueKind::Weights, 1, 0, 10}));
  EXPECT_EQ(format_program(program), test::kAsynchronousText);
  program.mixes_weights = true;
  const std::string text = format_program(program);
  EXPECT_NE(text.find("\nupdates 2 weights=mixed\n"), std::string::npos) << text;
  EXPECT_EQ(parse_program(text, "p.txt"), program);
}

// The error of the asynchronous program with one part put in place of another.
std::string updates_error(const std::string& part, const std::string& replacement) {
  std::string text = test::kAsynchronousText;
  text.replace(text.find(part), part.size(), replacement);
  return text_error(text);
}

TEST(ProgramText, ReplicasAndUnitsReadBack) {
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Parameters}) {
    const Program program = test::replicated_program(shard, 2);
    const std::string text = format_program(program);
    EXPECT_NE(text.find(cat("\nreplicas 2 shard=", shard_name(shard), "\n")), std::string::npos);
    EXPECT_NE(text.find("\nunit 2 \"table\" layers=0,2\n"), std::string::npos) << text;
    EXPECT_EQ(parse_program(text, "p.txt"), program);
  }
  const std::string text = format_program(test::replicated_program(Shard::Parameters));
  EXPECT_NE(text.find("\ngather unit=0 mb=0 makes=p0.0:10 on=replicas seconds=0.5 working=10\n"),
            std::string::npos)
      << text;
  EXPECT_NE(
      text.find(
          "\nreduce unit=2 mb=0 reads=g2.0 makes=r2.0:0 on=replicas seconds=0.25 working=0\n"),
      std::string::npos)
      << text;
  const std::string once = format_program(test::replicated_program(Shard::None));
  EXPECT_NE(once.find("\nreduce unit=1 makes=r1.0:0 on=replicas seconds=0.25 working=0\n"),
            std::string::npos)
      << once;
}

TEST(ProgramText, AStepThatReducesReadsBack) {
  for (const Shard shard : {Shard::None, Shard::Optimizer}) {
    const Program program = plan::without_reduces(test::replicated_program(shard, 2));
    const std::string text = format_program(program);
    EXPECT_NE(text.find(cat("\nreplicas 2 shard=", shard_name(shard), " reduced=step\n")),
              std::string::npos)
        << text;
    const Program read = parse_program(text, "p.txt");
    EXPECT_TRUE(read.step_reduces);
    EXPECT_EQ(read, program);
  }
}

// The error of a program of replicas with one part put in place of another.
std::string replicas_error(const std::string& part, const std::string& replacement) {
  std::string text = format_program(test::replicated_program(Shard::Parameters));
  text.replace(text.find(part), part.size(), replacement);
  return text_error(text);
}

TEST(ProgramTextError, ReplicasThatAreNone) {
  EXPECT_EQ(replicas_error("replicas 2", "replicas 0"),
            "p.txt:3: replicas \"0\" is no whole number from 1 to 2147483647");
  EXPECT_EQ(
      replicas_error("shard=parameters", "shard=parameter"),
      "p.txt:3: unknown shard \"parameter\"; did you mean parameters? (known: none, optimizer, "
      "gradients, parameters)");
  const std::string form = " is not written as it should be; an example: ";
  EXPECT_EQ(replicas_error(" shard=parameters", ""),
            "p.txt:3: replicas" + form + "replicas 2 shard=none");
  EXPECT_EQ(replicas_error("shard=", "zero="), "p.txt:3: shard" + form + "replicas 2 shard=none");
  EXPECT_EQ(replicas_error("replicas 2 shard=parameters\n",
                           "replicas 2 shard=parameters\nreplicas 2 shard=parameters\n")
                .substr(0, 33),
            "p.txt:4: replicas is out of place");
  EXPECT_EQ(replicas_error("replicas 2 shard=parameters\n",
                           "replicas 2 shard=parameters\nupdates 1 weights=kept\n")
                .substr(0, 32),
            "p.txt:4: updates is out of place");
}

TEST(ProgramTextError, ReducedByNobodyKnown) {
  const std::string line = "replicas 2 shard=parameters";
  EXPECT_EQ(replicas_error(line, line + " reduced=stop"),
            "p.txt:3: unknown reduced \"stop\"; did you mean step? (known: step)");
  const std::string form = " is not written as it should be; an example: ";
  EXPECT_EQ(replicas_error(line, line + " reduce=step"),
            "p.txt:3: reduced" + form + "replicas 2 shard=none reduced=step");
  EXPECT_EQ(replicas_error(line, line + " reduced=step more"),
            "p.txt:3: replicas" + form + "replicas 2 shard=none");
}

TEST(ProgramTextError, UnitsThatAreNone) {
  const std::string unit = "unit 1 \"b\" layers=1";
  EXPECT_EQ(replicas_error(unit, "unit 1 \"b\""),
            "p.txt:7: unit is not written as it should be; an example: unit 0 \"name\" layers=0,1");
  EXPECT_EQ(
      replicas_error(unit, "unit 1 \"b\" ways=1"),
      "p.txt:7: layers is not written as it should be; an example: unit 0 \"name\" layers=0,1");
  EXPECT_EQ(replicas_error(unit, "unit 1 \"b\" layers=1 backward=1"),
            "p.txt:7: forward is not written as it should be; an example: unit 0 \"name\" "
            "layers=0,1 forward=0");
  EXPECT_EQ(replicas_error(unit, "unit 1 \"b\" layers=1 forward=3"),
            "p.txt:7: layer 3 is out of range; the program has 2");
  EXPECT_EQ(replicas_error(unit, "unit 2 \"b\" layers=1"),
            "p.txt:7: unit \"2\" is out of order; the next is 1");
  EXPECT_EQ(replicas_error(unit, "unit 1 \"b\" layers=3"),
            "p.txt:7: layer 3 is out of range; the program has 2");
  EXPECT_EQ(replicas_error(unit, "unit 1 \"b\" layers=x"),
            "p.txt:7: layer \"x\" is no whole number from 0 to 2147483647");
  EXPECT_EQ(replicas_error(unit, "unit 1 \"b\" layers=1,0"),
            "p.txt:7: layer 0 comes after 1; a unit's layers count up");
  EXPECT_EQ(replicas_error(unit, unit + "\nlayer 2 \"c\" ways=all").substr(0, 30),
            "p.txt:8: layer is out of place");
  EXPECT_EQ(replicas_error("rank 0 limit=none\n", "rank 0 limit=none\nunit 3 \"c\" layers=0\n")
                .substr(0, 30),
            "p.txt:10: unit is out of place");
  EXPECT_EQ(replicas_error("gather unit=0", "gather unit=3"),
            "p.txt:12: unit 3 is out of range; the program has 3");
  EXPECT_EQ(
      replicas_error("gather unit=0", "gather layer=0"),
      "p.txt:12: unknown field of gather \"layer\" (known: unit, mb, reads, makes, frees, on, "
      "seconds, working)");
  EXPECT_EQ(replicas_error("makes=p0.0:10", "makes=p3.0:10"),
            "p.txt:12: unit 3 is out of range; the program has 3");
}

TEST(ProgramTextError, UpdatesThatAreNone) {
  EXPECT_EQ(updates_error("updates 2", "updates 3"),
            "p.txt:3: 3 updates do not divide 2 micro-batches; every update takes as many");
  EXPECT_EQ(updates_error("updates 2", "updates 0"),
            "p.txt:3: updates \"0\" is no whole number from 1 to 2147483647");
  EXPECT_EQ(updates_error("weights=kept", "weights=keep"),
            "p.txt:3: unknown weights \"keep\"; did you mean kept? (known: kept, mixed)");
  const std::string form = " is not written as it should be; an example: updates 4 weights=kept";
  EXPECT_EQ(updates_error(" weights=kept", ""), "p.txt:3: updates" + form);
  EXPECT_EQ(updates_error("weights=kept", "version=kept"), "p.txt:3: weights" + form);
}

TEST(ProgramTextError, UpdatesOutOfPlace) {
  const std::string rest =
      " is out of place; the order is penstock-program, micro-batches, updates (of an asynchronous "
      "pipeline), replicas (where there are several), layers, units (of replicas), and for each "
      "rank: "
      "rank, residents and given values, instructions";
  EXPECT_EQ(line_error("updates 2 weights=kept"), "p.txt:6: updates" + rest);
  const std::string line = "updates 2 weights=kept\n";
  EXPECT_EQ(updates_error(line, line + line), "p.txt:4: updates" + rest);
  EXPECT_EQ(text_error("penstock-program 1\n" + line), "p.txt:2: updates" + rest);
}

TEST(ProgramTextError, StashesMakeWeights) {
  EXPECT_EQ(updates_error("stash makes=v.0:10 on", "stash on"),
            "p.txt:12: field makes is missing; stash needs it");
  EXPECT_EQ(updates_error("v.0:10", "v1.0:10"),
            "p.txt:12: value \"v1.0\" is no name like x3.0, s3.0, d3.0, w3.0, p3.0, g3.0, r3.0, "
            "t.0, v.0 or x3.0#2");
}

TEST(ProgramText, ProgramsWithoutRanksOrLayersAreWritten) {
  EXPECT_EQ(format_program({}), "penstock-program 1\nmicro-batches 1\n");
  EXPECT_EQ(parse_program("penstock-program 1\nmicro-batches 1\n", "p.txt"), Program{});

  const std::string no_layers =
      "penstock-program 1\nmicro-batches 1\nrank 0 limit=none\ngiven x0.0:4 t.0:4\n"
      "loss mb=0 reads=x0.0,t.0 makes=d0.0:4 frees=- on=compute seconds=1 working=4\n";
  EXPECT_EQ(format_program(parse_program(no_layers, "p.txt")), no_layers);

  const Program no_ways{.layers = {{"a", {}}}};
  EXPECT_EQ(format_program(no_ways), "penstock-program 1\nmicro-batches 1\nlayer 0 \"a\" ways=-\n");
}

TEST(ProgramText, NamesMayHoldAnyCharacter) {
  for (const std::string name :
       {"", " ", "# no comment", "a\nb\tc\r", "\x01\x7F", "größe 層", "\\\""}) {
    const Program program{.layers = {{name, {{"all"}}}}, .ranks = {{.residents = {{name, 3}}}}};
    EXPECT_EQ(parse_program(format_program(program), "p.txt"), program) << name;
  }
}

TEST(ProgramText, NumbersReadBackToTheLastBit) {
  using Limits = std::numeric_limits<double>;
  for (const double seconds :
       {0.1 + 0.2, 1.0 / 3, 1e300, Limits::min(), Limits::denorm_min(), 1e23, 123456789.0}) {
    const Program program{.ranks = {{.instructions = {{.op = Op::Clear, .seconds = seconds}}}}};
    EXPECT_EQ(parse_program(format_program(program), "p.txt"), program) << seconds;
  }
}

TEST(ProgramText, CommentsBlanksAndLineEndsAreFree) {
  const std::string text =
      "# a program\r\n\r\npenstock-program\t1 # version\n  micro-batches   1\n#\n"
      "layer 0 \"a # b\" ways=all # #\nrank 0 limit=none\n\n"
      "given x0.0:1 # one line\ngiven t.0:2\n"
      "step working=0 seconds=1 on=compute\n"
      "drop frees=x0.0,t.0";
  const Program program = parse_program(text, "p.txt");
  EXPECT_EQ(program.layers[0].name, "a # b");
  EXPECT_EQ(program.ranks[0].given, (std::vector<ValueId>{0, 1}));
  EXPECT_EQ(program.ranks[0].instructions.size(), 2U);
}

// That no value is used before it is made is verify's business.
TEST(ProgramText, ValuesMayBeUsedAboveTheirMaker) {
  const std::string text = kHead + "drop frees=x1.0\n" +
                           "forward layer=0 mb=0 keep=all reads=x1.0#2 makes=x1.0:1,x1.0#2:2 "
                           "frees=- on=compute seconds=1 "
                           "working=9\n";
  const RankProgram rank = parse_program(text, "p.txt").ranks[0];
  EXPECT_EQ(rank.instructions[0].frees, std::vector<ValueId>{0});
  EXPECT_EQ(rank.instructions[1].reads, std::vector<ValueId>{1});
}

TEST(ProgramText, WhatCannotBeReadBackIsNotWritten) {
  const auto refusal = [](const auto& change) {
    Program program = one_rank();
    change(program, program.ranks[0]);
    return test::error_text<InternalError>([&] { format_program(program); });
  };
  const auto expect_refusal = [&](const auto& change, const std::string& part) {
    const std::string message = refusal(change);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  using P = Program;
  using R = RankProgram;
  expect_refusal([](P&, R& rank) { std::swap(rank.given[0], rank.given[1]); }, "not numbered");
  expect_refusal([](P&, R& rank) { rank.values.push_back(rank.values[0]); }, "not numbered");
  expect_refusal([](P&, R& rank) { rank.given.push_back(7); }, "there is no value 7");
  expect_refusal([](P&, R& rank) { rank.instructions[1].reads[0] = -1; }, "there is no value -1");
  expect_refusal([](P&, R& rank) { rank.instructions[1].keep = 1; }, "there is no way 1");
  expect_refusal([](P&, R& rank) { rank.instructions[1].layer = 2; }, "there is no layer 2");
  expect_refusal([](P&, R& rank) { rank.instructions[2].layer = -1; }, "layer \"-1\"");
  expect_refusal([](P&, R& rank) { rank.instructions[0].layer = 1; }, "unknown field of clear");
  expect_refusal([](P&, R& rank) { rank.instructions[0].resource.index = 1; }, "compute 1");
  expect_refusal([](P&, R& rank) { rank.instructions[0].seconds = NAN; }, "seconds nan");
  expect_refusal([](P&, R& rank) { rank.instructions[0].seconds = -1; }, "seconds \"-1\"");
  expect_refusal([](P&, R& rank) { rank.values[0].bytes = -1; }, "bytes of x0.0 \"-1\"");
  expect_refusal([](P&, R& rank) { rank.values[1].layer = 1; }, "not numbered");
  expect_refusal([](P&, R& rank) { rank.limit_bytes = -1; }, "limit \"-1\"");
  expect_refusal([](P&, R& rank) { rank.instructions[1].op = Op::Receive; }, "unknown field");
  expect_refusal([](P& program, R&) { program.layers[0].ways[0].name = "a b"; }, "way \"a b\"");
  expect_refusal([](P& program, R&) { program.layers[0].ways[0].name = "-"; }, "way \"-\"");
  expect_refusal([](P& program, R&) { program.layers[0].ways.push_back({"all"}); }, "way all is");
  expect_refusal([](P& program, R&) { program.layers[0].name = "\xFF"; }, "not UTF-8");
  expect_refusal([](P& program, R&) { program.micro_batches = 0; }, "micro-batches \"0\"");
}

TEST(ProgramText, ProgramTooLongToReadIsNotWritten) {
  const std::string written(65 << 20, ' ');
  EXPECT_EQ(test::error_text<ConfigError>([&] { check_reads_back({}, written, {}); }),
            "the program is 65.0 MiB long; files of up to 64.0 MiB can be read back; use fewer "
            "micro-batches or ranks");
}

TEST(ProgramTextError, FileBeginsWithItsVersion) {
  const char* no_program =
      "p.txt:2: the file does not begin with penstock-program 1; it is no program";
  EXPECT_EQ(text_error("\nforward layer=0\n"), no_program);
  EXPECT_EQ(text_error("\nELF\n"), no_program);
  EXPECT_EQ(text_error("penstock-program 2\n"),
            "p.txt:1: version \"2\"; this Penstock reads version 1");
  EXPECT_EQ(text_error("penstock-program\n"),
            "p.txt:1: penstock-program is not written as it should be; an example: "
            "penstock-program 1");
}

TEST(ProgramTextError, FileThatEndsEarly) {
  const char* rest =
      "the program ends here; it begins with the lines penstock-program 1 and micro-batches N";
  EXPECT_EQ(text_error(""), cat("p.txt:1: ", rest));
  EXPECT_EQ(text_error("penstock-program 1\n"), cat("p.txt:2: ", rest));
}

TEST(ProgramTextError, UnknownWordsComeWithTheNearestOne) {
  EXPECT_EQ(
      line_error("fordward layer=0"),
      "p.txt:6: unknown word \"fordward\"; did you mean forward? (known: micro-batches, updates, "
      "replicas, layer, unit, rank, resident, given, clear, forward, loss, backward, "
      "backward-input, "
      "backward-weight, send, receive, drop, step, stash, gather, reduce)");
  const std::string known =
      " (known: micro-batches, updates, replicas, layer, unit, rank, resident, given, clear, "
      "forward, loss, "
      "backward, backward-input, backward-weight, send, receive, drop, step, stash, gather, "
      "reduce)";
  EXPECT_EQ(line_error("residnt 5 \"a\""),
            "p.txt:6: unknown word \"residnt\"; did you mean resident?" + known);
  EXPECT_EQ(line_error(std::string(1000, 'f')),
            cat("p.txt:6: unknown word \"", std::string(100, 'f'), "...\"", known));
  EXPECT_EQ(line_error("\"forward\" layer=0"),
            "p.txt:6: unknown word \"\"forward\"\"; did you mean forward?" + known);
}

TEST(ProgramTextError, UnknownFieldsComeWithTheNearestOne) {
  EXPECT_EQ(
      forward_error("layer=", "lyer="),
      "p.txt:7: unknown field of forward \"lyer\"; did you mean layer? (known: layer, mb, keep, "
      "reads, makes, frees, on, seconds, working)");
  EXPECT_EQ(line_error("clear layer=0 on=compute seconds=0 working=0"),
            "p.txt:6: unknown field of clear \"layer\" (known: reads, makes, frees, on, seconds, "
            "working)");
  EXPECT_EQ(line_error("drop x0.0"), "p.txt:6: word 2 is no field; fields are written name=value");
  EXPECT_EQ(line_error("drop \"frees=x0.0\""),
            "p.txt:6: word 2 is no field; fields are written name=value");
}

TEST(ProgramTextError, FieldsStandOnce) {
  EXPECT_EQ(forward_error("mb=0 ", ""), "p.txt:7: field mb is missing; forward needs it");
  EXPECT_EQ(forward_error("reads=x0.0 ", ""), "p.txt:7: field reads is missing; forward needs it");
  EXPECT_EQ(line_error("drop"), "p.txt:6: field frees is missing; drop needs it");
  EXPECT_EQ(line_error("step on=compute working=0"),
            "p.txt:6: field seconds is missing; step needs it");
  EXPECT_EQ(forward_error("mb=0", "layer=0"),
            "p.txt:7: field layer is repeated; it is allowed once");
}

TEST(ProgramTextError, NumbersOutOfRange) {
  const std::string bytes = " is no whole number from 0 to 9223372036854775807";
  const std::string count = " is no whole number from 0 to 2147483647";
  EXPECT_EQ(forward_error("working=9", "working=-9"), "p.txt:7: working \"-9\"" + bytes);
  EXPECT_EQ(forward_error("working=9", "working=9223372036854775808"),
            "p.txt:7: working \"9223372036854775808\"" + bytes);
  EXPECT_EQ(forward_error("working=9", "working=1.5"), "p.txt:7: working \"1.5\"" + bytes);
  EXPECT_EQ(forward_error("working=9", "working="), "p.txt:7: working \"\"" + bytes);
  EXPECT_EQ(forward_error("x1.0:8", "x1.0:-8"), "p.txt:7: bytes of x1.0 \"-8\"" + bytes);
  EXPECT_EQ(forward_error("x1.0:8", "x1.0:8kB"), "p.txt:7: bytes of x1.0 \"8kB\"" + bytes);
  EXPECT_EQ(line_error("resident -1 \"a\""), "p.txt:6: bytes of a resident \"-1\"" + bytes);
  EXPECT_EQ(forward_error("layer=0", "layer=-1"), "p.txt:7: layer \"-1\"" + count);
  EXPECT_EQ(forward_error("mb=0", "mb=one"), "p.txt:7: mb \"one\"" + count);
  EXPECT_EQ(forward_error("mb=0", "mb=4294967296"), "p.txt:7: mb \"4294967296\"" + count);
  EXPECT_EQ(line_error("rank 1 limit=0"),
            "p.txt:6: limit \"0\" is no whole number from 1 to 9223372036854775807");
  EXPECT_EQ(text_error("penstock-program 1\nmicro-batches 0\n"),
            "p.txt:2: micro-batches \"0\" is no whole number from 1 to 2147483647");
}

TEST(ProgramTextError, SecondsAreFiniteAndNotNegative) {
  for (const std::string seconds :
       {"-1", "nan", "inf", "-inf", "1e999", "1e-999", "0x1", "", "1s"}) {
    EXPECT_EQ(forward_error("seconds=1", "seconds=" + seconds),
              cat("p.txt:7: seconds \"", seconds, "\" is no number from 0 to 1e300"));
  }
}

TEST(ProgramTextError, BytesOfARankFitIntoOneNumber) {
  const std::string message = "the bytes of this rank add up to more than 9223372036854775807";
  const std::string half = "4611686018427387904";
  EXPECT_EQ(line_error("given x0.0:" + half + " x0.1:" + half), "p.txt:6: " + message);
  EXPECT_EQ(line_error("resident " + half + " \"a\"\ngiven x0.1:" + half), "p.txt:7: " + message);
  EXPECT_EQ(line_error("given x0.0:" + half + "\nclear on=compute seconds=0 working=" + half),
            "p.txt:7: " + message);
}

TEST(ProgramTextError, LayersAndMicroBatchesOutOfRange) {
  const std::string layer = " is out of range; the program has 2";
  EXPECT_EQ(forward_error("layer=0", "layer=2"), "p.txt:7: layer 2" + layer);
  EXPECT_EQ(forward_error("x1.0:8", "x3.0:8"), "p.txt:7: layer 3" + layer);
  EXPECT_EQ(forward_error("x1.0:8", "s2.0:8"), "p.txt:7: layer 2" + layer);
  EXPECT_EQ(forward_error("x1.0:8", "w2.0:8"), "p.txt:7: layer 2" + layer);
  EXPECT_EQ(forward_error("mb=0", "mb=2"), "p.txt:7: micro-batch 2" + layer);
  EXPECT_EQ(line_error("given t.2:8"), "p.txt:6: micro-batch 2" + layer);
  EXPECT_EQ(text_error("penstock-program 1\nmicro-batches 20000000\n"),
            "p.txt:2: layers times micro-batches are 20000000; up to 16777216 are allowed");
  EXPECT_EQ(text_error("penstock-program 1\nmicro-batches 9000000\nlayer 0 \"a\" ways=-\n"
                       "layer 1 \"b\" ways=-\n"),
            "p.txt:4: layers times micro-batches are 18000000; up to 16777216 are allowed");
}

TEST(ProgramTextError, LayersAndRanksCountUp) {
  EXPECT_EQ(text_error("penstock-program 1\nmicro-batches 1\nlayer 1 \"a\" ways=all\n"),
            "p.txt:3: layer \"1\" is out of order; the next is 0");
  EXPECT_EQ(line_error("rank 2 limit=none"), "p.txt:6: rank \"2\" is out of order; the next is 1");
  EXPECT_EQ(line_error("rank 00 limit=none"),
            "p.txt:6: rank \"00\" is out of order; the next is 1");
}

TEST(ProgramTextError, ValuesThatNothingMakes) {
  const std::string rest = " is neither made nor given in this rank";
  EXPECT_EQ(forward_error("reads=x0.0", "reads=x0.1"), "p.txt:7: value \"x0.1\"" + rest);
  EXPECT_EQ(forward_error("reads=x0.0", "reads="), "p.txt:7: value \"\"" + rest);
  EXPECT_EQ(line_error("drop frees=d1.0\nstep on=compute seconds=0 working=0"),
            "p.txt:6: value \"d1.0\"" + rest);
  // Another rank's values are not this one's.
  EXPECT_EQ(line_error("given x0.0:4\nrank 1 limit=none\ndrop frees=x0.0\nrank 2 limit=none"),
            "p.txt:8: value \"x0.0\"" + rest);
}

TEST(ProgramTextError, ValuesMadeTwiceUnderOneName) {
  EXPECT_EQ(line_error("given x0.0:4 x0.0:4"),
            "p.txt:6: value x0.0 is made or given twice; the next making is #2");
  EXPECT_EQ(line_error("given x0.0:4 x0.0#2:4 x0.0#2:4"),
            "p.txt:6: value x0.0#2 is made or given twice; the next making is #3");
  EXPECT_EQ(line_error("given x0.0#2:4"),
            "p.txt:6: value x0.0#2 comes before x0.0; makings count up");
  EXPECT_EQ(line_error("given x0.0:4 x0.0#3:4"),
            "p.txt:6: value x0.0#3 comes before x0.0#2; makings count up");
}

TEST(ProgramTextError, NamesOfValuesHaveOneSpelling) {
  for (const std::string name : {"",
                                 "y0.0",
                                 "x",
                                 "x0",
                                 "x0.",
                                 "x.0",
                                 "x00.0",
                                 "x0.00",
                                 "x0.0#",
                                 "x0.0#1",
                                 "x0.0#02",
                                 "x-1.0",
                                 "x0.-1",
                                 "x+1.0",
                                 "w.0",
                                 "t0.0",
                                 "x99999999999.0",
                                 "x0.0#2#2"}) {
    EXPECT_EQ(
        line_error("given " + name + ":4"),
        cat("p.txt:6: value \"",
            name,
            "\" is no name like x3.0, s3.0, d3.0, w3.0, p3.0, g3.0, r3.0, t.0, v.0 or x3.0#2"));
  }
  EXPECT_EQ(line_error("given x0.0"),
            "p.txt:6: value \"x0.0\" comes without its bytes; write NAME:BYTES");
}

TEST(ProgramTextError, UnknownWays) {
  EXPECT_EQ(forward_error("keep=all", "keep=al"),
            "p.txt:7: unknown way of layer 0 \"al\"; did you mean all? (known: nothing, all, few)");
  EXPECT_EQ(forward_error("keep=all", "keep=few+output"),
            "p.txt:7: unknown way of layer 0 \"few+output\" (known: nothing, all, few)");
}

TEST(ProgramTextError, WaysHavePlainAndDifferentNames) {
  const auto ways_error = [](const std::string& ways) {
    return text_error("penstock-program 1\nmicro-batches 1\nlayer 0 \"a\" ways=" + ways + "\n");
  };
  const auto no_name = [](const std::string& shown) {
    return cat(
        "p.txt:3: way ",
        shown,
        " is no name; up to 64 letters, digits, _ and - are allowed (but not - and nothing), "
        "then +output or not");
  };
  for (const std::string way :
       {"", "a.b", "a:b", "+output", "nothing", "all+outputs", "a+output+output"}) {
    EXPECT_EQ(ways_error(way), no_name(cat('"', way, '"')));
  }
  const std::string longest(64, 'a');
  EXPECT_EQ(ways_error(longest + "a"), no_name(cat('"', longest, "a\"")));
  EXPECT_EQ(ways_error("all,-"), no_name("\"-\""));
  EXPECT_EQ(ways_error("all,all+output"),
            "p.txt:3: way all is repeated; a layer's ways have different names");
  const std::string text =
      "penstock-program 1\nmicro-batches 1\nlayer 0 \"a\" ways=" + longest + "\n";
  EXPECT_EQ(parse_program(text, "p.txt").layers[0].ways[0].name, longest);
}

TEST(ProgramTextError, UnknownResources) {
  for (const std::string on : {"gpu", "copy", "link", "inlet", "compute:0", ""}) {
    EXPECT_EQ(forward_error("on=compute", "on=" + on),
              cat("p.txt:7: on \"",
                  on,
                  "\" is no resource; compute, copy:N, link:N, inlet:N and replicas are"));
  }
  EXPECT_EQ(forward_error("on=compute", "on=link:-1"),
            "p.txt:7: link \"-1\" is no whole number from 0 to 2147483647");
  EXPECT_EQ(forward_error("on=compute", "on=inlet:x"),
            "p.txt:7: inlet \"x\" is no whole number from 0 to 2147483647");
}

TEST(ProgramTextError, LinesOfTheWrongForm) {
  const std::string rest = " is not written as it should be; an example: ";
  EXPECT_EQ(line_error("rank 1"), "p.txt:6: rank" + rest + "rank 0 limit=none");
  EXPECT_EQ(line_error("rank 1 limt=none"), "p.txt:6: limit" + rest + "rank 0 limit=none");
  EXPECT_EQ(line_error("resident \"a\" 5"),
            "p.txt:6: resident" + rest + "resident 4096 \"parameters\"");
  EXPECT_EQ(line_error("given"), "p.txt:6: given" + rest + "given x0.0:4096");
  EXPECT_EQ(line_error("given \"x0.0:1\""), "p.txt:6: given" + rest + "given x0.0:4096");
  const std::string start = "penstock-program 1\nmicro-batches 1\n";
  EXPECT_EQ(text_error(start + "layer 0 a ways=all\n"),
            "p.txt:3: layer" + rest + "layer 0 \"name\" ways=all");
  EXPECT_EQ(text_error(start + "layer 0 \"a\" all\n"),
            "p.txt:3: ways" + rest + "layer 0 \"name\" ways=all");
  EXPECT_EQ(text_error("penstock-program 1\nmicro-batches 1 2\n"),
            "p.txt:2: micro-batches" + rest + "micro-batches 4");
}

TEST(ProgramTextError, LinesOutOfPlace) {
  const std::string rest =
      " is out of place; the order is penstock-program, micro-batches, updates (of an asynchronous "
      "pipeline), replicas (where there are several), layers, units (of replicas), and for each "
      "rank: "
      "rank, residents and given values, instructions";
  const std::string step = "step on=compute seconds=0 working=0\n";
  EXPECT_EQ(line_error("penstock-program 1"), "p.txt:6: penstock-program" + rest);
  EXPECT_EQ(line_error("micro-batches 2"), "p.txt:6: micro-batches" + rest);
  EXPECT_EQ(line_error("layer 2 \"c\" ways=all"), "p.txt:6: layer" + rest);
  EXPECT_EQ(line_error(step + "given x0.0:4"), "p.txt:7: given" + rest);
  EXPECT_EQ(line_error(step + "resident 4 \"a\""), "p.txt:7: resident" + rest);
  EXPECT_EQ(text_error("penstock-program 1\nrank 0 limit=none\n"), "p.txt:2: rank" + rest);
  EXPECT_EQ(text_error("penstock-program 1\nmicro-batches 1\n" + step), "p.txt:3: step" + rest);
}

TEST(ProgramTextError, QuotationMarksAndEscapes) {
  EXPECT_EQ(line_error("resident 4 \"a"), "p.txt:6: a quotation mark is not closed on its line");
  EXPECT_EQ(line_error("resident 4 \"a\\\""),
            "p.txt:6: a quotation mark is not closed on its line");
  EXPECT_EQ(line_error("resident 4 \"a\\"), "p.txt:6: a quotation mark is not closed on its line");
  EXPECT_EQ(line_error("resident 4 \"a\"b"), "p.txt:6: a blank is missing after a quotation mark");
  for (const std::string escape : {"\\x41", "\\u12", "\\ud800"}) {
    EXPECT_EQ(line_error("resident 4 \"" + escape + "\""),
              "p.txt:6: an escape in quotation marks is wrong; those of JSON are allowed");
  }
}

TEST(ProgramTextError, BinaryJunk) {
  EXPECT_EQ(line_error("drop\xFF"), "p.txt:6: the line is not valid UTF-8; a program is text");
  EXPECT_EQ(line_error("# \xC3"), "p.txt:6: the line is not valid UTF-8; a program is text");
  EXPECT_EQ(line_error(std::string("drop\0", 5)),
            "p.txt:6: the line holds a control character; a program is text");
  EXPECT_EQ(line_error("drop\rdrop"),
            "p.txt:6: the line holds a control character; a program is text");
}

TEST(ProgramTextError, TooLong) {
  // Mapped, not read: the pages of a hole in a file cost nothing.
  const test::TempFolder folder;
  const auto path = folder.path() / "long";
  write_text_file(path, "");
  std::filesystem::resize_file(path, (size_t{64} << 20) + 1);
  const MappedFile file(path);
  EXPECT_EQ(text_error({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}),
            "p.txt:1: 67108865 bytes are too long for a program; up to 67108864 are read");
}

}  // namespace
}  // namespace penstock::program
