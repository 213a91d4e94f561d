// What verify() demands of weights, gradients and state on one rank: each rule broken once.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "penstock/program/verify.h"

#include "program/unit_program.h"

namespace penstock::program {

namespace {

using namespace penstock::test;  // NOLINT: the names of the program's lines

class VerifyUnits : public testing::Test {
 protected:
  Instruction& line(int index) { return rank().instructions[static_cast<size_t>(index)]; }
  RankProgram& rank() { return program_.ranks[0]; }
  ValueId named(const std::string& name) {
    const std::vector<std::string> names = value_names(rank());
    return static_cast<ValueId>(std::find(names.begin(), names.end(), name) - names.begin());
  }
  Value& value(const std::string& name) { return rank().values[static_cast<size_t>(named(name))]; }
  ValueId add_value(const Value& one) {
    rank().values.push_back(one);
    return static_cast<ValueId>(rank().values.size() - 1);
  }
  void insert(int before, Instruction instruction) {
    rank().instructions.insert(rank().instructions.begin() + before, std::move(instruction));
  }
  void erase(int index) { rank().instructions.erase(rank().instructions.begin() + index); }
  void move(int from, int to) {
    const Instruction moved = line(from);
    erase(from);
    insert(to, moved);
  }
  void restore() { program_ = unit_program(); }

  // The text after the instruction at fault, which must be number `index` (-1: none in particular).
  std::string refusal(int index) {
    const Verdict verdict = verify(program_);
    if (verdict.is_sound()) {
      ADD_FAILURE() << "accepted";
      return "";
    }
    EXPECT_EQ(verdict.violation->instruction, index) << verdict.violation->text;
    const std::string where =
        index < 0 ? "the program: "
                  : cat("instruction ", index, " (", describe(program_, line(index)), "): ");
    EXPECT_EQ(verdict.violation->text.substr(0, where.size()), where);
    return verdict.violation->text.substr(std::min(where.size(), verdict.violation->text.size()));
  }

