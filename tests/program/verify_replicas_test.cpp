// What verify() demands of gathers and reduces: each rule broken once.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "penstock/plan/shard.h"
#include "penstock/program/verify.h"

#include "program/replicated_program.h"
#include "program/small_program.h"

namespace penstock::program {

namespace {

using test::fault_of;
using test::place_of;
using test::replicated_program;
using test::value_named;

using Break = std::function<void(Program&, RankProgram&)>;  // of rank 0

// What verify() says of a program of which one thing was changed.
std::string fault_after(Program program, const Break& change) {
  EXPECT_EQ(fault_of(program), "");
  change(program, program.ranks[0]);
  return fault_of(program);
}

void erase(RankProgram& rank, size_t at) {
  rank.instructions.erase(rank.instructions.begin() + static_cast<int64_t>(at));
}
void insert(RankProgram& rank, size_t at, const Instruction& instruction) {
  rank.instructions.insert(rank.instructions.begin() + static_cast<int64_t>(at), instruction);
}
void move(RankProgram& rank, size_t from, size_t to) {
  const Instruction moved = rank.instructions[from];
  erase(rank, from);
  insert(rank, to, moved);
}
Instruction& at(RankProgram& rank, Op op, int n = 0) {
  return rank.instructions[place_of(rank, op, n)];
}
ValueId add_value(RankProgram& rank, ValueKind kind, int32_t unit, int32_t micro_batch = 0) {
  rank.values.push_back({kind, unit, micro_batch, 0});
  return static_cast<ValueId>(rank.values.size() - 1);
}
void remove(std::vector<ValueId>& ids, ValueId id) {
  std::erase(ids, id);
}

// Whoever frees it now does so no more.
void free_after_step(RankProgram& rank, ValueId id) {
  for (Instruction& one : rank.instructions) {
    remove(one.frees, id);
  }
  std::erase_if(rank.instructions,
                [](const Instruction& one) { return one.op == Op::Drop && one.frees.empty(); });
  insert(rank, place_of(rank, Op::Step) + 1, {.op = Op::Drop, .frees = {id}});
}

constexpr Resource kLine{ResourceKind::Replicas};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

#define EXPECT_HAS(text, part) EXPECT_TRUE(has(text, part)) << (text)

TEST(VerifyReplicas, AcceptsEveryShard) {
  for (const Shard shard : {Shard::None, Shard::Optimizer, Shard::Gradients, Shard::Parameters}) {
    EXPECT_EQ(fault_of(replicated_program(shard)), "");
    EXPECT_EQ(fault_of(replicated_program(shard, 2)), "");
    EXPECT_EQ(fault_of(replicated_program(shard, 2, schedule::Kind::ZeroBubbleH1)), "");
  }
}

TEST(VerifyReplicas, RefusesWrongReplicasAndUnits) {
  const Program program = replicated_program(Shard::None);
  EXPECT_EQ(fault_after(program, [](Program& all, RankProgram&) { all.replicas = 3; }),
            "the program: 2 ranks in 3 replicas");
  EXPECT_EQ(fault_after(program, [](Program& all, RankProgram&) { all.replicas = 0; }),
            "the program: 2 ranks in 0 replicas");
  EXPECT_EQ(fault_after(program, [](Program& all, RankProgram&) { all.updates = 2; }),
            "the program: 2 updates; replicas have one");
  for (const std::vector<int32_t>& layers :
       std::vector<std::vector<int32_t>>{{}, {1, 0}, {1, 1}, {-1}, {3}}) {
    EXPECT_EQ(
        fault_after(program, [&](Program& all, RankProgram&) { all.units[1].layers = layers; }),
        "the program: the layers of unit b are none, out of order or out of range");
  }
  for (const std::vector<int32_t>& layers : std::vector<std::vector<int32_t>>{{1}, {0, 0}, {2}}) {
    EXPECT_EQ(fault_after(program,
                          [&](Program& all, RankProgram&) { all.units[2].forward_only = layers; }),
              "the program: unit table names layers that need its weights forward alone, and they "
              "are out of order, none of its own, or the loss");
  }
  Program alone = test::small_program();
  alone.shard = Shard::Optimizer;
  EXPECT_EQ(fault_of(alone),
            "the program: one replica shares nothing; it has no units and no shard");
  alone.shard = Shard::None;
  alone.units = {{"a", {0}}};
  EXPECT_EQ(fault_of(alone),
            "the program: one replica shares nothing; it has no units and no shard");
  alone.units = {};
  insert(alone.ranks[0], 1, {.op = Op::Gather, .layer = 0, .resource = kLine});
  EXPECT_EQ(fault_of(alone), "instruction 1 (gather): there are no replicas");
}

TEST(VerifyReplicas, RefusesOtherPlaces) {
  const Program program = replicated_program(Shard::None);
  const std::string line = "only gathers and reduces are on the line to the replicas";
  EXPECT_HAS(
      fault_after(program, [](Program&, RankProgram& rank) { at(rank, Op::Reduce).resource = {}; }),
      line);
  EXPECT_HAS(
      fault_after(program,
                  [](Program&, RankProgram& rank) { at(rank, Op::Forward).resource = kLine; }),
      line);
  EXPECT_EQ(
      fault_after(program, [](Program&, RankProgram& rank) { at(rank, Op::Reduce).layer = 3; }),
      "rank 0, instruction 10 (reduce): there is no unit 3");
  EXPECT_HAS(fault_after(replicated_program(Shard::None, 2),
                         [](Program&, RankProgram& rank) { at(rank, Op::Reduce).layer = 1; }),
             "(reduce of b): the rank runs no layer of it");
  EXPECT_HAS(fault_after(replicated_program(Shard::None, 2),
                         [](Program&, RankProgram& rank) { ++at(rank, Op::Send).resource.index; }),
             "rank 3 is of another replica");
  EXPECT_HAS(fault_after(program,
                         [](Program&, RankProgram& rank) {
                           const ValueId copy = add_value(rank, ValueKind::Weights, 2);
                           insert(rank, 1, {.op = Op::Stash, .makes = {copy}, .frees = {copy}});
                         }),
             "replicas keep no copies of their weights");
  EXPECT_HAS(fault_after(program,
                         [](Program&, RankProgram& rank) {
                           at(rank, Op::Reduce).frees.push_back(value_named(rank, "r1.0"));
                         }),
             "frees r1.0; a gather or reduce frees nothing");
  EXPECT_EQ(fault_after(program,
                        [](Program&, RankProgram& rank) {
                          rank.values[static_cast<size_t>(value_named(rank, "r1.0"))].layer = 3;
                        }),
            "rank 0, the program: r3.0 belongs to no unit or micro-batch of the program");
}

TEST(VerifyReplicas, WantsEveryResidentGradientReducedOnce) {
  for (const Shard shard : {Shard::None, Shard::Optimizer}) {
    const Program program = replicated_program(shard);
    const auto without = [](RankProgram& rank, const std::string& name) {
      const ValueId id = value_named(rank, name);
      remove(at(rank, Op::Step).reads, id);
      remove(at(rank, Op::Step).frees, id);
      return id;
    };
    EXPECT_HAS(fault_after(program,
                           [&](Program&, RankProgram& rank) {
                             without(rank, "r1.0");
                             erase(rank, place_of(rank, Op::Reduce));
                           }),
               "(step): the gradients of b are not reduced");
    EXPECT_HAS(
        fault_after(program,
                    [&](Program&, RankProgram& rank) {
                      const ValueId again = add_value(rank, ValueKind::Reduced, 1);
                      insert(rank,
                             place_of(rank, Op::Step),
                             {.op = Op::Reduce, .layer = 1, .makes = {again}, .resource = kLine});
                    }),
        "(reduce of b): is reduced a second time");
    EXPECT_HAS(
        fault_after(program,
                    [](Program&, RankProgram& rank) {
                      move(rank, place_of(rank, Op::Reduce), place_of(rank, Op::Backward, 2));
                    }),
        "(backward of b, micro-batch 1): adds to the gradients of b, which were reduced before");
    EXPECT_HAS(fault_after(program,
                           [](Program&, RankProgram& rank) {
                             move(rank, place_of(rank, Op::Reduce), place_of(rank, Op::Step));
                             const Instruction last = at(rank, Op::Reduce, 2);
                             erase(rank, place_of(rank, Op::Reduce, 2));
                             insert(rank, place_of(rank, Op::Step) + 1, last);
                           }),
               "which nothing has made yet");
    EXPECT_HAS(
        fault_after(program,
                    [&](Program&, RankProgram& rank) {
                      const ValueId late = add_value(rank, ValueKind::Reduced, 1);
                      insert(rank,
                             place_of(rank, Op::Step) + 1,
                             {.op = Op::Reduce, .layer = 1, .makes = {late}, .resource = kLine});
                    }),
        "(reduce of b): comes after the step");
    EXPECT_HAS(
        fault_after(program,
                    [](Program&, RankProgram& rank) { at(rank, Op::Reduce).micro_batch = 0; }),
        "it is of all micro-batches, and names one");
    EXPECT_HAS(fault_after(program,
                           [](Program&, RankProgram& rank) {
                             rank.values[static_cast<size_t>(value_named(rank, "r1.0"))].layer = 0;
                           }),
               "(reduce of b): does not make r1.0");
    EXPECT_HAS(fault_after(program, [&](Program&, RankProgram& rank) { without(rank, "r1.0"); }),
               "(step): does not read and free r1.0; it needs every reduce done");
    EXPECT_HAS(
        fault_after(program,
                    [](Program&, RankProgram& rank) {
                      const ValueId id = value_named(rank, "r1.0");
                      remove(at(rank, Op::Step).frees, id);
                      insert(rank, place_of(rank, Op::Step) + 1, {.op = Op::Drop, .frees = {id}});
                    }),
        "(step): does not read and free r1.0");
    EXPECT_HAS(fault_after(program,
                           [&](Program&, RankProgram& rank) {
                             const ValueId id = without(rank, "r1.0");
                             insert(
                                 rank, place_of(rank, Op::Step), {.op = Op::Drop, .frees = {id}});
                           }),
               "(drop): frees r1.0; the step does that");
  }
}

TEST(VerifyReplicas, WantsNoReducesWhereTheStepReduces) {
  for (const Shard shard : {Shard::None, Shard::Optimizer}) {
    for (const int32_t stages : {1, 2}) {
      const Program whole = replicated_program(shard, stages);
      const Program program = plan::without_reduces(whole);
      EXPECT_HAS(fault_after(program,
                             [](Program&, RankProgram& rank) {
                               const ValueId done = add_value(rank, ValueKind::Reduced, 0);
                               insert(rank,
                                      place_of(rank, Op::Step),
                                      {.op = Op::Reduce,
                                       .layer = 0,
                                       .micro_batch = -1,
                                       .makes = {done},
                                       .resource = kLine});
                               at(rank, Op::Step).reads = at(rank, Op::Step).frees = {done};
                             }),
                 "(reduce of a): the step reduces the gradients itself");
      EXPECT_HAS(fault_after(program, [](Program& all, RankProgram&) { all.step_reduces = false; }),
                 "the gradients of a are not reduced");
      EXPECT_HAS(fault_after(whole, [](Program& all, RankProgram&) { all.step_reduces = true; }),
                 "the step reduces the gradients itself");
    }
  }
}

TEST(VerifyReplicas, RefusesAStepThatReducesWhatNobodyHasWhole) {
  const std::string refusal =
      "the program: the step reduces gradients that no rank has whole, or that have no replicas";
  for (const Shard shard : {Shard::Gradients, Shard::Parameters}) {
    EXPECT_EQ(fault_after(replicated_program(shard),
                          [](Program& all, RankProgram&) { all.step_reduces = true; }),
              refusal);
  }
  Program alone = test::small_program();
  alone.step_reduces = true;
  EXPECT_EQ(fault_of(alone), refusal);
}

TEST(VerifyReplicas, WantsMovedPiecesGatheredAfterTheStep) {
  EXPECT_HAS(
      fault_after(replicated_program(Shard::None),
                  [](Program&, RankProgram& rank) {
                    rank.instructions.push_back({.op = Op::Gather, .layer = 0, .resource = kLine});
                  }),
      "every replica has and moves all weights; there is nothing to gather");
  for (const Shard shard : {Shard::Optimizer, Shard::Gradients}) {
    const Program program = replicated_program(shard);
    EXPECT_EQ(
        fault_after(program,
                    [](Program&, RankProgram& rank) { erase(rank, place_of(rank, Op::Gather)); }),
        "rank 0, the program: the moved pieces of a are not gathered");
    EXPECT_HAS(fault_after(program,
                           [](Program&, RankProgram& rank) {
                             rank.instructions.push_back(at(rank, Op::Gather));
                           }),
               "(gather of a): is gathered a second time after the step");
    EXPECT_HAS(
        fault_after(program,
                    [](Program&, RankProgram& rank) { move(rank, place_of(rank, Op::Gather), 1); }),
        "(gather of a): comes before the step; until then every replica has all weights");
    EXPECT_HAS(
        fault_after(program,
                    [](Program&, RankProgram& rank) { at(rank, Op::Gather).micro_batch = 0; }),
        "it is of all micro-batches, and names one");
    EXPECT_HAS(fault_after(program,
                           [](Program&, RankProgram& rank) {
                             const ValueId weights = add_value(rank, ValueKind::Gathered, 0);
                             at(rank, Op::Gather).makes = {weights};
                           }),
               "makes 1 values, not 0");
  }
}

TEST(VerifyReplicas, WantsEveryBucketReducedWhenItIsComplete) {
  for (const Shard shard : {Shard::Gradients, Shard::Parameters}) {
    const Program program = replicated_program(shard);
    EXPECT_HAS(fault_after(program,
                           [](Program&, RankProgram& rank) {
                             remove(at(rank, Op::Backward).makes, value_named(rank, "g1.0"));
                           }),
               "(backward of b, micro-batch 0): does not make g1.0");
    EXPECT_HAS(fault_after(program,
                           [](Program&, RankProgram& rank) {
                             at(rank, Op::Reduce, 1).reads = {value_named(rank, "g2.0")};
                           }),
               "(reduce of b, micro-batch 0): does not read g1.0");
    EXPECT_HAS(fault_after(program,
                           [](Program&, RankProgram& rank) {
                             at(rank, Op::Reduce, 3).reads = {value_named(rank, "g2.0#2")};
                             const ValueId again = add_value(rank, ValueKind::Reduced, 2);
                             Instruction twice = at(rank, Op::Reduce, 3);
                             twice.makes = {again};
                             insert(rank, place_of(rank, Op::Reduce, 3), twice);
                           }),
               "reduces g2.0#2 a second time");
    EXPECT_HAS(
        fault_after(program,
                    [](Program&, RankProgram& rank) { erase(rank, place_of(rank, Op::Reduce)); }),
        "(drop): frees g2.0, which was not reduced");
    EXPECT_HAS(fault_after(program,
                           [](Program&, RankProgram& rank) {
                             erase(rank, place_of(rank, Op::Reduce));
                             const ValueId done = value_named(rank, "r2.0");
                             remove(at(rank, Op::Step).reads, done);
                             remove(at(rank, Op::Step).frees, done);
                             free_after_step(rank, value_named(rank, "g2.0"));
                           }),
               "(step): g2.0 is not reduced");
    EXPECT_HAS(fault_after(program,
                           [](Program&, RankProgram& rank) { at(rank, Op::Reduce).makes.clear(); }),
               "makes 0 values, not 1");
  }
}

TEST(VerifyReplicas, WantsTheWeightHalfBeforeTheReduce) {
  const Program program = replicated_program(Shard::Gradients, 2, schedule::Kind::ZeroBubbleH1);
  const Break too_early = [](Program&, RankProgram& rank) {
    const size_t half = place_of(rank, Op::BackwardWeight);
    move(rank, place_of(rank, Op::Reduce), half);
  };
  EXPECT_HAS(fault_after(program, too_early), "comes before the weight half that adds to g0.0");
  EXPECT_HAS(fault_after(program,
                         [](Program&, RankProgram& rank) {
                           remove(at(rank, Op::BackwardWeight).reads, value_named(rank, "g0.0"));
                         }),
             "(backward-weight of a, micro-batch 0): does not read g0.0");
  // The table's bucket of the loss, where that of the layer belongs.
  EXPECT_HAS(fault_after(replicated_program(Shard::Gradients, 1, schedule::Kind::ZeroBubbleH1),
                         [](Program&, RankProgram& rank) {
                           Instruction& half = at(rank, Op::BackwardWeight, 1);
                           ASSERT_EQ(half.layer, 0);
                           std::replace(half.reads.begin(),
                                        half.reads.end(),
                                        value_named(rank, "g2.0#2"),
                                        value_named(rank, "g2.0"));
                           free_after_step(rank, value_named(rank, "g2.0"));
                         }),
             "reads g2.0, which its input half has not made");
}

TEST(VerifyReplicas, WantsGatheredWeightsWhereTheyAreUsed) {
  const Program program = replicated_program(Shard::Parameters);
  for (const Op op : {Op::Forward, Op::Loss, Op::Backward}) {
    EXPECT_HAS(fault_after(program,
                           [&](Program&, RankProgram& rank) {
                             Instruction& use = at(rank, op);
                             for (size_t i = 0; i < use.reads.size(); ++i) {
                               const Value& one = rank.values[static_cast<size_t>(use.reads[i])];
                               if (one.kind == ValueKind::Gathered) {
                                 use.reads.erase(use.reads.begin() + static_cast<int64_t>(i));
                                 return;
                               }
                             }
                           }),
               "reads no gathered weights of ");
  }
  EXPECT_HAS(fault_after(program,
                         [](Program&, RankProgram& rank) {
                           Instruction late = at(rank, Op::Gather);
                           late.makes = {add_value(rank, ValueKind::Gathered, 0)};
                           rank.instructions.push_back(late);
                         }),
             "(gather of a, micro-batch 0): comes after the step");
  EXPECT_HAS(fault_after(program,
                         [](Program&, RankProgram& rank) { at(rank, Op::Gather).micro_batch = 1; }),
             "(gather of a, micro-batch 1): does not make p0.1");
  EXPECT_HAS(
      fault_after(program, [](Program&, RankProgram& rank) { at(rank, Op::Gather).makes.clear(); }),
      "makes 0 values, not 1");
  // Elsewhere weights are whole, and nothing reads gathered ones.
  EXPECT_HAS(fault_after(replicated_program(Shard::Gradients),
                         [](Program&, RankProgram& rank) {
                           const ValueId weights = add_value(rank, ValueKind::Gathered, 0);
                           insert(rank,
                                  1,
                                  {.op = Op::Gather,
                                   .layer = 0,
                                   .micro_batch = 0,
                                   .makes = {weights},
                                   .resource = kLine});
                         }),
             "comes before the step; until then every replica has all weights");
}

TEST(VerifyReplicas, WantsTheSameOfAllReplicasInTheSameOrder) {
  const Program program = replicated_program(Shard::Parameters);
  EXPECT_EQ(
      fault_after(program,
                  [](Program& all, RankProgram&) {
                    std::vector<Instruction>& list = all.ranks[1].instructions;
                    std::swap(list[1], list[2]);
                  }),
      "rank 1, instruction 1 (gather of table, micro-batch 0): meets rank 0, instruction 1 "
      "(gather of a, micro-batch 0); the replicas of a stage gather and reduce the same in the "
      "same order");
  EXPECT_EQ(fault_after(program,
                        [](Program& all, RankProgram&) {
                          RankProgram& rank = all.ranks[1];
                          rank.values[static_cast<size_t>(value_named(rank, "p0.0"))].bytes = 9;
                        }),
            "rank 1, instruction 1 (gather of a, micro-batch 0): is of 9 bytes where rank 0, "
            "instruction 1 (gather of a, micro-batch 0) is of 10");
  const Break one_more = [](Program&, RankProgram& rank) {
    Instruction more = at(rank, Op::Gather);
    const ValueId weights = add_value(rank, ValueKind::Gathered, 0);
    more.makes = {weights};
    insert(rank, place_of(rank, Op::Step), more);
    insert(rank, place_of(rank, Op::Step), {.op = Op::Drop, .frees = {weights}});
  };
  EXPECT_HAS(fault_after(program, one_more),
             "(gather of a, micro-batch 0): rank 1 never comes to it; it takes all replicas");
  EXPECT_HAS(fault_after(program, [&](Program& all, RankProgram&) { one_more(all, all.ranks[1]); }),
             "(gather of a, micro-batch 0): rank 0 never comes to it; it takes all replicas");
}

TEST(VerifyReplicas, CountsBackwardsOfEachReplica) {
  const std::string text =
      fault_after(replicated_program(Shard::None), [](Program& all, RankProgram&) {
        RankProgram& rank = all.ranks[1];
        Instruction& backward = at(rank, Op::Backward, 3);
        const std::vector<ValueId> frees = backward.frees;
        backward = {.op = Op::Drop, .frees = frees};
      });
  EXPECT_HAS(text, "rank 1, instruction 14 (step): the backward of a, micro-batch 1, is missing");
}

}  // namespace penstock::program
