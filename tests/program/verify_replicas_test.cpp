// What verify() demands of gathers and reduces: each rule broken once.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
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
ValueId add_value(RankProgram& rank, const Value& value) {
  rank.values.push_back(value);
  return static_cast<ValueId>(rank.values.size() - 1);
}
ValueId add_gathered(RankProgram& rank, int32_t unit, int32_t micro_batch = 0) {
  return add_value(rank, {.kind = ValueKind::Gathered, .unit = unit, .micro_batch = micro_batch});
}
Value& value(RankProgram& rank, const std::string& name) {
  return rank.values[static_cast<size_t>(value_named(rank, name))];
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

// Unit b moves in a step of its own before the others; between the two its layer runs forward once
// more, for nothing. Returns that forward, without weights.
Instruction& add_late_forward(RankProgram& rank) {
  const size_t place = place_of(rank, Op::Step);
  Instruction first = rank.instructions[place];
  first.units = {1};
  first.reads = {value_named(rank, "a1"), value_named(rank, "n.0")};
  first.updates = {value_named(rank, "m1"), value_named(rank, "o1")};
  first.frees = {};
  Instruction& others = rank.instructions[place];
  others.units = {0, 2};
  remove(others.reads, value_named(rank, "a1"));
  remove(others.updates, value_named(rank, "m1"));
  remove(others.updates, value_named(rank, "o1"));
  const ValueId input = value_named(rank, "x1.0");
  for (Instruction& one : rank.instructions) {
    remove(one.frees, input);
  }
  const ValueId output = add_value(rank, layer_value(ValueKind::Activation, 2, 0, 0));
  insert(rank,
         place,
         {.op = Op::Forward,
          .layer = 1,
          .micro_batch = 0,
          .reads = {input},
          .makes = {output},
          .frees = {input, output}});
  insert(rank, place, first);
  return rank.instructions[place + 1];
}

constexpr int32_t kData = 0;  // the group of the replicas
constexpr Resource kLine{ResourceKind::Line, kData};

bool ends_with(const std::string& text, const std::string& end) {
  return !text.empty() && text.ends_with(end);
}

}  // namespace

#define EXPECT_ENDS(text, end) EXPECT_TRUE(ends_with(text, end)) << (text)

TEST(VerifyReplicas, AcceptsEveryShard) {
  for (const Shard shard : kShards) {
    EXPECT_EQ(fault_of(replicated_program(shard)), "");
    EXPECT_EQ(fault_of(replicated_program(shard, 2)), "");
    EXPECT_EQ(fault_of(replicated_program(shard, 1, schedule::Kind::ZeroBubbleH1)), "");
    EXPECT_EQ(fault_of(replicated_program(shard, 2, schedule::Kind::ZeroBubbleH1)), "");
  }
}

TEST(VerifyReplicas, RefusesWrongReplicasAndUnits) {
  const Program program = replicated_program(Shard::None);
  EXPECT_EQ(fault_after(program, [](Program& all, RankProgram&) { all.mesh.data = 3; }),
            "the program: 2 ranks in a mesh of 3");
  EXPECT_EQ(fault_after(program, [](Program& all, RankProgram&) { all.mesh.data = 0; }),
            "the program: the axis data has 0 ranks");
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
  for (const std::vector<int32_t>& layers : std::vector<std::vector<int32_t>>{{1}, {0, 0}, {2}}) {
    EXPECT_EQ(
        fault_after(program, [&](Program& all, RankProgram&) { all.units[2].weight_too = layers; }),
        "the program: unit table names layers whose weight gradient needs its weights, and "
        "they are out of order, none of its own, the loss, or need them forward alone");
  }
  Program alone = test::small_program();
  alone.shard = Shard::Optimizer;
  EXPECT_EQ(fault_of(alone), "the program: one replica shares nothing; it has no shard");
}

