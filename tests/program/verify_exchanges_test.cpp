// What verify() demands of the exchanges of an optimizer: each one missing, doubled, misordered, over
// other ranks, or of other values.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/program/verify.h"

#include "program/replicated_program.h"

namespace penstock::program {

namespace {

using Average = plan::UpdateForm::Average;
using test::exchanging_program;
using test::fault_of;
using test::place_of;
using test::value_named;

constexpr int32_t kData = 0;

const plan::UpdateForm kLamb{.lengths = 2};
const plan::UpdateForm kMomentum{
    .reduces = false, .average = Average::Momentum, .fills_momentum = true, .lengths = 2};
const plan::UpdateForm kGradients{.reduces = false, .average = Average::Gradients};
const plan::UpdateForm kWeights{.reduces = false, .average = Average::Weights};
const plan::UpdateForm kApart{.reduces = false};

using Break = std::function<void(Program&, RankProgram&)>;  // of every rank

std::string fault_after(Program program, const Break& change) {
  EXPECT_EQ(fault_of(program), "");
  for (RankProgram& rank : program.ranks) {
    change(program, rank);
  }
  return fault_of(program);
}

// The gather that makes a value of this kind.
size_t gather_of(const RankProgram& rank, ValueKind kind) {
  const auto found =
      std::find_if(rank.instructions.begin(), rank.instructions.end(), [&](const auto& one) {
        return one.op == Op::Gather && !one.makes.empty() && rank.value(one.makes[0]).kind == kind;
      });
  return static_cast<size_t>(found - rank.instructions.begin());
}
void erase(RankProgram& rank, size_t at) {
  rank.instructions.erase(rank.instructions.begin() + static_cast<int64_t>(at));
}
void move(RankProgram& rank, size_t from, size_t to) {
  const Instruction moved = rank.instructions[from];
  erase(rank, from);
  rank.instructions.insert(rank.instructions.begin() + static_cast<int64_t>(to), moved);
}
// What comes of an exchange that is left out: its value is not made, or is freed by nobody.
std::string fault_without(const Program& program, const std::function<size_t(RankProgram&)>& at) {
  return fault_after(program, [&](Program&, RankProgram& rank) { erase(rank, at(rank)); });
}

#define EXPECT_ENDS(text, end) EXPECT_TRUE(std::string(text).ends_with(end)) << (text)

}  // namespace

TEST(VerifyExchanges, AcceptsEveryForm) {
  for (const int32_t stages : {1, 2}) {
    for (const Shard shard : kShards) {
      const bool is_sharded = shard != Shard::None;
      EXPECT_EQ(
          fault_of(exchanging_program(shard, is_sharded ? kLamb : plan::UpdateForm(), stages)), "");
    }
    EXPECT_EQ(fault_of(exchanging_program(Shard::Optimizer, kMomentum, stages)), "");
    EXPECT_EQ(fault_of(exchanging_program(Shard::Optimizer, kGradients, stages)), "");
    for (const plan::UpdateForm& form : {kGradients, kWeights, kApart}) {
      EXPECT_EQ(fault_of(exchanging_program(Shard::None, form, stages)), "");
    }
  }
}

TEST(VerifyExchanges, WantsLengthsGathered) {
  for (const Shard shard : {Shard::Optimizer, Shard::Gradients, Shard::Parameters}) {
    const Program lamb = exchanging_program(shard, kLamb);
    const auto lengths = [](RankProgram& rank) { return gather_of(rank, ValueKind::AllLengths); };
    EXPECT_ENDS(fault_without(lamb, lengths), "which nothing has made yet");
    // Nobody asks for them any more.
    EXPECT_ENDS(fault_after(lamb,
                            [&](Program&, RankProgram& rank) {
                              Instruction& gather = rank.instructions[lengths(rank)];
                              Instruction& step = rank.instructions[place_of(rank, Op::Step)];
                              std::erase(step.reads, gather.makes[0]);
                              std::erase(step.frees, gather.makes[0]);
                              gather = {.op = Op::Drop, .frees = gather.frees};
                            }),
                "l.0 is not gathered");
    EXPECT_ENDS(fault_after(lamb,
                            [&](Program&, RankProgram& rank) {
                              Instruction& step = rank.instructions[place_of(rank, Op::Step)];
                              std::erase(step.reads, value_named(rank, "y.0"));
                            }),
                "does not read y.0");
    EXPECT_ENDS(fault_after(lamb,
                            [&](Program&, RankProgram& rank) {
                              move(rank, lengths(rank), place_of(rank, Op::Prepare));
                            }),
                "reads l.0, which nothing has made yet");
    EXPECT_ENDS(fault_without(lamb, [](RankProgram& rank) { return place_of(rank, Op::Prepare); }),
                "reads l.0, which nothing has made yet");
  }
}

TEST(VerifyExchanges, RefusesASecondExchangeOfTheSame) {
  const Program program = exchanging_program(Shard::Optimizer, kMomentum);
  const auto twice = [&](const std::function<size_t(RankProgram&)>& at) {
    return fault_after(program, [&](Program&, RankProgram& rank) {
      const size_t place = at(rank);
      Instruction again = rank.instructions[place];
      rank.instructions[place].frees.clear();
      std::vector<ValueId> made;
      for (ValueId& id : again.makes) {
        rank.values.push_back(rank.value(id));
        id = static_cast<ValueId>(rank.values.size() - 1);
        made.push_back(id);
      }
      rank.instructions.insert(rank.instructions.begin() + static_cast<int64_t>(place) + 1, again);
      if (!made.empty()) {
        rank.instructions.insert(rank.instructions.begin() + static_cast<int64_t>(place) + 2,
                                 {.op = Op::Drop, .frees = made});
      }
    });
  };
  EXPECT_ENDS(twice([](RankProgram& rank) { return place_of(rank, Op::Exchange); }),
              "averages r.0 a second time");
  EXPECT_ENDS(twice([](RankProgram& rank) { return gather_of(rank, ValueKind::AllLengths); }),
              "gathers l.0 a second time");
  EXPECT_ENDS(twice([](RankProgram& rank) { return gather_of(rank, ValueKind::AllSketches); }),
              "gathers h.0 a second time");
  EXPECT_ENDS(twice([](RankProgram& rank) { return gather_of(rank, ValueKind::Filled); }),
              "gathers the state a second time");
  EXPECT_ENDS(twice([](RankProgram& rank) { return place_of(rank, Op::Sketch); }),
              "sketches the gradients a second time");
  EXPECT_ENDS(twice([](RankProgram& rank) { return place_of(rank, Op::Prepare); }),
              "prepares the update a second time");
}

TEST(VerifyExchanges, WantsAnAverageWhereGradientsAreNotReduced) {
  const auto exchange = [](RankProgram& rank) { return place_of(rank, Op::Exchange); };
  for (const plan::UpdateForm& form : {kGradients, kWeights}) {
    const Program program = exchanging_program(Shard::None, form);
    EXPECT_ENDS(fault_after(program,
                            [&](Program&, RankProgram& rank) {
                              Instruction& one = rank.instructions[exchange(rank)];
                              one = {.op = Op::Drop, .frees = one.frees};
                            }),
                "the gradients of the replicas are not averaged");
    EXPECT_ENDS(fault_after(program,
                            [&](Program&, RankProgram& rank) {
                              move(rank, exchange(rank), place_of(rank, Op::Prepare));
                            }),
                "reads r.0, which nothing has made yet");
    EXPECT_ENDS(fault_after(program,
                            [&](Program&, RankProgram& rank) {
                              move(rank, exchange(rank), place_of(rank, Op::Step));
                            }),
                "the gradients of the replicas are not averaged");
    EXPECT_ENDS(fault_after(program, [](Program& all, RankProgram&) { all.is_apart = true; }),
                "makes ready an average, and replicas move apart");
  }
  EXPECT_ENDS(fault_after(exchanging_program(Shard::None, kApart),
                          [](Program& all, RankProgram&) { all.is_apart = false; }),
              "the gradients of the replicas are not averaged");
  EXPECT_ENDS(fault_after(exchanging_program(Shard::None, {}),
                          [](Program& all, RankProgram&) { all.is_apart = true; }),
              "replicas move apart, and not by their own gradients");
}

TEST(VerifyExchanges, WantsTheNormOfSketchesWhereGradientsAreNotReduced) {
  const Program program = exchanging_program(Shard::None, kGradients);
  EXPECT_ENDS(fault_after(program,
                          [](Program&, RankProgram& rank) {
                            erase(rank, place_of(rank, Op::Sketch));
                            Instruction& squares = rank.instructions[place_of(rank, Op::Squares)];
                            squares.reads = {value_named(rank, "a0"),
                                             value_named(rank, "a1"),
                                             value_named(rank, "a2")};
                            squares.frees.clear();
                            erase(rank, gather_of(rank, ValueKind::AllSketches));
                          }),
              "the gradients of a are not reduced");
  EXPECT_ENDS(fault_after(program,
                          [](Program&, RankProgram& rank) {
                            rank.instructions.insert(
                                rank.instructions.begin() +
                                    static_cast<int64_t>(place_of(rank, Op::Squares)),
                                {.op = Op::Reduce,
                                 .units = {0},
                                 .group = kData,
                                 .updates = {value_named(rank, "a0")},
                                 .resource = {ResourceKind::Line, kData}});
                          }),
              "replicas sketch their own gradients; they are not reduced");
  EXPECT_ENDS(fault_after(exchanging_program(Shard::Optimizer, kLamb),
                          [](Program&, RankProgram& rank) {
                            Instruction& prepare = rank.instructions[place_of(rank, Op::Prepare)];
                            rank.values[static_cast<size_t>(prepare.makes[0])].kind =
                                ValueKind::Prepared;
                          }),
              "makes ready an average of what was reduced");
}

TEST(VerifyExchanges, WantsTheReplicasOfAStage) {
  const Program program = exchanging_program(Shard::Optimizer, kMomentum, 2);
  for (const ValueKind kind : {ValueKind::AllSketches, ValueKind::Filled, ValueKind::AllLengths}) {
    EXPECT_ENDS(fault_after(program,
                            [&](Program& all, RankProgram& rank) {
                              rank.instructions[gather_of(rank, kind)].group =
                                  all.add_group(comm::all());
                            }),
                "is over all; it takes the ranks of data");
  }
  EXPECT_ENDS(fault_after(program,
                          [](Program& all, RankProgram& rank) {
                            rank.instructions[place_of(rank, Op::Exchange)].group =
                                all.add_group(comm::all());
                          }),
              "is over all; it takes the ranks of data");
}

TEST(VerifyExchanges, WantsTheSameOfAllReplicas) {
  // One replica averages momentum and the other gradients.
  Program program = exchanging_program(Shard::None, kGradients);
  program.ranks[1] =
      exchanging_program(Shard::None, {.reduces = false, .average = Average::Momentum}).ranks[1];
  EXPECT_ENDS(fault_of(program), "the ranks of a group exchange the same in the same order");
  // One fills its state, and the other has nothing to fill.
  program = exchanging_program(Shard::Optimizer, kMomentum);
  program.ranks[1] =
      exchanging_program(Shard::Optimizer,
                         {.reduces = false, .average = Average::Momentum, .lengths = 2})
          .ranks[1];
  EXPECT_ENDS(fault_of(program), "the ranks of a group exchange the same in the same order");
}

TEST(VerifyExchanges, WantsWhatIsPreparedToBeWhatIsAveraged) {
  const Program program = exchanging_program(Shard::None, kWeights);
  EXPECT_ENDS(fault_after(program,
                          [](Program&, RankProgram& rank) {
                            Instruction& one = rank.instructions[place_of(rank, Op::Exchange)];
                            std::erase(one.updates, value_named(rank, "m0"));
                          }),
              "changes 5 values in place, not 6");
  EXPECT_ENDS(fault_after(program,
                          [](Program&, RankProgram& rank) {
                            Instruction& one = rank.instructions[place_of(rank, Op::Prepare)];
                            std::erase(one.updates, value_named(rank, "o1"));
                          }),
              "does not update o1");
  EXPECT_ENDS(fault_after(exchanging_program(Shard::Optimizer, kMomentum),
                          [](Program&, RankProgram& rank) {
                            Instruction& one = rank.instructions[place_of(rank, Op::Prepare)];
                            std::erase(one.reads, value_named(rank, "f.0"));
                          }),
              "does not read f.0");
  EXPECT_ENDS(fault_after(exchanging_program(Shard::Optimizer, kMomentum),
                          [](Program&, RankProgram& rank) {
                            const size_t fill = gather_of(rank, ValueKind::Filled);
                            Instruction& prepare = rank.instructions[place_of(rank, Op::Prepare)];
                            std::erase(prepare.reads, value_named(rank, "f.0"));
                            std::swap(prepare.frees,
                                      rank.instructions[place_of(rank, Op::Exchange)].frees);
                            std::swap(rank.instructions[fill],
                                      rank.instructions[place_of(rank, Op::Prepare)]);
                          }),
              "comes after what it is for was prepared");
}

}  // namespace penstock::program
