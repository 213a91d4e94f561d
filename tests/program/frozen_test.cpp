// Frozen units in programs: what verify demands of weights that never move.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "penstock/program/program_json.h"
#include "penstock/program/program_text.h"
#include "penstock/program/verify.h"

#include "program/replicated_program.h"

namespace penstock::program {

namespace {

// Layer 0 is frozen, layer 1 learns.
const std::string kText = R"(penstock-program 2
micro-batches 1
layer 0 "a" modes=all
layer 1 "b" modes=all
unit 0 "b" layers=1
unit 1 "a" layers=0 frozen=yes elements=4
rank 0 limit=none
hold m0:4 a0:4 o0:8 m1:4
given x0.0:4 t.0:1
forward layer=0 mb=0 keep=all reads=x0.0,m1 makes=x1.0:4,s0.0:1 frees=- on=compute seconds=1 working=5
forward layer=1 mb=0 keep=all reads=x1.0,m0 makes=x2.0:4,s1.0:1 frees=- on=compute seconds=1 working=5
loss mb=0 reads=x2.0,t.0 makes=d2.0:4 frees=x2.0,t.0 on=compute seconds=1 working=4
backward layer=1 mb=0 reads=x1.0,s1.0,d2.0,m0 makes=d1.0:4 sets=a0 frees=x1.0,s1.0,d2.0 on=compute seconds=1 working=4
backward layer=0 mb=0 reads=x0.0,s0.0,d1.0,m1 makes=- frees=x0.0,s0.0,d1.0 on=compute seconds=1 working=0
squares reads=a0 makes=q.0:0 on=compute seconds=1 working=0
decide reads=q.0 makes=n.0:0 frees=q.0 on=compute seconds=1 working=0
step units=0 reads=a0,n.0 updates=m0,o0 frees=n.0 on=compute seconds=1 working=0
)";

std::string fault(const Program& program) {
  const Verdict verdict = verify(program);
  return verdict.is_sound() ? "" : verdict.violation->text;
}

// One part of the text replaced.
void expect_refused(const std::string& part, const std::string& other, const std::string& why) {
  std::string text = kText;
  const size_t at = text.find(part);
  ASSERT_NE(at, std::string::npos) << part;
  text.replace(at, part.size(), other);
  const std::string found = fault(parse_program(text, "p.txt"));
  EXPECT_TRUE(found.ends_with(why)) << found;
}

// Two replicas; layer 0 has unit "a", which learns, and the frozen unit "kept"; layer 1 and the
// loss share a frozen table.
const std::vector<Unit>& frozen_units() {
  static const std::vector<Unit> units = {
      {.name = "a", .layers = {0}, .elements = 10},
      {.name = "kept", .layers = {0}, .is_frozen = true, .elements = 20},
      {.name = "table", .layers = {1, 2}, .is_shared = true, .is_frozen = true, .elements = 8}};
  return units;
}
Program replicated(Shard shard,
                   int32_t stages = 1,
                   schedule::Kind kind = schedule::Kind::OneFOneB) {
  return test::replicated_program(shard, stages, kind, /*micro_batches=*/2, frozen_units());
}

Value& held(Program& program, size_t rank, ValueKind kind, int32_t unit) {
  RankProgram& list = program.ranks[rank];
  const auto found = std::find_if(list.values.begin(), list.values.end(), [&](const Value& one) {
    return one.kind == kind && one.unit == unit;
  });
  EXPECT_NE(found, list.values.end());
  return *found;
}

}  // namespace

TEST(Frozen, UnitsHaveWeightsAlone) {
  const Program program = parse_program(kText, "p.txt");
  EXPECT_EQ(fault(program), "");
  EXPECT_EQ(format_program(program), kText);
  EXPECT_EQ(parse_program_json(program_json(program), "p.json"), program);
  EXPECT_TRUE(program.units[1].is_frozen);
  EXPECT_EQ(program.ranks[0].persistent_bytes(), 4 + 4 + 8 + 4);
}

TEST(Frozen, UnitsAreReadByTheirLayers) {
  expect_refused("reads=x0.0,m1 makes", "reads=x0.0 makes", "does not read m1");
  expect_refused("reads=x0.0,s0.0,d1.0,m1", "reads=x0.0,s0.0,d1.0", "does not read m1");
  std::string text = kText;
  for (size_t at = text.find("m1"); at != std::string::npos; at = text.find("m1")) {
    text.replace(at, 2, "c1");
  }
  const std::string found = fault(parse_program(text, "p.txt"));
  EXPECT_TRUE(found.ends_with("the rank works at frozen unit a and does not hold its weights"))
      << found;
}