TEST(VerifyReplicas, RefusesOtherPlaces) {
  const Program program = replicated_program(Shard::None);
  const std::string line = "only gathers and reduces of its group are on a line";
  EXPECT_EQ(
      fault_after(program,
                  [](Program&, RankProgram& rank) { at(rank, Op::Forward).resource = kLine; }),
      "rank 0, instruction 0 (forward of a, micro-batch 0): " + line);
  EXPECT_EQ(fault_after(program,
                        [](Program&, RankProgram& rank) {
                          at(rank, Op::Reduce).resource = {ResourceKind::Line, 1};
                        }),
            "rank 0, instruction 9 (reduce of b, over data): " + line);
  EXPECT_EQ(
      fault_after(program, [](Program&, RankProgram& rank) { at(rank, Op::Reduce).units = {3}; }),
      "rank 0, instruction 9 (reduce, over data): there is no unit 3");
  EXPECT_EQ(fault_after(program,
                        [](Program&, RankProgram& rank) {
                          at(rank, Op::Reduce).units = {0, 1};
                        }),
            "rank 0, instruction 9 (reduce of 2 units, over data): is of 2 units; it takes one");
  EXPECT_ENDS(fault_after(replicated_program(Shard::None, 2),
                          [](Program&, RankProgram& rank) { at(rank, Op::Reduce).units = {1}; }),
              "(reduce of b, over data): the rank runs no layer of it");
  EXPECT_ENDS(fault_after(replicated_program(Shard::None, 2),
                          [](Program&, RankProgram& rank) { ++at(rank, Op::Send).resource.index; }),
              "rank 3 is of another pipeline");
  EXPECT_ENDS(
      fault_after(replicated_program(Shard::None, 2),
                  [](Program&, RankProgram& rank) { at(rank, Op::Send).resource.index = 4; }),
      "there is no other rank 4");
  EXPECT_ENDS(fault_after(program,
                          [](Program&, RankProgram& rank) {
                            const ValueId copy =
                                add_value(rank, {.kind = ValueKind::Stashed, .version = 0});
                            insert(rank, 1, {.op = Op::Stash, .makes = {copy}, .frees = {copy}});
                          }),
              "replicas keep no copies of their weights");
  EXPECT_ENDS(fault_after(replicated_program(Shard::Gradients),
                          [](Program&, RankProgram& rank) {
                            const ValueId bucket = value_named(rank, "g2.0");
                            remove(at(rank, Op::Drop).frees, bucket);
                            at(rank, Op::Reduce).frees = {bucket};
                          }),
              "frees g2.0; what runs on a line frees nothing");
  EXPECT_EQ(fault_after(replicated_program(Shard::Parameters),
                        [](Program&, RankProgram& rank) { value(rank, "p0.0").unit = 3; }),
            "rank 0, the program: p3.0 belongs to no layer, unit, micro-batch or update of the "
            "program");
}

TEST(VerifyReplicas, WantsTheGroupOfTheReplicas) {
  for (const Shard shard : kShards) {
    for (const Op op : {Op::Gather, Op::Reduce}) {
      if (op == Op::Gather && shard == Shard::None) {
        continue;  // gathers squares alone
      }
      // After the step comes that of the squares first.
      const int n = op == Op::Gather && shard != Shard::Parameters ? 1 : 0;
      const auto with_group = [&](const comm::RankGroup& group) {
        return fault_after(replicated_program(shard, 2), [&](Program& all, RankProgram& rank) {
          at(rank, op, n).group = all.add_group(group);
          at(rank, op, n).resource.index = at(rank, op, n).group;
        });
      };
      const std::string text = "; it takes the ranks of data";
      EXPECT_ENDS(with_group(comm::along(comm::Axis::Tensor)), "is over tensor" + text);
      EXPECT_ENDS(with_group({.name = "stage 1", .axes = comm::Axis::Data, .stages = {1}}),
                  "is over stage 1" + text);
      // The ranks are the same, so it may be called something else; the others have to agree.
      EXPECT_ENDS(with_group({.name = "stage 0", .axes = comm::Axis::Data, .stages = {0}}),
                  "; the ranks of a group exchange the same in the same order");
    }
    EXPECT_ENDS(
        fault_after(replicated_program(shard, 2),
                    [&](Program& all, RankProgram& rank) {
                      const size_t squares = place_of(rank, Op::Squares) + 1;
                      ASSERT_EQ(rank.instructions[squares].op, Op::Gather);
                      rank.instructions[squares].group =
                          all.add_group(comm::along(comm::Axis::Pipeline));
                    }),
        "(gather of the squares, over pipeline): is over pipeline; it takes the ranks of all");
  }
}

