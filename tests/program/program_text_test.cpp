#include "penstock/program/program_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/plan/exchanges.h"
#include "penstock/program/program_reader.h"

#include "program/asynchronous_program.h"
#include "program/everything_program.h"
#include "program/replicated_program.h"
#include "program/unit_program.h"
#include "support/error_text.h"

namespace penstock::program {
namespace {

using test::everything_text;

TEST(ProgramText, EverythingPrintsAndReadsBack) {
  const Program program = parse_program(everything_text(), "p.txt");
  EXPECT_EQ(format_program(program), everything_text());
}

// So that a new one is put there.
TEST(ProgramText, EverythingHasAllThatThereIs) {
  const Program program = parse_program(everything_text(), "p.txt");
  const RankProgram& rank = program.ranks[0];
  std::set<ValueKind> kinds;
  std::set<Tier> tiers;
  for (const Value& value : rank.values) {
    kinds.insert(value.kind);
    tiers.insert(value.tier);
  }
  EXPECT_EQ(kinds.size(), kNumValueKinds);
  EXPECT_EQ(tiers.size(), kNumTiers);
  std::set<Op> ops;
  std::set<ResourceKind> resources;
  for (const Instruction& one : rank.instructions) {
    ops.insert(one.op);
    resources.insert(one.resource.kind);
  }
  EXPECT_EQ(ops.size(), kNumOps);
  EXPECT_EQ(resources.size(), kNumResourceKinds);
}

TEST(ProgramText, LinesBeforeTheInstructionsMeanWhatTheySay) {
  using enum comm::Axis;
  const Program program = parse_program(everything_text(), "p.txt");
  EXPECT_EQ(program.micro_batches, 4);
  EXPECT_EQ(program.updates, 2);
  EXPECT_TRUE(program.mixes_weights);
  EXPECT_EQ(program.mesh, (comm::Mesh{.data = 2, .pipeline = 2, .tensor = 2, .context = 2}));
  EXPECT_EQ(program.shard, Shard::Optimizer);
  EXPECT_TRUE(program.is_apart);
  EXPECT_EQ(program.groups,
            (std::vector<comm::RankGroup>{
                comm::along(Data), comm::among_stages("wte", {0, 1}), comm::all(), {.name = ""}}));
  EXPECT_EQ(program.layers,
            (std::vector<LayerInfo>{{"embedding", {{"all"}}},
                                    {"own \"module\" \\ 1", {{"all", true}, {"no-norm"}}},
                                    {"", {}}}));
  EXPECT_EQ(program.carried,
            (std::vector<Carried>{
                {.name = "mask", .readers = {1, 3}},
                {.name = "own \"memory\"", .born = 0, .readers = {2}, .has_gradient = true}}));
  EXPECT_EQ(program.units,
            (std::vector<Unit>{{.name = "a", .layers = {0}, .is_frozen = true},
                               {.name = "table",
                                .layers = {0, 1, 3},
                                .forward_only = {0, 1},
                                .weight_too = {1},
                                .is_shared = true,
                                .elements = 64},
                               {.name = "", .elements = std::numeric_limits<int64_t>::max()}}));
  ASSERT_EQ(program.ranks.size(), 16U);
  const RankProgram& rank = program.ranks[0];
  EXPECT_EQ(rank.limit_bytes, 629145600);
  EXPECT_EQ(rank.host_limit_bytes, 2000);
  EXPECT_EQ(rank.disk_limit_bytes, 3000);
  EXPECT_EQ(rank.labels, (std::vector<std::string>{"history", "the \"cache\"", ""}));
  EXPECT_EQ(program.ranks[15], RankProgram{});
}

TEST(ProgramText, ValuesMeanWhatTheirNamesSay) {
  using enum ValueKind;
  const RankProgram rank = parse_program(everything_text(), "p.txt").ranks[0];
  const std::vector<Slice> slices{{0, 4}, {6, 8}};
  const std::vector<Value> expected{
      {.kind = Master, .unit = 0, .bytes = 8, .slices = slices},
      {.kind = Compute, .unit = 0, .bytes = 4},
      {.kind = GradientSum, .tier = Tier::Host, .unit = 0, .bytes = 8},
      {.kind = Share, .tier = Tier::Disk, .layer = 3, .unit = 1, .bytes = 8, .slices = {{1, 2}}},
      {.kind = State, .tier = Tier::Host, .unit = 0, .bytes = 16, .slices = slices},
      {.kind = State, .unit = 1},
      {.kind = RankState, .label = 0, .bytes = 3},
      {.kind = Fixed, .tier = Tier::Disk, .label = 1, .bytes = 5},
      {.kind = Fixed, .label = 2},
      {.kind = Master, .unit = 2, .bytes = 1},
      {.kind = LayerState, .tier = Tier::Host, .layer = 1, .bytes = 6},
      {.kind = LayerState, .layer = 2, .bytes = 5},
      {.kind = Activation, .layer = 0, .micro_batch = 0, .bytes = 4},
      {.kind = Targets, .tier = Tier::Host, .micro_batch = 3, .bytes = 1},
      {.kind = Activation, .layer = 1, .micro_batch = 0, .bytes = 64},
      {.kind = Saved, .tier = Tier::Host, .layer = 0, .micro_batch = 0, .bytes = 128},
      {.kind = Activation, .layer = 2, .micro_batch = 0, .bytes = 64},
      {.kind = Activation, .tier = Tier::Disk, .layer = 1, .micro_batch = 0, .bytes = 64},
      {.kind = Gradient, .layer = 3, .micro_batch = 3, .bytes = 64},
      {.kind = WeightWork, .layer = 1, .micro_batch = 3, .bytes = 5},
      {.kind = Bucket, .unit = 1, .micro_batch = 3, .bytes = 6},
      {.kind = Gradient, .layer = 2, .micro_batch = 1, .bytes = 8},
      {.kind = Activation, .layer = 3, .micro_batch = 2, .bytes = 2},
      {.kind = Stashed, .version = 1, .bytes = 9},
      {.kind = Gathered, .unit = 1, .micro_batch = 3, .bytes = 64},
      {.kind = AllSquares, .version = 1},
      {.kind = Gathered, .unit = 0, .micro_batch = 2, .bytes = 1},
      {.kind = Bucket, .unit = 0, .micro_batch = 0, .bytes = 1},
      {.kind = Sketches, .version = 1},
      {.kind = AllSketches, .version = 1},
      {.kind = Squares, .tier = Tier::Host, .version = 0},
      {.kind = Decision, .version = 1},
      {.kind = Filled, .version = 0},
      {.kind = Prepared, .version = 1},
      {.kind = Lengths, .version = 0},
      {.kind = AllLengths, .version = 1},
      {.kind = Targets, .micro_batch = 0, .bytes = 1},
      {.kind = Carried, .element = 0, .micro_batch = 3, .bytes = 3},
      {.kind = CarriedGradient, .tier = Tier::Host, .element = 1, .micro_batch = 1, .bytes = 8},
  };
  EXPECT_EQ(rank.values, expected);
  EXPECT_EQ(rank.persistent, (std::vector<ValueId>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(rank.given, (std::vector<ValueId>{12, 13}));
  std::vector<std::string> names = value_names(rank);
  EXPECT_EQ(names[3], "b1.3");
  EXPECT_EQ(names[17], "x1.0#2");
  EXPECT_EQ(names[names.size() - 2], "i0.3");
  EXPECT_EQ(names.back(), "u1.1");
}

TEST(ProgramText, InstructionsMeanWhatTheirFieldsSay) {
  const RankProgram rank = parse_program(everything_text(), "p.txt").ranks[0];
  const auto expect_line = [&](size_t index, const Instruction& expected) {
    EXPECT_EQ(rank.instructions.at(index), expected) << "instruction " << index;
  };
  expect_line(0,
              {.op = Op::Forward,
               .layer = 0,
               .micro_batch = 0,
               .keep = 0,
               .reads = {12, 0},
               .makes = {14, 15},
               .sets = {2},
               .updates = {4},
               .seconds = 1e-5,
               .working_bytes = 200});
  expect_line(1,
              {.op = Op::Forward,
               .layer = 1,
               .micro_batch = 0,
               .keep = 1,
               .reads = {14},
               .makes = {16},
               .frees = {14},
               .resource = {ResourceKind::Copy, 3},
               .working_bytes = 64});
  expect_line(2,
              {.op = Op::Forward,
               .layer = 0,
               .micro_batch = 0,
               .keep = kKeepNothing,
               .reads = {12},
               .makes = {17},
               .frees = {12},
               .resource = {ResourceKind::HostCompute},
               .seconds = 2,
               .working_bytes = 64});
  expect_line(3,
              {.op = Op::Loss,
               .micro_batch = 3,
               .reads = {16, 13},
               .makes = {18},
               .sets = {3},
               .updates = {2, 0},
               .frees = {16, 13},
               .resource = {ResourceKind::Disk, 2},
               .seconds = 0.1,
               .working_bytes = 70});
  expect_line(7,
              {.op = Op::Send,
               .layer = 3,
               .micro_batch = 2,
               .reads = {17},
               .frees = {17},
               .resource = {ResourceKind::Link, 15},
               .seconds = 0.25,
               .working_bytes = 7,
               .sent_bytes = 64});
  expect_line(8,
              {.op = Op::Receive,
               .layer = 2,
               .micro_batch = 1,
               .makes = {21},
               .frees = {15},
               .resource = {ResourceKind::Inlet, 3},
               .working_bytes = 8});
  expect_line(9, {.op = Op::Drop, .frees = {21}});
  expect_line(12,
              {.op = Op::Gather,
               .units = {1},
               .micro_batch = 3,
               .group = 0,
               .reads = {0},
               .makes = {24},
               .sets = {1},
               .updates = {9},
               .frees = {24},
               .resource = {ResourceKind::Line, 0},
               .seconds = 0.5,
               .working_bytes = 64,
               .sent_bytes = 32});
  expect_line(14,
              {.op = Op::Reduce,
               .units = {0, 1, 2},
               .micro_batch = 2,
               .group = 0,
               .scatters = true,
               .reads = {0},
               .makes = {26},
               .sets = {1},
               .updates = {2},
               .frees = {26},
               .resource = {ResourceKind::Line, 0},
               .seconds = 0.25,
               .working_bytes = 1,
               .sent_bytes = 9000000000000000000});
  expect_line(15, {.op = Op::Reduce, .group = 3, .seconds = 0.25});
  expect_line(16,
              {.op = Op::Add,
               .layer = 3,
               .units = {1},
               .reads = {3},
               .makes = {27},
               .sets = {1},
               .updates = {2},
               .frees = {27},
               .seconds = 0.125,
               .working_bytes = 1});
  expect_line(22,
              {.op = Op::Prepare,
               .reads = {31, 32},
               .makes = {33, 34},
               .sets = {1},
               .updates = {4, 6},
               .frees = {32, 29},
               .seconds = 1});
  expect_line(23,
              {.op = Op::Exchange,
               .group = 0,
               .reads = {33},
               .makes = {35},
               .sets = {1},
               .updates = {4, 6},
               .frees = {33, 34},
               .resource = {ResourceKind::Line, 0},
               .seconds = 1,
               .sent_bytes = 12});
  expect_line(24,
              {.op = Op::Merge,
               .group = 1,
               .reads = {2},
               .sets = {1},
               .updates = {10, 11},
               .resource = {ResourceKind::Line, 1},
               .seconds = 0.5,
               .working_bytes = 7,
               .sent_bytes = 10});
  expect_line(25,
              {.op = Op::Step,
               .units = {0, 1},
               .reads = {2, 31, 35},
               .makes = {36},
               .sets = {1},
               .updates = {0, 4, 6},
               .frees = {31, 36, 35},
               .resource = {ResourceKind::HostCompute},
               .seconds = 1.0 / 3,
               .working_bytes = 9223372036850000000});
  expect_line(26, {.op = Op::Step, .updates = {10}});
  expect_line(29,
              {.op = Op::Send,
               .element = 1,
               .micro_batch = 1,
               .reads = {38},
               .frees = {38},
               .resource = {ResourceKind::Link, 2},
               .seconds = 0.25,
               .sent_bytes = 8});
  EXPECT_EQ(rank.sent_bytes(), 64 + 32 + 16 + 8 + 12 + 10 + 8 + 9000000000000000000);
}

TEST(ProgramText, RanksNumberTheirValuesApart) {
  const std::string text =
      R"(penstock-program 2
micro-batches 1
mesh pipeline=2
layer 0 "a" modes=all
rank 0 limit=none
given x0.0:4
forward layer=0 mb=0 keep=nothing reads=x0.0 makes=x1.0:8 frees=x0.0,x1.0 on=copy:1 seconds=1 working=8
rank 1 limit=100 disk=7
hold k0:5 "weights"
given t.0:4
drop frees=t.0
)";
  const Program program = parse_program(text, "p.txt");
  ASSERT_EQ(program.ranks.size(), 2U);
  EXPECT_EQ(program.ranks[0].values.size(), 2U);
  EXPECT_EQ(program.ranks[0].instructions[0].frees, (std::vector<ValueId>{0, 1}));
  EXPECT_EQ(program.ranks[1].values,
            (std::vector<Value>{{.kind = ValueKind::Fixed, .label = 0, .bytes = 5},
                                {.kind = ValueKind::Targets, .micro_batch = 0, .bytes = 4}}));
  EXPECT_EQ(program.ranks[1].persistent, std::vector<ValueId>{0});
  EXPECT_EQ(program.ranks[1].given, std::vector<ValueId>{1});
  EXPECT_EQ(program.ranks[1].limit_bytes, 100);
  EXPECT_EQ(program.ranks[1].host_limit_bytes, 0);
  EXPECT_EQ(program.ranks[1].disk_limit_bytes, 7);
  EXPECT_EQ(format_program(program), text);
}

TEST(ProgramText, LimitsOfTiersMayBeNone) {
  const std::string start = "penstock-program 2\nmicro-batches 1\nrank 0 limit=none";
  for (const std::string more : {"", " host=none", " disk=none", " host=none disk=none"}) {
    const Program program = parse_program(start + more + "\n", "p.txt");
    EXPECT_EQ(program.ranks[0], RankProgram{});
    EXPECT_EQ(format_program(program), start + "\n");
  }
}

TEST(ProgramText, ProgramsOfUnitsPrintAndReadBack) {
  EXPECT_EQ(format_program(test::unit_program()), test::kUnitText);
}

TEST(ProgramText, SeveralUpdatesPrintAndReadBack) {
  Program program = parse_program(test::kAsynchronousText, "p.txt");
  EXPECT_EQ(program.updates, 2);
  EXPECT_FALSE(program.mixes_weights);
  const RankProgram& rank = program.ranks[0];
  const Instruction& stash = rank.instructions[test::kStash];
  EXPECT_EQ(stash.op, Op::Stash);
  EXPECT_EQ(rank.value(stash.makes[0]),
            (Value{.kind = ValueKind::Stashed, .version = 0, .bytes = 10}));
  EXPECT_EQ(format_program(program), test::kAsynchronousText);
  program.mixes_weights = true;
  const std::string text = format_program(program);
  EXPECT_NE(text.find("\nupdates 2 weights=mixed\n"), std::string::npos) << text;
  EXPECT_EQ(parse_program(text, "p.txt"), program);
}

TEST(ProgramText, ReplicasAndUnitsReadBack) {
  const auto expect_has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  };
  for (const Shard shard : kShards) {
    const Program program = test::replicated_program(shard, 2);
    const std::string text = format_program(program);
    expect_has(text, "\nmesh data=2 pipeline=2\n");
    EXPECT_EQ(text.find("\nshard ") != std::string::npos, shard != Shard::None);
    if (shard != Shard::None) {
      expect_has(text, cat("\nshard ", shard_name(shard), "\ngroup 0 \"data\" axes=data\n"));
    }
    expect_has(text, "\ngroup 1 \"table\" axes=pipeline stages=0,1\n");
    expect_has(text, "\nunit 2 \"table\" layers=0,2 shared=yes elements=40\n");
    EXPECT_EQ(parse_program(text, "p.txt"), program);
  }
  const std::string text = format_program(test::replicated_program(Shard::Parameters));
  expect_has(
      text,
      "\ngather units=0 mb=0 group=0 reads=m0 makes=p0.0:10 on=line:0 seconds=0.5 working=10 "
      "sends=7\n");
  expect_has(text,
             "\nreduce units=2 mb=0 group=0 to=scatter reads=g2.0 sets=b2.2 on=line:0 seconds=0.25 "
             "working=0 sends=9\n");
  expect_has(text, "\nhold m0:5@0-4+9-10 a0:5@0-4+9-10 o0:5@0-4+9-10 m1:10@0-9+19-20 ");
  const std::string once = format_program(test::replicated_program(Shard::None));
  expect_has(
      once,
      "\nreduce units=1 group=0 to=all updates=a1 on=line:0 seconds=0.25 working=0 sends=9\n");
  expect_has(once,
             "\ngather group=1 reads=q.0 makes=z.0:0 frees=q.0 on=compute seconds=0 working=0 "
             "sends=16\n");
}

TEST(ProgramText, ReplicasThatMoveApartReadBack) {
  const Program program = test::exchanging_program(Shard::None, {.reduces = false}, 2);
  const std::string text = format_program(program);
  EXPECT_NE(text.find("\nshard none replicas=apart\n"), std::string::npos) << text;
  const Program read = parse_program(text, "p.txt");
  EXPECT_TRUE(read.is_apart);
  EXPECT_EQ(read, program);
}

TEST(ProgramText, WhatReplicasExchangeReadsBack) {
  using enum plan::UpdateForm::Average;
  const Program program = test::exchanging_program(
      Shard::Optimizer,
      {.reduces = false, .average = Momentum, .fills_momentum = true, .lengths = 2});
  const std::string text = format_program(program);
  for (const char* line :
       {"\nsketch reads=a0,a1,a2 makes=h.0:0 on=compute seconds=0 working=0\n"
        "gather group=0 reads=h.0 makes=j.0:0 frees=h.0 on=compute seconds=0 working=0 sends=11\n"
        "squares reads=j.0 makes=q.0:0 frees=j.0 on=compute seconds=0 working=0\n",
        "\ngather group=0 makes=f.0:0 updates=o0,o1,o2 on=compute seconds=0 working=0 sends=12\n"
        "prepare reads=f.0,a0,a1,a2,n.0 makes=r.0:0,l.0:0 updates=o0,o1,o2 frees=f.0 on=compute "
        "seconds=0 working=0\n"
        "exchange group=0 reads=r.0 updates=o0,o1,o2 frees=r.0 on=compute seconds=0 working=0 "
        "sends=14\n"
        "gather group=0 reads=l.0 makes=y.0:0 frees=l.0 on=compute seconds=0 working=0 sends=30\n"
        "step units=0,1,2 reads=a0,a1,a2,n.0,y.0 updates=m0,o0,m1,o1,m2,o2 frees=n.0,y.0 "}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
  EXPECT_EQ(parse_program(text, "p.txt"), program);
}

TEST(ProgramText, ProgramsWithoutRanksOrLayersAreWritten) {
  EXPECT_EQ(format_program({}), "penstock-program 2\nmicro-batches 1\n");
  EXPECT_EQ(parse_program("penstock-program 2\nmicro-batches 1\n", "p.txt"), Program{});

  const std::string no_layers =
      "penstock-program 2\nmicro-batches 1\nrank 0 limit=none\ngiven x0.0:4 t.0:4\n"
      "loss mb=0 reads=x0.0,t.0 makes=d0.0:4 frees=- on=compute seconds=1 working=4\n";
  EXPECT_EQ(format_program(parse_program(no_layers, "p.txt")), no_layers);

  const Program no_modes{.layers = {{"a", {}}}};
  EXPECT_EQ(format_program(no_modes),
            "penstock-program 2\nmicro-batches 1\nlayer 0 \"a\" modes=-\n");
}

TEST(ProgramText, NamesMayHoldAnyCharacter) {
  for (const std::string name :
       {"", " ", "# no comment", "a\nb\tc\r", "\x01\x7F", "größe 層", "\\\""}) {
    Program program{.layers = {{name, {{"all"}}}}, .groups = {{.name = name}}};
    program.units = {{.name = name, .layers = {0}}};
    program.ranks.emplace_back().hold({.kind = ValueKind::Fixed, .bytes = 3}, name);
    EXPECT_EQ(parse_program(format_program(program), "p.txt"), program) << name;
  }
}

TEST(ProgramText, NumbersReadBackToTheLastBit) {
  using Limits = std::numeric_limits<double>;
  for (const double seconds :
       {0.1 + 0.2, 1.0 / 3, 1e300, Limits::min(), Limits::denorm_min(), 1e23, 123456789.0}) {
    const Program program{.ranks = {{.instructions = {{.op = Op::Step, .seconds = seconds}}}}};
    EXPECT_EQ(parse_program(format_program(program), "p.txt"), program) << seconds;
  }
}

TEST(ProgramText, CommentsBlanksAndLineEndsAreFree) {
  const std::string text =
      "# a program\r\n\r\npenstock-program\t2 # version\n  micro-batches   1\n#\n"
      "layer 0 \"a # b\" modes=all # #\nunit 0 \"\" layers=0\nrank 0 limit=none\n\n"
      "hold m0:1 # one\nhold k0:2 \"two\" # and\nhold a0:3\n"
      "given x0.0:1 # one line\ngiven t.0:2\n"
      "step working=0 seconds=1 on=compute\n"
      "drop frees=x0.0,t.0";
  const Program program = parse_program(text, "p.txt");
  EXPECT_EQ(program.layers[0].name, "a # b");
  EXPECT_EQ(program.ranks[0].persistent, (std::vector<ValueId>{0, 1, 2}));
  EXPECT_EQ(program.ranks[0].given, (std::vector<ValueId>{3, 4}));
  EXPECT_EQ(program.ranks[0].instructions.size(), 2U);
}

// That no value is used before it is made is verify's business.
TEST(ProgramText, ValuesMayBeUsedAboveTheirMaker) {
  const std::string text =
      "penstock-program 2\nmicro-batches 2\nlayer 0 \"a\" modes=all\nrank 0 limit=none\n"
      "drop frees=x1.0\n"
      "forward layer=0 mb=0 keep=all reads=x1.0#2 makes=x1.0:1,x1.0#2:2 frees=- on=compute "
      "seconds=1 "
      "working=9\n";
  const RankProgram rank = parse_program(text, "p.txt").ranks[0];
  EXPECT_EQ(rank.instructions[0].frees, std::vector<ValueId>{0});
  EXPECT_EQ(rank.instructions[1].reads, std::vector<ValueId>{1});
}

TEST(ProgramText, WhatCannotBeReadBackIsNotWritten) {
  const auto expect_refusal = [&](const auto& change, const std::string& part) {
    Program program = parse_program(everything_text(), "p.txt");
    change(program, program.ranks[0]);
    const std::string message = test::error_text<InternalError>([&] { format_program(program); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  using P = Program;
  using R = RankProgram;
  expect_refusal([](P&, R& rank) { std::swap(rank.given[0], rank.given[1]); }, "not numbered");
  expect_refusal([](P&, R& rank) { std::swap(rank.persistent[0], rank.persistent[1]); },
                 "not numbered");
  expect_refusal([](P&, R& rank) { rank.values.push_back(rank.values[0]); }, "not numbered");
  expect_refusal([](P&, R& rank) { rank.labels.push_back("more"); }, "not numbered");
  expect_refusal([](P&, R& rank) { rank.labels.pop_back(); }, "no label 2");
  expect_refusal([](P&, R& rank) { std::swap(rank.values[6].label, rank.values[7].label); },
                 "label \"1\" is out of order");
  expect_refusal([](P&, R& rank) { rank.persistent.push_back(13); },
                 "is not held from step to step");
  expect_refusal([](P&, R& rank) { rank.given.push_back(39); }, "there is no value 39");
  expect_refusal([](P&, R& rank) { rank.persistent.push_back(-1); }, "there is no value -1");
  expect_refusal([](P&, R& rank) { rank.instructions[1].reads[0] = -1; }, "there is no value -1");
  expect_refusal([](P&, R& rank) { rank.instructions[0].keep = 1; }, "there is no save mode 1");
  expect_refusal([](P&, R& rank) { rank.instructions[0].layer = 3; }, "there is no layer 3");
  expect_refusal([](P&, R& rank) { rank.instructions[2].layer = -1; }, "layer \"-1\"");
  expect_refusal([](P&, R& rank) { rank.instructions[26].layer = 1; }, "unknown field of step");
  expect_refusal([](P&, R& rank) { rank.instructions[0].units = {0}; }, "unknown field of forward");
  expect_refusal([](P&, R& rank) { rank.instructions[0].group = 0; }, "unknown field of forward");
  expect_refusal([](P&, R& rank) { rank.instructions[0].scatters = true; },
                 "unknown field of forward");
  expect_refusal([](P&, R& rank) { rank.instructions[0].sent_bytes = 1; },
                 "unknown field of forward");
  expect_refusal([](P&, R& rank) { rank.instructions[12].group = 4; }, "group 4 is out of range");
  expect_refusal([](P&, R& rank) { rank.instructions[12].group = kNoGroup; }, "group \"-1\"");
  expect_refusal([](P&, R& rank) { rank.instructions[12].units = {3}; }, "unit 3 is out of range");
  expect_refusal([](P&, R& rank) { rank.instructions[0].resource.index = 1; }, "compute 1");
  expect_refusal([](P&, R& rank) { rank.instructions[0].seconds = NAN; }, "seconds nan");
  expect_refusal([](P&, R& rank) { rank.instructions[0].seconds = -1; }, "seconds \"-1\"");
  expect_refusal([](P&, R& rank) { rank.values[12].bytes = -1; }, "bytes of x0.0 \"-1\"");
  expect_refusal([](P&, R& rank) { rank.values[13].layer = 1; }, "not numbered");
  expect_refusal([](P&, R& rank) { rank.values[12].slices = {{0, 1}}; }, "has no slices");
  expect_refusal([](P&, R& rank) { rank.values[0].slices = {{0, -1}}; }, "end of a slice \"-1\"");
  expect_refusal([](P&, R& rank) { rank.limit_bytes = -1; }, "limit \"-1\"");
  expect_refusal([](P&, R& rank) { rank.host_limit_bytes = -1; }, "not numbered");
  expect_refusal([](P&, R& rank) { rank.instructions[1].op = Op::Receive; }, "unknown field");
  expect_refusal([](P& all, R&) { all.layers[0].modes[0].name = "a b"; }, "save mode \"a b\"");
  expect_refusal([](P& all, R&) { all.layers[0].modes[0].name = "-"; }, "save mode \"-\"");
  expect_refusal([](P& all, R&) { all.layers[0].modes.push_back({"all"}); }, "save mode all is");
  expect_refusal([](P& all, R&) { all.layers[0].name = "\xFF"; }, "not UTF-8");
  expect_refusal([](P& all, R&) { all.units[0].name = "\xFF"; }, "not UTF-8");
  expect_refusal([](P& all, R&) { all.groups[0].name = "\xFF"; }, "not UTF-8");
  expect_refusal([](P&, R& rank) { rank.labels[0] = "\xFF"; }, "not UTF-8");
  expect_refusal([](P& all, R&) { all.units[0].elements = -1; }, "not numbered");
  expect_refusal([](P& all, R&) { all.groups[1].stages = {1, 0}; }, "stage 0 comes after 1");
  expect_refusal([](P& all, R&) { all.micro_batches = 0; }, "micro-batches \"0\"");
  expect_refusal([](P& all, R&) { all.mesh.data = 1; }, "16 ranks, and its mesh 8");
}

TEST(ProgramText, ProgramTooLongToReadIsNotWritten) {
  const std::string written(65 << 20, ' ');
  EXPECT_EQ(test::error_text<ConfigError>([&] { check_reads_back({}, written, {}); }),
            "the program is 65.0 MiB long; files of up to 64.0 MiB can be read back; use fewer "
            "micro-batches or ranks");
}

}  // namespace
}  // namespace penstock::program