  Program program_ = unit_program();
};

}  // namespace

TEST_F(VerifyUnits, AcceptsTheProgramAndTellsItsPeaks) {
  const Verdict verdict = verify(program_);
  ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
  // Highest in the first loss: what is held and given, what both forwards left, and its gradient.
  EXPECT_EQ(verdict.peaks[0].tier_bytes,
            (std::array<int64_t, kNumTiers>{66 + 10 + 2 * 10 + 4, 16, 0}));
  EXPECT_EQ(verdict.peaks[0].instruction, kLoss0);
  EXPECT_EQ(rank().persistent_bytes(), 66);
  EXPECT_EQ(rank().persistent_bytes(Tier::Host), 16);
}

TEST_F(VerifyUnits, SaysWhatIsHeldByName) {
  EXPECT_EQ(held_by_name(rank()),
            (std::vector<Held>{{"weights", 16},
                               {"compute copy", 2},
                               {"gradients", 16},
                               {"optimizer state", 16},
                               {"gradients of shared weights", 8},
                               {"history", 3},
                               {"workspace", 5}}));
  EXPECT_EQ(held_by_name(rank(), Tier::Host), (std::vector<Held>{{"optimizer state", 16}}));
  EXPECT_EQ(held_by_name(rank(), Tier::Disk), std::vector<Held>{});
}

TEST_F(VerifyUnits, RefusesUnitsThatAreNotHeld) {
  for (const std::string name : {"m1", "a1", "o1"}) {
    restore();
    std::erase(rank().persistent, named(name));
    EXPECT_EQ(refusal(-1), "the rank works at b and does not hold its weights, gradient and state");
  }
  restore();
  const Value again = value("m1");
  rank().hold(again);
  EXPECT_EQ(refusal(-1), "m1#2 is held beside m1; it is there once");
  restore();
  const Value share = value("b2.2");
  rank().hold(share);
  EXPECT_EQ(refusal(-1), "b2.2#2 is held beside b2.2; it is there once");
}

TEST_F(VerifyUnits, RefusesSharesOfWhatIsNotShared) {
  program_.units[2].is_shared = false;
  EXPECT_EQ(refusal(-1), "b2.2 is a share of what no layers share");
  restore();
  value("b2.2").layer = 1;
  EXPECT_EQ(refusal(-1), "b2.1 is a share of what no layers share");
}

TEST_F(VerifyUnits, WorkReadsTheWeightsThatItNeeds) {
  const auto without = [&](int index, const std::string& name) {
    restore();
    std::erase(line(index).reads, named(name));
    return refusal(index);
  };
  EXPECT_EQ(without(kForwardA0, "c0"), "does not read c0");
  EXPECT_EQ(without(kForwardA0, "m0"), "does not read m0");
  EXPECT_EQ(without(kForwardA0, "m2"), "does not read m2");
  EXPECT_EQ(without(kForwardB0, "m1"), "does not read m1");
  EXPECT_EQ(without(kLoss1, "m2"), "does not read m2");
  EXPECT_EQ(without(kBackwardA1, "c0"), "does not read c0");
  restore();
  line(kBackwardB0).reads.push_back(named("m1"));
  EXPECT_EQ(refusal(kBackwardB0), "reads 4 values, not 3");  // its backward needs none
}

TEST_F(VerifyUnits, TheFirstWorkSetsAGradientAndLaterWorkUpdatesIt) {
  const auto swapped = [&](int index) {
    restore();
    std::swap(line(index).sets, line(index).updates);
    return refusal(index);
  };
  EXPECT_EQ(swapped(kBackwardB0), "updates what an earlier update has left in a1");
  EXPECT_EQ(swapped(kLoss0), "updates what an earlier update has left in b2.2");
  EXPECT_EQ(swapped(kBackwardA0), "updates what an earlier update has left in a0");
  EXPECT_EQ(swapped(kBackwardB1), "sets, and so loses, what is in a1");
  EXPECT_EQ(swapped(kLoss1), "sets, and so loses, what is in b2.2");
  EXPECT_EQ(swapped(kBackwardA1), "sets, and so loses, what is in a0");
  EXPECT_EQ(swapped(kUnitStep), "sets, and so loses, what is in m0");
  const auto without = [&](int index, std::vector<ValueId> Instruction::*list, const char* name) {
    restore();
    std::erase(line(index).*list, named(name));
    return refusal(index);
  };
  EXPECT_EQ(without(kBackwardA0, &Instruction::sets, "a2"), "does not set a2");
  EXPECT_EQ(without(kBackwardA1, &Instruction::updates, "a2"), "does not update a2");
  restore();
  line(kBackwardA0).updates.push_back(named("a1"));
  EXPECT_EQ(refusal(kBackwardA0), "changes 3 values in place, not 2");
}

// Where layers share a unit and no share is held, all of the sum is one part.
TEST_F(VerifyUnits, ASumThatLayersShareIsOnePart) {
  std::erase(rank().persistent, named("b2.2"));
  rank().values[static_cast<size_t>(named("b2.2"))] = {.kind = ValueKind::Fixed, .label = 2};
  rank().labels.push_back("unused");
  rank().persistent.push_back(named("k2"));
  erase(kAdd);
  line(kLoss0).sets = {named("a2")};
  line(kLoss1).updates = {named("a2")};
  EXPECT_EQ(refusal(kBackwardA0), "sets, and so loses, what is in a2");
  line(kBackwardA0).sets = {named("a0")};
  line(kBackwardA0).updates = {named("a2")};
  const Verdict verdict = verify(program_);
  EXPECT_TRUE(verdict.is_sound()) << verdict.violation->text;
  // Parameters that layers have each for themselves in one unit are parts of their own.
  program_.units[2].is_shared = false;
  EXPECT_EQ(refusal(kBackwardA0), "updates what an earlier update has left in a2");
}

TEST_F(VerifyUnits, SharesAreAddedOnceWhenTheyAreComplete) {
  move(kAdd, kLoss1);
  EXPECT_EQ(refusal(kLoss1), "b2.2 lacks the part of micro-batch 1 at the loss");
  restore();
  insert(kAdd, line(kAdd));
  EXPECT_EQ(refusal(kAdd + 1), "adds b2.2 a second time");
  restore();
  erase(kAdd);
  EXPECT_EQ(refusal(kAdd), "a2 lacks the part of micro-batch 0 at the loss");
  restore();
  // The first part of the sum itself comes later.
  std::swap(line(kBackwardA0).sets, line(kBackwardA0).updates);
  line(kBackwardA0).updates = {};
  program_.units[2].layers = {2};
  std::erase(line(kForwardA0).reads, named("m2"));
  std::erase(line(kForwardA1).reads, named("m2"));
  std::erase(line(kBackwardA0).reads, named("m2"));
  std::erase(line(kBackwardA1).reads, named("m2"));
  line(kBackwardA0).sets = line(kBackwardA1).updates = {named("a0")};
  EXPECT_EQ(refusal(kAdd), "adds to a2 before it has parts, or after it was added up");
}

TEST_F(VerifyUnits, RefusesWorkAfterItsShareWasAdded) {
  const ValueId again = add_value(layer_value(ValueKind::Gradient, 2, 1, 0));
  Instruction loss = line(kLoss1);
  loss.makes = {again};
  loss.frees.push_back(again);
  line(kLoss1).frees.clear();
  insert(kSquares, loss);
  EXPECT_EQ(refusal(kSquares), "adds to b2.2 after it was added up");
}

TEST_F(VerifyUnits, RefusesSquaresBeforeAWeightGradient) {
  const ValueId work = add_value(layer_value(ValueKind::WeightWork, 1, 1, 0));
  line(kBackwardB1).op = Op::BackwardInput;
  line(kBackwardB1).makes.push_back(work);
  const Instruction weight{.op = Op::BackwardWeight,
                           .layer = 1,
                           .micro_batch = 1,
                           .reads = {work},
                           .updates = {named("a1")},
                           .frees = {work}};
  insert(kSquares, weight);
  const Verdict verdict = verify(program_);
  EXPECT_TRUE(verdict.is_sound()) << verdict.violation->text;
  std::swap(line(kSquares), line(kSquares + 1));
  EXPECT_EQ(refusal(kSquares), "the weight gradient of b, micro-batch 1, is missing");
  std::swap(line(kSquares), line(kSquares + 1));
  line(kSquares).updates.clear();
  EXPECT_EQ(refusal(kSquares), "does not update a1");
  // A second one.
  line(kSquares) = weight;
  line(kSquares).frees.clear();
  insert(kSquares, line(kSquares));
  EXPECT_EQ(refusal(kSquares + 1), "a second weight gradient of this layer and micro-batch");
}

TEST_F(VerifyUnits, AddsNameAShareOfTheRank) {
  line(kAdd).layer = 0;
  EXPECT_EQ(refusal(kAdd), "the rank has no share of layer 0");
  restore();
  line(kAdd).units = {0};
  EXPECT_EQ(refusal(kAdd), "the rank has no share of layer 2");
  restore();
  line(kAdd).units = {};
  EXPECT_EQ(refusal(kAdd), "is of 0 units; it takes one");
  line(kAdd).units = {1, 2};
  EXPECT_EQ(refusal(kAdd), "is of 2 units; it takes one");
  line(kAdd).units = {3};
  EXPECT_EQ(refusal(kAdd), "there is no unit 3");
  line(kAdd).units = {-1};
  EXPECT_EQ(refusal(kAdd), "there is no unit -1");
  restore();
  line(kAdd).reads = {named("a1")};
  EXPECT_EQ(refusal(kAdd), "does not read b2.2");
  restore();
  line(kAdd).updates = {named("a1")};
  EXPECT_EQ(refusal(kAdd), "does not update a2");
  restore();
  line(kAdd).reads.push_back(named("a1"));
  EXPECT_EQ(refusal(kAdd), "reads 2 values, not 1");
}

TEST_F(VerifyUnits, SquaresReadEveryGradientWhenItIsComplete) {
  std::erase(line(kSquares).reads, named("a1"));
  EXPECT_EQ(refusal(kSquares), "does not read a1");
  restore();
  line(kSquares).reads.push_back(named("m1"));
  EXPECT_EQ(refusal(kSquares), "reads 4 values, not 3");
  restore();
  move(kSquares, kBackwardA1);
  EXPECT_EQ(refusal(kBackwardA1), "the backward of a, micro-batch 1, is missing");
  restore();
  move(kSquares, kAdd);
  EXPECT_EQ(refusal(kAdd), "a2 lacks the part of micro-batch 0 at the loss");
  restore();
  std::swap(line(kSquares).makes, line(kDecide).makes);
  std::swap(rank().values[static_cast<size_t>(named("q.0"))].kind,
            rank().values[static_cast<size_t>(named("n.0"))].kind);
  rank().values[static_cast<size_t>(line(kSquares).makes[0])].kind = ValueKind::AllSquares;
  EXPECT_EQ(refusal(kSquares), "does not make q.0");
}

TEST_F(VerifyUnits, DecisionsAreMadeOfTheSquares) {
  line(kDecide).reads = {named("a0")};
  EXPECT_EQ(refusal(kDecide), "reads a0; it takes the rank's squares of this update");
  restore();
  line(kDecide).reads = {};
  EXPECT_EQ(refusal(kDecide), "reads 0 values, not 1");
  restore();
  line(kDecide).makes = {add_value({.kind = ValueKind::AllSquares, .version = 0})};
  EXPECT_EQ(refusal(kDecide), "does not make n.0");
}

TEST_F(VerifyUnits, StepsReadTheDecisionAndTheGradientsAndMoveAll) {
  const auto without = [&](std::vector<ValueId> Instruction::*list, const std::string& name) {
    restore();
    std::erase(line(kUnitStep).*list, named(name));
    return refusal(kUnitStep);
  };
  EXPECT_EQ(without(&Instruction::reads, "n.0"), "does not read n.0");
  EXPECT_EQ(without(&Instruction::reads, "a1"), "does not read a1");
  EXPECT_EQ(without(&Instruction::updates, "m1"), "does not update m1");
  EXPECT_EQ(without(&Instruction::updates, "c0"), "does not update c0");
  EXPECT_EQ(without(&Instruction::updates, "o2"), "does not update o2");
  EXPECT_EQ(without(&Instruction::updates, "e0"), "does not update e0");
  restore();
  line(kUnitStep).reads.push_back(named("m0"));
  EXPECT_EQ(refusal(kUnitStep), "reads 5 values, not 4");
  restore();
  line(kUnitStep).updates.push_back(named("b2.2"));
  EXPECT_EQ(refusal(kUnitStep), "changes 9 values in place, not 8");
  restore();
  line(kUnitStep).units = {0, 1};
  EXPECT_EQ(refusal(kUnitStep), "reads 4 values, not 3");
}

TEST_F(VerifyUnits, RefusesAStepThatLeavesUnitsBehind) {
  line(kUnitStep).units = {0, 1};
  std::erase(line(kUnitStep).reads, named("a2"));
  std::erase(line(kUnitStep).updates, named("m2"));
  std::erase(line(kUnitStep).updates, named("o2"));
  EXPECT_EQ(refusal(-1), "there is no step");  // of all that the rank has
}

TEST_F(VerifyUnits, AStepIsOfUnitsThatTheRankWorksAt) {
  program_.units.push_back({.name = "other", .layers = {2}});
  EXPECT_EQ(refusal(-1),
            "the rank works at other and does not hold its weights, gradient and state");
}

// A stage whose layers have no parameters steps, too: it moves nothing.
TEST_F(VerifyUnits, ARankWithoutUnitsStepsWithoutThem) {
  const std::string text =
      "penstock-program 2\nmicro-batches 1\nmesh pipeline=2\ngroup 0 \"all\" axes=data,pipeline\n"
      "layer 0 \"a\" modes=all\nlayer 1 \"b\" modes=all\nunit 0 \"a\" layers=0\n"
      "rank 0 limit=none\nhold m0:1 a0:1 o0:1\ngiven x0.0:1\n"
      "forward layer=0 mb=0 keep=all reads=x0.0,m0 makes=x1.0:1,s0.0:1 frees=- on=compute "
      "seconds=1 working=2\n"
      "send layer=1 mb=0 reads=x1.0 on=link:1 seconds=1 working=0 sends=1\n"
      "receive layer=1 mb=0 makes=d1.0:1 frees=x1.0 on=inlet:1 working=1\n"
      "backward layer=0 mb=0 reads=x0.0,s0.0,d1.0,m0 makes=- sets=a0 frees=x0.0,s0.0,d1.0 "
      "on=compute seconds=1 working=0\n"
      "squares reads=a0 makes=q.0:0 on=compute seconds=0 working=0\n"
      "gather group=0 reads=q.0 makes=z.0:0 frees=q.0 on=compute seconds=0 working=0\n"
      "decide reads=z.0 makes=n.0:0 frees=z.0 on=compute seconds=0 working=0\n"
      "step units=0 reads=a0,n.0 updates=m0,o0 frees=n.0 on=compute seconds=1 working=0\n"
      "rank 1 limit=none\ngiven t.0:1\n"
      "receive layer=1 mb=0 makes=x1.0:1 on=inlet:0 working=1\n"
      "forward layer=1 mb=0 keep=all reads=x1.0 makes=x2.0:1,s1.0:1 frees=- on=compute seconds=1 "
      "working=2\n"
      "loss mb=0 reads=x2.0,t.0 makes=d2.0:1 frees=x2.0,t.0 on=compute seconds=1 working=1\n"
      "backward layer=1 mb=0 reads=x1.0,s1.0,d2.0 makes=d1.0:1 frees=x1.0,s1.0,d2.0 on=compute "
      "seconds=1 working=1\n"
      "send layer=1 mb=0 reads=d1.0 on=link:0 seconds=1 working=0 sends=1\n"
      "squares makes=q.0:0 frees=d1.0 on=compute seconds=0 working=0\n"
      "gather group=0 reads=q.0 makes=z.0:0 frees=q.0 on=compute seconds=0 working=0\n"
      "decide reads=z.0 makes=n.0:0 frees=z.0 on=compute seconds=0 working=0\n"
      "step reads=n.0 frees=n.0 on=compute seconds=1 working=0\n";
  program_ = parse_program(text, "p");
  const Verdict verdict = verify(program_);
  EXPECT_TRUE(verdict.is_sound()) << verdict.violation->text;
  program_.ranks[1].instructions.back().units = {0};
  EXPECT_EQ(verify(program_).violation->text,
            "rank 1, instruction 8 (step of a): moves no units, or names them out of order");
}

TEST_F(VerifyUnits, OneRankGathersAndReducesNothing) {
  program_.groups = {comm::along(comm::Axis::Data), comm::all(), comm::along(comm::Axis::Pipeline)};
  const auto inserted = [&](const Instruction& instruction) {
    const Program sound = program_;
    insert(kSquares, instruction);
    const std::string text = refusal(kSquares);
    program_ = sound;
    return text;
  };
  EXPECT_EQ(inserted({.op = Op::Gather, .units = {0}, .group = 0}),
            "every replica has and moves all weights; there is nothing to gather");
  EXPECT_EQ(inserted({.op = Op::Reduce, .units = {0}, .group = 0}), "there are no replicas");
  EXPECT_EQ(inserted({.op = Op::Reduce, .units = {0}, .group = 2}), "no other stage has a");
  for (const int32_t group : {-1, 3}) {
    const std::string text = cat("there is no group ", group);
    EXPECT_EQ(inserted({.op = Op::Gather, .units = {0}, .group = group}), text);
    EXPECT_EQ(inserted({.op = Op::Reduce, .units = {0}, .group = group}), text);
    EXPECT_EQ(inserted({.op = Op::Gather, .group = group}), text);
  }
  EXPECT_EQ(inserted({.op = Op::Reduce, .group = 0}), "is of 0 units; it takes one");
}

TEST_F(VerifyUnits, AGatherWithoutUnitsIsOfSquares) {
  program_.groups = {comm::all()};
  const ValueId all = add_value({.kind = ValueKind::AllSquares, .version = 0});
  Instruction gather{
      .op = Op::Gather, .group = 0, .reads = {named("q.0")}, .makes = {all}, .frees = {all}};
  insert(kDecide, gather);
  EXPECT_TRUE(verify(program_).is_sound());
  const std::string text =
      "is of no unit; then it takes sums or squares and makes those of all ranks";
  line(kDecide).reads = {named("a0")};
  EXPECT_EQ(refusal(kDecide), text);
  line(kDecide) = gather;
  rank().values[static_cast<size_t>(all)].kind = ValueKind::Decision;
  EXPECT_EQ(refusal(kDecide), text);
  rank().values[static_cast<size_t>(all)].kind = ValueKind::AllSquares;
  line(kDecide).micro_batch = 0;
  EXPECT_EQ(refusal(kDecide), "it is of all micro-batches, and names one");
  line(kDecide).micro_batch = -1;
  line(kDecide).reads = {};
  EXPECT_EQ(refusal(kDecide), "reads 0 values, not 1");
}

}  // namespace penstock::program