TEST(VerifyReplicas, WantsEveryWholeGradientReducedOnce) {
  for (const Shard shard : {Shard::None, Shard::Optimizer}) {
    const Program program = replicated_program(shard);
    const Program pipeline = replicated_program(shard, 2);
    EXPECT_ENDS(
        fault_after(program,
                    [&](Program&, RankProgram& rank) { erase(rank, place_of(rank, Op::Reduce)); }),
        "(squares): the gradients of b are not reduced");
    EXPECT_ENDS(fault_after(program,
                            [&](Program&, RankProgram& rank) {
                              insert(rank, place_of(rank, Op::Squares), at(rank, Op::Reduce));
                            }),
                "(reduce of b, over data): is reduced a second time");
    EXPECT_ENDS(
        fault_after(program,
                    [](Program&, RankProgram& rank) {
                      move(rank, place_of(rank, Op::Reduce), place_of(rank, Op::Backward, 2));
                    }),
        "(reduce of b, over data): a1 lacks the part of micro-batch 1 at b");
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              move(rank, place_of(rank, Op::Add), place_of(rank, Op::Squares) - 1);
                            }),
                "(reduce of table, over data): a2 lacks the part of micro-batch 0 at the loss");
    EXPECT_ENDS(fault_after(program,
                            [&](Program&, RankProgram& rank) {
                              insert(rank, place_of(rank, Op::Step) + 1, at(rank, Op::Reduce));
                            }),
                "(reduce of b, over data): comes after the step");
    EXPECT_ENDS(
        fault_after(program,
                    [](Program&, RankProgram& rank) { at(rank, Op::Reduce).micro_batch = 0; }),
        "(reduce of b, micro-batch 0, over data): it is of all micro-batches, and names one");
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              at(rank, Op::Reduce).updates = {value_named(rank, "a0")};
                            }),
                "(reduce of b, over data): does not update a1");
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              std::swap(at(rank, Op::Reduce).updates, at(rank, Op::Reduce).sets);
                            }),
                "(reduce of b, over data): sets, and so loses, what is in a1");
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              at(rank, Op::Reduce).reads = {value_named(rank, "a1")};
                            }),
                "reads 1 values, not 0");
    // A loss that comes once more would add to what was reduced. The stage has no share of its own.
    EXPECT_ENDS(
        fault_after(pipeline,
                    [](Program& all, RankProgram&) {
                      RankProgram& last = all.ranks[2];
                      Instruction loss = at(last, Op::Loss, 1);
                      at(last, Op::Loss, 1).frees.clear();
                      loss.makes = {add_value(last, layer_value(ValueKind::Gradient, 2, 1, 0))};
                      insert(last, place_of(last, Op::Reduce) + 1, loss);
                    }),
        "(loss, micro-batch 1): adds to a2 after it was reduced");
  }
  EXPECT_ENDS(
      fault_after(replicated_program(Shard::None),
                  [](Program&, RankProgram& rank) { at(rank, Op::Reduce).scatters = true; }),
      "scatters, and every replica needs the whole sum");
  EXPECT_ENDS(
      fault_after(replicated_program(Shard::Optimizer),
                  [](Program&, RankProgram& rank) { at(rank, Op::Reduce).scatters = false; }),
      "gives the whole sum, and replicas need their slices");
}

TEST(VerifyReplicas, WantsMovedSlicesGatheredAfterTheStep) {
  EXPECT_ENDS(
      fault_after(replicated_program(Shard::None),
                  [](Program&, RankProgram& rank) {
                    rank.instructions.push_back(
                        {.op = Op::Gather, .units = {0}, .group = kData, .resource = kLine});
                  }),
      "every replica has and moves all weights; there is nothing to gather");
  for (const Shard shard : {Shard::Optimizer, Shard::Gradients}) {
    const Program program = replicated_program(shard);
    // The first gather is that of the squares.
    EXPECT_EQ(fault_after(
                  program,
                  [](Program&, RankProgram& rank) { erase(rank, place_of(rank, Op::Gather, 1)); }),
              "rank 0, the program: what replicas moved of a is not gathered");
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              rank.instructions.push_back(at(rank, Op::Gather, 1));
                            }),
                "(gather of a, over data): is gathered a second time after the step");
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              move(rank, place_of(rank, Op::Gather, 1), 1);
                            }),
                "(gather of a, over data): comes before the step; until then every replica has all "
                "weights");
    EXPECT_ENDS(
        fault_after(program,
                    [](Program&, RankProgram& rank) { at(rank, Op::Gather, 1).micro_batch = 0; }),
        "it is of all micro-batches, and names one");
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              const ValueId weights = add_gathered(rank, 0);
                              at(rank, Op::Gather, 1).makes = {weights};
                            }),
                "comes after the step");
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              at(rank, Op::Gather, 1).updates = {value_named(rank, "m1")};
                            }),
                "(gather of a, over data): does not update m0");
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              std::swap(at(rank, Op::Gather, 1).updates,
                                        at(rank, Op::Gather, 1).sets);
                            }),
                "(gather of a, over data): sets, and so loses, what is in m0");
  }
}