TEST(Frozen, UnitsHaveNeitherGradientNorState) {
  const std::string why = "and a is frozen: it has neither gradient nor state";
  for (const char* other : {"a1:4", "o1:8", "b1.0:4"}) {
    expect_refused("m1:4", cat("m1:4 ", other), why);
  }
  expect_refused("unit 1 \"a\" layers=0 frozen=yes",
                 "unit 1 \"a\" layers=0",
                 "the rank works at a and does not hold its weights, gradient and state");
  expect_refused(
      "m1 makes=- frees=x0.0", "m1 makes=- sets=m1 frees=x0.0", "changes 1 values in place, not 0");
}

TEST(Frozen, UnitsAreNotMovedReducedOrAddedUp) {
  const std::string why = "a is frozen: it has neither gradient nor state";
  expect_refused("step units=0 reads=a0,n.0 updates=m0,o0",
                 "step units=0,1 reads=a0,n.0 updates=m0,o0,m1",
                 why);
  expect_refused("updates=m0,o0", "updates=m0,o0,m1", "changes 3 values in place, not 2");
  expect_refused("squares reads=a0", "squares reads=a0,m1", "reads 2 values, not 1");
  expect_refused("squares",
                 "add layer=0 units=1 reads=a0 updates=m1 on=compute seconds=1 working=0\nsquares",
                 why);
  Program program = replicated(Shard::None);
  ASSERT_EQ(fault(program), "");
  for (RankProgram& rank : program.ranks) {
    rank.instructions[test::place_of(rank, Op::Reduce)].units = {1};
  }
  EXPECT_TRUE(fault(program).ends_with("kept is frozen: it has neither gradient nor state"))
      << fault(program);
}

TEST(Frozen, ARankMayHaveNothingElse) {
  for (const Shard shard : kShards) {
    const Program program = replicated(shard, /*stages=*/2);
    EXPECT_EQ(fault(program), "") << shard_name(shard);
    // The second stage steps without a unit.
    const RankProgram& rank = program.ranks.back();
    const Instruction& step = rank.instructions[test::place_of(rank, Op::Step)];
    EXPECT_TRUE(step.units.empty());
    EXPECT_EQ(held_by_name(rank).size(), 1U);
  }
}

TEST(Frozen, UnitsAreOnlyGathered) {
  for (const Shard shard : kShards) {
    for (const schedule::Kind kind : {schedule::Kind::OneFOneB, schedule::Kind::ZeroBubbleH1}) {
      const Program program = replicated(shard, /*stages=*/2, kind);
      EXPECT_EQ(fault(program), "") << shard_name(shard);
      for (const RankProgram& rank : program.ranks) {
        for (const Instruction& one : rank.instructions) {
          const bool names_frozen = std::any_of(
              one.units.begin(), one.units.end(), [](int32_t unit) { return unit > 0; });
          EXPECT_TRUE(!names_frozen || (one.op == Op::Gather && shard == Shard::Parameters));
        }
      }
    }
  }
}

TEST(Frozen, WholeWeightsAreNotGathered) {
  Program program = replicated(Shard::Optimizer);
  for (RankProgram& rank : program.ranks) {
    Instruction& gather = rank.instructions[rank.instructions.size() - 1];
    ASSERT_EQ(gather.op, Op::Gather);
    gather.units = {1};
  }
  EXPECT_TRUE(
      fault(program).ends_with("kept is frozen: no replica moves it, and all have all of it"))
      << fault(program);
}

TEST(Frozen, ReplicasDivideAllOfAUnitOrNothing) {
  Program program = replicated(Shard::Parameters);
  held(program, 0, ValueKind::Master, 1).slices = {};
  EXPECT_TRUE(fault(program).ends_with("rank 0 has all of frozen unit kept, which replicas divide"))
      << fault(program);
  program = replicated(Shard::Parameters);
  held(program, 0, ValueKind::Master, 1).slices.back().end -= 1;
  EXPECT_TRUE(fault(program).ends_with("the slices of frozen unit kept end at 19 of 20"))
      << fault(program);
  program = replicated(Shard::Optimizer);
  for (size_t rank : {0, 1}) {
    held(program, rank, ValueKind::Master, 1).slices =
        test::slices_of(20, static_cast<int32_t>(rank), 2);
  }
  EXPECT_TRUE(fault(program).ends_with("m1 has slices; it is there whole")) << fault(program);
  program = replicated(Shard::None);
  held(program, 1, ValueKind::Master, 1).slices = {{0, 20}};
  EXPECT_TRUE(fault(program).ends_with("frozen unit kept has slices, and nothing is sharded"))
      << fault(program);
}

}  // namespace penstock::program
