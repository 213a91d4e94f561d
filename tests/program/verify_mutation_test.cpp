// The verifier against sound programs with one thing changed. Whether the change does harm is for
// an interpreter to say that shares nothing with the verifier (content_interpreter.h).
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "penstock/plan/lower.h"
#include "penstock/plan/pipeline.h"
#include "penstock/plan/rotor.h"
#include "penstock/program/verify.h"

#include "plan/random_chains.h"
#include "program/content_interpreter.h"

namespace penstock::program {

namespace {

using test::ContentInterpreter;
using test::Dice;

// Some values are freed by an instruction of their own, as other planners may write it.
void split_off_drops(RankProgram& rank, Dice& dice) {
  std::vector<Instruction> instructions;
  for (Instruction& instruction : rank.instructions) {
    Instruction drop{.op = Op::Drop};
    if (dice.chance(30) && instruction.op != Op::Drop) {
      drop.frees = std::move(instruction.frees);
      instruction.frees.clear();
    }
    // What an instruction leaves behind it must have worked with.
    int64_t left = 0;
    for (const ValueId id : instruction.makes) {
      left += rank.values[static_cast<size_t>(id)].bytes;
    }
    instruction.working_bytes = std::max(instruction.working_bytes, left);
    instructions.push_back(std::move(instruction));
    if (!drop.frees.empty()) {
      instructions.push_back(std::move(drop));
    }
  }
  rank.instructions = std::move(instructions);
}

// A recomputed step with not a byte to spare.
Program sound_program(Dice& dice) {
  const int64_t layers = dice.between(1, 8);
  plan::CostTable table =
      dice.chance(50) ? test::small_chain(dice, layers) : test::rich_chain(dice, layers, {});
  const int64_t least = plan::solve_rotor(table, 0, {.threads = 1}).least_bytes;
  const int64_t limit =
      dice.chance(50) ? least : dice.between(least, std::max(least, test::keep_all_bytes(table)));
  const plan::RotorAnswer answer = plan::solve_rotor(table, limit, {.threads = 1});
  Program program =
      plan::lower(table, answer.operations, static_cast<int32_t>(dice.between(1, 3)), 0);
  RankProgram& rank = program.ranks[0];
  if (dice.chance(30)) {
    split_off_drops(rank, dice);
  }
  rank.limit_bytes = replay_peak(rank).bytes;
  return program;
}

// Ranks that move their weights while micro-batches are in flight, with not a byte to spare.
Program sound_asynchronous_program(Dice& dice) {
  constexpr schedule::Kind kinds[] = {
      schedule::Kind::PipeDream, schedule::Kind::PipeDream2BW, schedule::Kind::PipeMare};
  const int32_t ranks = static_cast<int32_t>(dice.between(1, 3));
  const plan::CostTable table = test::rich_chain(dice, dice.between(ranks, 5), {});
  plan::Pipeline pipeline{.schedule = schedule::make_schedule(
                              kinds[dice.between(0, 2)],
                              {.ranks = ranks,
                               .micro_batches = static_cast<int32_t>(dice.between(ranks, 3)),
                               .updates = static_cast<int32_t>(dice.between(2, 4))})};
  for (int32_t stage = 0; stage <= ranks; ++stage) {
    pipeline.cuts.push_back(static_cast<int32_t>(table.layers.size()) * stage / ranks);
  }
  pipeline.operations =
      plan::keep_everything(table, pipeline.cuts, pipeline.schedule.micro_batches);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    pipeline.weight_bytes.push_back(dice.between(1, 9));
  }
  Program program =
      plan::lower_pipeline(table, pipeline, plan::residents_by_rank(table, pipeline), 0);
  for (RankProgram& rank : program.ranks) {
    split_off_drops(rank, dice);
    rank.limit_bytes = replay_peak(rank).bytes;
  }
  return program;
}

struct Mutation {
  std::string kind;
  std::string what;  // the instructions concerned, without their numbers
  // Refused for its bookkeeping alone, see below.
  bool is_repeated_clear = false, is_exchange_of_equals = false;
};

bool does_the_same(const Instruction& a, const Instruction& b) {
  return a.op == b.op && a.layer == b.layer && a.micro_batch == b.micro_batch;
}

Mutation drop_one(RankProgram& rank, Dice& dice) {
  auto& list = rank.instructions;
  const int64_t at = dice.between(0, static_cast<int64_t>(list.size()) - 1);
  Mutation mutation{"drop", std::string(op_name(list[static_cast<size_t>(at)].op))};
  list.erase(list.begin() + at);
  return mutation;
}

Mutation duplicate_one(RankProgram& rank, Dice& dice) {
  auto& list = rank.instructions;
  const Instruction copy =
      list[static_cast<size_t>(dice.between(0, static_cast<int64_t>(list.size()) - 1))];
  list.insert(list.begin() + dice.between(0, static_cast<int64_t>(list.size())), copy);
  return {"duplicate", std::string(op_name(copy.op)), copy.op == Op::Clear};
}

Mutation swap_two(RankProgram& rank, Dice& dice) {
  auto& list = rank.instructions;
  const int64_t last = static_cast<int64_t>(list.size()) - 1;
  const int64_t first = dice.between(0, last - 1);
  // Neighbours half of the time: what is far apart seldom commutes.
  const int64_t second = dice.chance(50) ? first + 1 : dice.between(first + 1, last);
  Instruction& a = list[static_cast<size_t>(first)];
  Instruction& b = list[static_cast<size_t>(second)];
  Mutation mutation{
      "swap", cat(op_name(a.op), " with ", op_name(b.op)), false, does_the_same(a, b)};
  if (a.micro_batch != b.micro_batch && a.micro_batch >= 0 && b.micro_batch >= 0) {
    mutation.what += " of another micro-batch";
  }
  std::swap(a, b);
  return mutation;
}

// Beyond what was asked of a mutation test, but the likeliest mistake of a planner.
Mutation move_a_free(RankProgram& rank, Dice& dice) {
  auto& list = rank.instructions;
  const int64_t last = static_cast<int64_t>(list.size()) - 1;
  int64_t from = dice.between(0, last);
  while (list[static_cast<size_t>(from)].frees.empty()) {
    from = dice.between(0, last);
  }
  int64_t to = dice.between(0, last - 1);
  to += to >= from ? 1 : 0;
  auto& frees = list[static_cast<size_t>(from)].frees;
  const int64_t which = dice.between(0, static_cast<int64_t>(frees.size()) - 1);
  const ValueId id = frees[static_cast<size_t>(which)];
  frees.erase(frees.begin() + which);
  list[static_cast<size_t>(to)].frees.push_back(id);
  if (list[static_cast<size_t>(from)].op == Op::Drop && frees.empty()) {
    list.erase(list.begin() + from);  // a drop of nothing is no instruction
  }
  return {"move a free", to < from ? "to an earlier instruction" : "to a later instruction"};
}

struct Tally {
  int refused_harmful = 0, accepted_harmless = 0, refused_harmless = 0;
};

// Refused though harmless are only two classes, both for the sake of simple rules:
// - the gradients cleared twice before anything was added to them;
// - two runs of one and the same forward exchanged: each value's number then names the other life
//   of that content. By content nothing has changed.
void expect_right_verdicts(Program (*make)(Dice&), uint64_t seed) {
  Dice dice(seed);
  std::map<std::string, Tally> tallies;
  std::map<std::string, int> accepted;
  int total = 0;
  for (int i = 0; i < 600; ++i) {
    const Program sound = make(dice);
    for (int k = 0; k < 12; ++k) {
      Program program = sound;
      const int64_t last = static_cast<int64_t>(program.ranks.size()) - 1;
      RankProgram& rank = program.ranks[static_cast<size_t>(last > 0 ? dice.between(0, last) : 0)];
      const Mutation mutation = k % 4 == 0   ? drop_one(rank, dice)
                                : k % 4 == 1 ? duplicate_one(rank, dice)
                                : k % 4 == 2 ? swap_two(rank, dice)
                                             : move_a_free(rank, dice);
      ++total;
      const Verdict verdict = verify(program);
      const std::optional<std::string> harm = ContentInterpreter(program).run();
      Tally& tally = tallies[mutation.kind];
      if (verdict.is_sound()) {
        EXPECT_FALSE(harm.has_value())
            << mutation.kind << " " << mutation.what << " was accepted, but it " << *harm;
        ++accepted[cat(mutation.kind, ": ", mutation.what)];
        ++tally.accepted_harmless;
      } else if (harm.has_value()) {
        ++tally.refused_harmful;
      } else {
        EXPECT_TRUE(mutation.is_repeated_clear || mutation.is_exchange_of_equals)
            << mutation.kind << " " << mutation.what
            << " does no harm, but: " << verdict.violation->text;
        ++tally.refused_harmless;
      }
    }
  }
  for (const auto& [kind, tally] : tallies) {
    std::printf("%-12s refused %d harmful and %d harmless, accepted %d harmless\n",
                kind.c_str(),
                tally.refused_harmful,
                tally.refused_harmless,
                tally.accepted_harmless);
  }
  for (const auto& [what, count] : accepted) {
    std::printf("accepted %4d x %s\n", count, what.c_str());
  }
  EXPECT_GE(total, 1000);
  EXPECT_EQ(tallies["drop"].accepted_harmless, 0);
  EXPECT_EQ(tallies["duplicate"].accepted_harmless, 0);
}

}  // namespace

TEST(VerifyMutation, TheInterpreterFindsNoHarmInSoundPrograms) {
  Dice dice(90);
  for (int i = 0; i < 500; ++i) {
    const Program program = i % 2 == 0 ? sound_program(dice) : sound_asynchronous_program(dice);
    const Verdict verdict = verify(program);
    ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
    EXPECT_EQ(ContentInterpreter(program).run(), std::nullopt);
  }
}

TEST(VerifyMutation, RefusesEveryHarmfulChangeAndAcceptsTheHarmless) {
  expect_right_verdicts(sound_program, 91);
}

TEST(VerifyMutation, LikewiseWhereRanksMoveTheirWeightsByThemselves) {
  expect_right_verdicts(sound_asynchronous_program, 92);
}

}  // namespace penstock::program