TEST(VerifyReplicas, WantsEveryBucketReducedWhenItIsComplete) {
  for (const Shard shard : {Shard::Gradients, Shard::Parameters}) {
    const Program program = replicated_program(shard);
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              remove(at(rank, Op::Backward).makes, value_named(rank, "g1.0"));
                            }),
                "(backward of b, micro-batch 0): does not make a bucket of b");
    EXPECT_ENDS(
        fault_after(program,
                    [](Program&, RankProgram& rank) { value(rank, "g1.0").micro_batch = 1; }),
        "(backward of b, micro-batch 0): does not make a bucket of b");
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              at(rank, Op::Reduce, 1).reads = {value_named(rank, "g2.0")};
                            }),
                "(reduce of b, micro-batch 0, over data): does not read a bucket of b");
    EXPECT_ENDS(
        fault_after(program,
                    [](Program&, RankProgram& rank) { at(rank, Op::Reduce, 1).micro_batch = 1; }),
        "(reduce of b, micro-batch 1, over data): does not read a bucket of b");
    EXPECT_ENDS(
        fault_after(program,
                    [](Program&, RankProgram& rank) { at(rank, Op::Reduce).scatters = false; }),
        "gives the whole sum, and replicas need their slices");
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              Instruction twice = at(rank, Op::Reduce);
                              std::swap(twice.sets, twice.updates);
                              insert(rank, place_of(rank, Op::Reduce) + 1, twice);
                            }),
                "reduces g2.0 a second time");
    EXPECT_ENDS(
        fault_after(program,
                    [](Program&, RankProgram& rank) { erase(rank, place_of(rank, Op::Reduce)); }),
        "(drop): frees g2.0, which was not reduced");
    EXPECT_ENDS(
        fault_after(program,
                    [](Program&, RankProgram& rank) {
                      erase(rank, place_of(rank, Op::Reduce, 1));
                      free_after_step(rank, value_named(rank, "g1.0"));
                    }),
        "(reduce of b, micro-batch 1, over data): updates what an earlier update has left in "
        "a1");
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              erase(rank, place_of(rank, Op::Reduce, 5));
                              free_after_step(rank, value_named(rank, "g1.1"));
                            }),
                "(squares): a1 lacks the part of micro-batch 1 at b");
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) { at(rank, Op::Reduce).sets.clear(); }),
                "changes 0 values in place, not 1");
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              at(rank, Op::Reduce).sets = {value_named(rank, "a2")};
                            }),
                "(reduce of table, micro-batch 0, over data): does not set b2.2");
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              std::swap(at(rank, Op::Reduce, 4).sets,
                                        at(rank, Op::Reduce, 4).updates);
                            }),
                "(reduce of table, micro-batch 1, over data): sets, and so loses, what is in b2.2");
    // The bucket of layer a is still to come when the share is added; then the loss's is late.
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              const size_t late = place_of(rank, Op::Reduce, 4);
                              move(rank, late, place_of(rank, Op::Add));
                              free_after_step(rank, value_named(rank, "g2.1"));
                            }),
                "b2.2 lacks the part of micro-batch 1 at the loss");
  }
}

TEST(VerifyReplicas, WantsTheWeightGradientBeforeTheReduce) {
  const Program program = replicated_program(Shard::Gradients, 2, schedule::Kind::ZeroBubbleH1);
  const Break too_early = [](Program&, RankProgram& rank) {
    const size_t weight = place_of(rank, Op::BackwardWeight);
    move(rank, place_of(rank, Op::Reduce), weight);
  };
  EXPECT_ENDS(fault_after(program, too_early),
              "comes before the weight gradient that adds to g0.0");
  EXPECT_ENDS(fault_after(program,
                          [](Program&, RankProgram& rank) {
                            remove(at(rank, Op::BackwardWeight).updates, value_named(rank, "g0.0"));
                          }),
              "(backward-weight of a, micro-batch 0): does not update a bucket of a");
  EXPECT_ENDS(fault_after(program,
                          [](Program&, RankProgram& rank) {
                            remove(at(rank, Op::BackwardInput).makes, value_named(rank, "g0.0"));
                          }),
              "(backward-input of a, micro-batch 0): does not make a bucket of a");
  // The table's bucket of the loss, where that of the layer belongs.
  EXPECT_ENDS(fault_after(replicated_program(Shard::Gradients, 1, schedule::Kind::ZeroBubbleH1),
                          [](Program&, RankProgram& rank) {
                            Instruction& weight = at(rank, Op::BackwardWeight, 1);
                            ASSERT_EQ(weight.layer, 0);
                            std::replace(weight.updates.begin(),
                                         weight.updates.end(),
                                         value_named(rank, "g2.0#2"),
                                         value_named(rank, "g2.0"));
                            free_after_step(rank, value_named(rank, "g2.0"));
                          }),
              "updates g2.0, which its input gradient has not made");
}

