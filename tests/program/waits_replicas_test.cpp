// Replicas that wait for each other: random pipelines of replicas with gathers and reduces moved to
// later places, and receives to earlier ones, in one rank. Judged by verify() and by an order of
// all instructions found, or not found, in another way.
#include <algorithm>
#include <cstdio>
#include <utility>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/plan/pipeline.h"
#include "penstock/program/simulate.h"
#include "penstock/program/verify.h"
#include "penstock/program/waits.h"

#include "plan/random_holdings.h"
#include "plan/random_sharding.h"
#include "program/instruction_order.h"

namespace penstock::program {

namespace {

using test::Dice;

Program random_replicas(Dice& dice) {
  constexpr schedule::Kind kinds[] = {schedule::Kind::GPipe,
                                      schedule::Kind::OneFOneB,
                                      schedule::Kind::Interleaved,
                                      schedule::Kind::ZeroBubbleH1,
                                      schedule::Kind::ZeroBubbleV};
  const int32_t ranks = static_cast<int32_t>(dice.between(2, 3));
  plan::Pipeline pipeline{
      .schedule = schedule::make_schedule(kinds[dice.chance(50) ? 1 : dice.between(0, 4)],
                                          ranks,
                                          static_cast<int32_t>(dice.between(1, 4)),
                                          2)};
  pipeline.cuts = {0};
  for (int32_t stage = 0; stage < pipeline.schedule.stages(); ++stage) {
    pipeline.cuts.push_back(pipeline.cuts.back() + static_cast<int32_t>(dice.between(1, 3)));
  }
  const plan::CostTable table = test::small_chain(dice, pipeline.cuts.back());
  pipeline.operations =
      plan::keep_everything(table, pipeline.cuts, pipeline.schedule.micro_batches);
  plan::Sharding sharding{.replicas = static_cast<int32_t>(dice.between(2, 3)),
                          .shard = dice.chance(70)
                                       ? Shard::Parameters  // the one with most to wait for
                                       : kShards[static_cast<size_t>(dice.between(0, 3))],
                          .keeps_gathered = dice.chance(30)};
  sharding.units = test::random_units(dice, pipeline.cuts.back(), sharding.shard);
  test::share_between_ranks(sharding.units, test::rank_of_layers(pipeline.schedule, pipeline.cuts));
  Program program = plan::shard(plan::write_turns(table, pipeline), sharding);
  const plan::Holdings holdings = test::random_holdings(dice, program, sharding.program_units());
  return plan::finish_program(std::move(program), holdings, {}, 0);
}

size_t pick_place(Dice& dice, const RankProgram& rank, bool wants_receive) {
  std::vector<size_t> places;
  for (size_t i = 0; i < rank.instructions.size(); ++i) {
    const Op op = rank.instructions[i].op;
    if (wants_receive ? op == Op::Receive : is_collective(op)) {
      places.push_back(i);
    }
  }
  return places.empty() ? rank.instructions.size()
                        : places[static_cast<size_t>(
                              dice.between(0, static_cast<int64_t>(places.size()) - 1))];
}

// As far as those that need it allow, and not past another on the line.
void delay_collective(RankProgram& rank, Dice& dice) {
  const size_t from = pick_place(dice, rank, false);
  size_t end = from + 1;
  while (end < rank.instructions.size() && !is_collective(rank.instructions[end].op) &&
         rank.instructions[end].op != Op::Step &&
         !test::waits_for(rank.instructions[end], rank.instructions[from])) {
    ++end;
  }
  if (end < rank.instructions.size()) {
    const auto begin = rank.instructions.begin();
    std::rotate(begin + static_cast<int64_t>(from),
                begin + static_cast<int64_t>(from) + 1,
                begin + dice.between(static_cast<int64_t>(from) + 1, static_cast<int64_t>(end)));
  }
}

// Past the last send before it. What it frees is freed by the next one instead, whose turn has not
// changed.
void hasten_receive(RankProgram& rank, Dice& dice) {
  const size_t from = pick_place(dice, rank, true);
  if (from == rank.instructions.size() || is_collective(rank.instructions[from + 1].op)) {
    return;
  }
  size_t first = from;
  for (int sends = 0; first > 1; --first) {
    if (rank.instructions[first - 1].op == Op::Send && ++sends == 2) {
      break;
    }
  }
  std::vector<ValueId>& frees = rank.instructions[from].frees;
  std::vector<ValueId>& later = rank.instructions[from + 1].frees;
  later.insert(later.end(), frees.begin(), frees.end());
  frees.clear();
  const auto begin = rank.instructions.begin();
  std::rotate(begin + dice.between(static_cast<int64_t>(first), static_cast<int64_t>(from)),
              begin + static_cast<int64_t>(from),
              begin + static_cast<int64_t>(from) + 1);
}

}  // namespace

TEST(WaitsOfReplicas, AreJudgedRightInThousandsOfRandomPrograms) {
  Dice dice(81);
  int good = 0, deadlocks = 0, with_replicas = 0, others = 0;
  for (int tried = 0; tried < 6000; ++tried) {
    Program program = random_replicas(dice);
    // Two ranks that are in neither the same stage nor the same replica.
    const int64_t replicas = program.replicas();
    const int64_t one = dice.between(0, replicas - 2);
    const int64_t moves = dice.between(0, 4);
    for (int64_t i = 0; i < moves; ++i) {
      RankProgram& rank = program.ranks[static_cast<size_t>(i % 2 == 0 ? one : replicas + one + 1)];
      if (dice.chance(20)) {
        delay_collective(rank, dice);
      } else {
        hasten_receive(rank, dice);
      }
    }
    const Verdict verdict = verify(program);
    const std::string text = verdict.is_sound() ? "" : verdict.violation->text;
    const bool is_endless = text.find("none can go on") != std::string::npos;
    if (!verdict.is_sound() && !is_endless) {
      ++others;  // a channel in another order, say
    } else if (test::has_order(program)) {
      ++good;
      ASSERT_EQ(text, "");
      ASSERT_NO_THROW(simulate(program));
    } else {
      ++deadlocks;
      ASSERT_TRUE(is_endless);
      ASSERT_THROW(simulate(program), InternalError);
      with_replicas +=
          text.find("reduce of") != std::string::npos || text.find("gather of") != std::string::npos
              ? 1
              : 0;
    }
  }
  std::printf("%d good, %d deadlocks (%d of which with gathers or reduces), %d others\n",
              good,
              deadlocks,
              with_replicas,
              others);
  EXPECT_GT(good, 500);
  EXPECT_GT(with_replicas, 10);
}

}  // namespace penstock::program