TEST(VerifyReplicas, WantsGatheredWeightsWhereTheyAreUsed) {
  const Program program = replicated_program(Shard::Parameters);
  for (const Op op : {Op::Forward, Op::Loss, Op::Backward}) {
    EXPECT_ENDS(fault_after(program,
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
                cat("reads no gathered weights of ",
                    op == Op::Forward ? "a"
                    : op == Op::Loss  ? "table"
                                      : "b"));
  }
  EXPECT_ENDS(fault_after(program,
                          [](Program&, RankProgram& rank) {
                            Instruction late = at(rank, Op::Gather);
                            late.makes = {add_gathered(rank, 0)};
                            rank.instructions.push_back(late);
                          }),
              "(gather of a, micro-batch 0, over data): comes after the step");
  EXPECT_ENDS(
      fault_after(program,
                  [](Program&, RankProgram& rank) { at(rank, Op::Gather).micro_batch = 1; }),
      "(gather of a, micro-batch 1, over data): does not make p0.1");
  EXPECT_ENDS(
      fault_after(program, [](Program&, RankProgram& rank) { value(rank, "p0.0").unit = 1; }),
      "(gather of a, micro-batch 0, over data): does not make p0.0");
  EXPECT_ENDS(
      fault_after(program, [](Program&, RankProgram& rank) { at(rank, Op::Gather).makes.clear(); }),
      "makes 0 values, not 1");
  EXPECT_ENDS(fault_after(program,
                          [](Program&, RankProgram& rank) {
                            at(rank, Op::Gather).reads = {value_named(rank, "m1")};
                          }),
              "(gather of a, micro-batch 0, over data): does not read m0");
  // Elsewhere weights are whole, and nothing reads gathered ones.
  EXPECT_ENDS(fault_after(replicated_program(Shard::Gradients),
                          [](Program&, RankProgram& rank) {
                            const ValueId weights = add_gathered(rank, 0);
                            insert(rank,
                                   1,
                                   {.op = Op::Gather,
                                    .units = {0},
                                    .group = kData,
                                    .makes = {weights},
                                    .resource = kLine});
                          }),
              "comes before the step; until then every replica has all weights");
}

TEST(VerifyReplicas, RefusesWeightsThatOtherReplicasHaveMoved) {
  for (const Shard shard : {Shard::Optimizer, Shard::Gradients}) {
    const auto late_forward = [&](bool mixes_weights) {
      return fault_after(replicated_program(shard), [&](Program& all, RankProgram& rank) {
        all.mixes_weights = mixes_weights;
        add_late_forward(rank).reads.push_back(value_named(rank, "m1"));
      });
    };
    EXPECT_ENDS(late_forward(true), "reads the weights of b before they are gathered again");
    EXPECT_ENDS(late_forward(false),
                "works with weights after 1 updates, and the micro-batch went forward with those "
                "after 0");
  }
}

TEST(VerifyReplicas, RefusesWeightsThatWereGatheredBeforeAStep) {
  EXPECT_ENDS(fault_after(replicated_program(Shard::Parameters),
                          [&](Program& all, RankProgram& rank) {
                            all.mixes_weights = true;
                            const ValueId weights = value_named(rank, "p1.0");
                            for (Instruction& one : rank.instructions) {
                              remove(one.frees, weights);
                            }
                            Instruction& forward = add_late_forward(rank);
                            forward.reads.push_back(weights);
                            forward.frees.push_back(weights);
                          }),
              "reads p1.0, which was gathered before a step");
}

TEST(VerifyReplicas, WantsSlicesThatDivideAUnit) {
  for (const Shard shard : {Shard::Optimizer, Shard::Gradients, Shard::Parameters}) {
    // Of all that is sharded alike.
    const auto with_slices = [&](const std::vector<Slice>& slices) {
      return fault_after(replicated_program(shard), [&](Program&, RankProgram& rank) {
        for (const ValueId id : rank.persistent) {
          Value& one = rank.values[static_cast<size_t>(id)];
          if (one.unit == 0 && !one.slices.empty()) {
            one.slices = slices;
          }
        }
      });
    };
    // The other replica has 4-9.
    EXPECT_EQ(with_slices({{0, 4}, {9, 10}}), "");
    EXPECT_EQ(with_slices({{0, 3}, {9, 10}}),
              "the program: the slices of unit a leave a gap or overlap at element 3");
    EXPECT_EQ(with_slices({{0, 5}, {9, 10}}),
              "the program: the slices of unit a leave a gap or overlap at element 5");
    EXPECT_EQ(with_slices({{1, 4}, {9, 10}}),
              "the program: the slices of unit a leave a gap or overlap at element 0");
    EXPECT_EQ(with_slices({{0, 4}}), "the program: the slices of unit a end at 9 of 10");
    EXPECT_EQ(with_slices({{0, 4}, {9, 11}}), "the program: the slices of unit a end at 11 of 10");
    const std::string first = shard == Shard::Parameters  ? "m0"
                              : shard == Shard::Gradients ? "a0"
                                                          : "o0";
    const std::string text = cat(
        "rank 0, the program: ", first, " has slices that are empty, out of order or out of range");
    EXPECT_EQ(with_slices({{0, 4}, {4, 4}, {9, 10}}), text);
    EXPECT_EQ(with_slices({{9, 10}, {0, 4}}), text);
    EXPECT_EQ(fault_after(replicated_program(shard),
                          [](Program& all, RankProgram&) { all.units[0].elements = 0; }),
              "the program: the slices of unit a end at 10 of 0");
  }
  EXPECT_EQ(fault_after(replicated_program(Shard::None),
                        [](Program&, RankProgram& rank) {
                          value(rank, "o0").slices = {{0, 10}};
                        }),
            "the program: unit a has slices, and nothing is sharded");
  EXPECT_EQ(fault_after(replicated_program(Shard::None, 2),
                        [](Program& all, RankProgram&) {
                          all.ranks[2].hold({.kind = ValueKind::Compute, .unit = 0});
                        }),
            "rank 2, the program: the rank holds c0 and runs no layer of its unit");
}

TEST(VerifyReplicas, WantsWeightsAndGradientsWholeOrSharded) {
  const auto with_slices = [](Shard shard, const std::string& name, std::vector<Slice> slices) {
    return fault_after(replicated_program(shard), [&](Program&, RankProgram& rank) {
      value(rank, name).slices = std::move(slices);
    });
  };
  const std::string whole = " has slices; it is there whole";
  const std::string other = " has other slices than o2";
  for (const Shard shard : {Shard::None, Shard::Optimizer}) {
    EXPECT_EQ(with_slices(shard, "m2", {{0, 40}}), "rank 0, the program: m2" + whole);
    EXPECT_EQ(with_slices(shard, "a2", {{0, 40}}), "rank 0, the program: a2" + whole);
    EXPECT_EQ(with_slices(shard, "b2.2", {{0, 40}}), "rank 0, the program: b2.2" + whole);
  }
  EXPECT_EQ(with_slices(Shard::Gradients, "m2", {{0, 40}}), "rank 0, the program: m2" + whole);
  for (const Shard shard : {Shard::Gradients, Shard::Parameters}) {
    EXPECT_EQ(with_slices(shard, "a2", {}), "rank 0, the program: a2" + other);
    EXPECT_EQ(with_slices(shard, "b2.2", {{0, 19}}), "rank 0, the program: b2.2" + other);
  }
  EXPECT_EQ(with_slices(Shard::Parameters, "m2", {}), "rank 0, the program: m2" + other);
}

// A copy is whole; then the master may be whole, or the slices that the step moves.
TEST(VerifyReplicas, AMasterBesideACopyMayBeSharded) {
  const auto with_copy = [](Shard shard, const Break& change) {
    Program program = replicated_program(shard);
    for (RankProgram& rank : program.ranks) {
      const ValueId master = value_named(rank, "m1");
      const ValueId copy = rank.hold({.kind = ValueKind::Compute, .unit = 1, .bytes = 10});
      rank.values[static_cast<size_t>(master)].slices = value(rank, "o1").slices;
      for (Instruction& one : rank.instructions) {
        if (is_at_layer(one.op)) {
          std::replace(one.reads.begin(), one.reads.end(), master, copy);
        } else if (one.op == Op::Step) {
          one.updates.push_back(copy);
        } else if (one.op == Op::Gather && one.units == std::vector<int32_t>{1}) {
          one.reads = {master};
          one.updates = {copy};
        }
      }
    }
    return fault_after(program, change);
  };
  for (const Shard shard : {Shard::Optimizer, Shard::Gradients}) {
    EXPECT_EQ(with_copy(shard, [](Program&, RankProgram&) {}), "");
    EXPECT_EQ(with_copy(shard,
                        [](Program&, RankProgram& rank) {
                          value(rank, "m1").slices = {{0, 20}};
                        }),
              "rank 0, the program: m1 has other slices than o1");
    EXPECT_EQ(with_copy(shard,
                        [](Program&, RankProgram& rank) {
                          value(rank, "c1").slices = {{0, 20}};
                        }),
              "rank 0, the program: c1 has slices; it is there whole");
    // Where the master is whole, layers see both.
    EXPECT_ENDS(
        with_copy(shard, [](Program&, RankProgram& rank) { value(rank, "m1").slices = {}; }),
        "(forward of b, micro-batch 0): does not read m1");
    EXPECT_ENDS(with_copy(shard,
                          [](Program&, RankProgram& rank) {
                            Instruction& gather = at(rank, Op::Gather, 2);
                            gather.updates = {value_named(rank, "m1")};
                          }),
                "(gather of b, over data): does not update c1");
    EXPECT_ENDS(with_copy(shard,
                          [](Program&, RankProgram& rank) {
                            at(rank, Op::Gather, 2).reads = {value_named(rank, "m0")};
                          }),
                "(gather of b, over data): does not read m1");
  }
}

// The table is of stage 0 and stage 1.
TEST(VerifyReplicas, WantsAUnitOfSeveralStagesAddedUpOverThem) {
  for (const Shard shard : kShards) {
    const Program program = replicated_program(shard, 2);
    const auto over_stages = [](RankProgram& rank) { return place_of(rank, Op::Squares) - 1; };
    const auto broken =
        [&](const std::function<void(Program&, RankProgram&, Instruction&)>& change) {
          return fault_after(program, [&](Program& all, RankProgram& rank) {
            Instruction& reduce = rank.instructions[over_stages(rank)];
            ASSERT_EQ(reduce.op, Op::Reduce);
            ASSERT_EQ(all.groups[static_cast<size_t>(reduce.group)].name, "table");
            change(all, rank, reduce);
          });
        };
    EXPECT_ENDS(
        fault_after(program, [&](Program&, RankProgram& rank) { erase(rank, over_stages(rank)); }),
        "(squares): the gradients of table are not added up over the stages that have it");
    EXPECT_ENDS(fault_after(program,
                            [&](Program&, RankProgram& rank) {
                              const size_t place = over_stages(rank);
                              insert(rank, place, rank.instructions[place]);
                            }),
                "(reduce of table, over table): is reduced a second time");
    EXPECT_ENDS(broken([](Program&, RankProgram&, Instruction& reduce) { reduce.units = {0}; }),
                "(reduce of a, over table): no other stage has a");
    EXPECT_ENDS(broken([](Program&, RankProgram&, Instruction& reduce) { reduce.scatters = true; }),
                "stages need the whole sum of all micro-batches");
    EXPECT_ENDS(broken([](Program&, RankProgram&, Instruction& reduce) { reduce.micro_batch = 0; }),
                "stages need the whole sum of all micro-batches");
    EXPECT_ENDS(broken([](Program&, RankProgram&, Instruction& reduce) { reduce.updates.clear(); }),
                "changes 0 values in place, not 1");
    EXPECT_ENDS(broken([](Program&, RankProgram& rank, Instruction& reduce) {
                  reduce.updates = {value_named(rank, "a0")};
                }),
                "(reduce of table, over table): does not update a2");
    EXPECT_ENDS(broken([](Program& all, RankProgram&, Instruction& reduce) {
                  reduce.group = all.add_group(comm::all());
                }),
                "is over all; it takes the ranks of this pipeline that have table");
    // As many ranks, but replicas of one stage.
    EXPECT_ENDS(broken([](Program& all, RankProgram&, Instruction& reduce) {
                  reduce.group = all.add_group({.name = "replicas",
                                                .axes = {comm::Axis::Data, comm::Axis::Pipeline},
                                                .stages = {0}});
                }),
                "is over replicas; it takes the ranks of this pipeline that have table");
    EXPECT_ENDS(fault_after(program,
                            [&](Program&, RankProgram& rank) {
                              move(rank, over_stages(rank), place_of(rank, Op::Backward, 1));
                            }),
                "(reduce of table, over table): a2 lacks the part of micro-batch 1 at a");
    if (program.keeps_gradients()) {
      EXPECT_ENDS(fault_after(program,
                              [&](Program&, RankProgram& rank) {
                                move(rank, over_stages(rank), place_of(rank, Op::Reduce, 1));
                              }),
                  "the gradients of table are not reduced over the replicas");
    }
    if (shard != Shard::None) {
      EXPECT_ENDS(fault_after(program,
                              [&](Program& all, RankProgram&) {
                                for (const size_t rank : {2, 3}) {
                                  for (const ValueId id : all.ranks[rank].persistent) {
                                    Value& one = all.ranks[rank].values[static_cast<size_t>(id)];
                                    if (one.unit == 2 && !one.slices.empty()) {
                                      one.slices = rank == 2 ? std::vector<Slice>{{0, 20}}
                                                             : std::vector<Slice>{{20, 40}};
                                    }
                                  }
                                }
                              }),
                  "(reduce of table, over table): rank 2 moves other slices of table");
    }
  }
}

TEST(VerifyReplicas, WantsTheSquaresOfAllRanks) {
  for (const int32_t stages : {1, 2}) {
    const Program program = replicated_program(Shard::None, stages);
    EXPECT_ENDS(fault_after(program,
                            [](Program&, RankProgram& rank) {
                              const ValueId own = value_named(rank, "q.0");
                              Instruction& decide = at(rank, Op::Decide);
                              decide.reads = {own};
                              decide.frees.push_back(own);
                              at(rank, Op::Gather).frees = {};
                            }),
                "(decide): reads q.0; it takes the squares of all ranks of this update");
  }
}

TEST(VerifyReplicas, WantsTheSameOfAllReplicasInTheSameOrder) {
  const Program program = replicated_program(Shard::Parameters);
  EXPECT_EQ(fault_after(program,
                        [](Program& all, RankProgram&) {
                          std::vector<Instruction>& list = all.ranks[1].instructions;
                          std::swap(list[0], list[1]);
                        }),
            "rank 1, instruction 0 (gather of table, micro-batch 0, over data): meets rank 0, "
            "instruction 0 (gather of a, micro-batch 0, over data); the ranks of a group "
            "exchange the same in the same order");
  EXPECT_EQ(fault_after(program,
                        [](Program& all, RankProgram&) { value(all.ranks[1], "p0.0").bytes = 9; }),
            "rank 1, instruction 0 (gather of a, micro-batch 0, over data): is of 9 bytes where "
            "rank 0, instruction 0 (gather of a, micro-batch 0, over data) is of 10");
  EXPECT_EQ(
      fault_after(program,
                  [](Program& all, RankProgram&) { at(all.ranks[1], Op::Gather).resource = {}; }),
      "rank 1, instruction 0 (gather of a, micro-batch 0, over data): is on another resource "
      "than rank 0, instruction 0 (gather of a, micro-batch 0, over data)");
  const Break one_more = [](Program&, RankProgram& rank) {
    Instruction more = at(rank, Op::Gather);
    const ValueId weights = add_gathered(rank, 0);
    more.makes = {weights};
    insert(rank, place_of(rank, Op::Step), more);
    insert(rank, place_of(rank, Op::Step), {.op = Op::Drop, .frees = {weights}});
  };
  EXPECT_ENDS(fault_after(program, one_more),
              "(gather of a, micro-batch 0, over data): rank 1 never comes to it; it takes all of "
              "its group");
  EXPECT_ENDS(
      fault_after(program, [&](Program& all, RankProgram&) { one_more(all, all.ranks[1]); }),
      "(gather of a, micro-batch 0, over data): rank 0 never comes to it; it takes all of "
      "its group");
}

TEST(VerifyReplicas, CountsBackwardsOfEachReplica) {
  const std::string text =
      fault_after(replicated_program(Shard::None), [](Program& all, RankProgram&) {
        RankProgram& rank = all.ranks[1];
        Instruction& backward = at(rank, Op::Backward, 3);
        const std::vector<ValueId> frees = backward.frees;
        backward = {.op = Op::Drop, .frees = frees};
      });
  EXPECT_EQ(
      text,
      "rank 1, instruction 12 (reduce of a, over data): a0 lacks the part of micro-batch 1 at "
      "a");
  EXPECT_EQ(fault_after(test::exchanging_program(Shard::None, {.reduces = false}),
                        [](Program& all, RankProgram&) {
                          RankProgram& rank = all.ranks[1];
                          Instruction& backward = at(rank, Op::Backward, 3);
                          const std::vector<ValueId> frees = backward.frees;
                          backward = {.op = Op::Drop, .frees = frees};
                        }),
            "rank 1, instruction 11 (sketch): the backward of a, micro-batch 1, is missing");
}

}  // namespace penstock::program
