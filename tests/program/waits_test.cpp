// Programs of several ranks: what is sent is received, and nobody waits for ever. Random pipelines
// with receives moved to other places are judged by verify() and by an order of all instructions
// found, or not found, in another way.
#include "penstock/program/waits.h"

#include <algorithm>
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "penstock/plan/pipeline.h"

#include "program/instruction_order.h"

namespace penstock::program {

namespace {

using Random = std::mt19937;

int32_t pick(Random& random, int32_t least, int32_t most) {
  return std::uniform_int_distribution<int32_t>(least, most)(random);
}

Program random_pipeline(Random& random) {
  const auto& names = schedule::kind_names();
  const auto kind = schedule::parse_kind(
      names[static_cast<size_t>(pick(random, 0, static_cast<int32_t>(names.size()) - 1))]);
  const bool is_asynchronous = schedule::is_asynchronous(kind);
  schedule::Sizes sizes{.ranks = pick(random, 2, 8),
                        .micro_batches = pick(random, 1, 6),
                        .chunks = pick(random, 1, 3),
                        .updates = is_asynchronous ? pick(random, 1, 4) : 1};
  if (kind == schedule::Kind::PipeDream2BW) {
    sizes.micro_batches += sizes.ranks;
  }
  plan::Pipeline pipeline{.schedule = schedule::make_schedule(kind, sizes)};
  pipeline.weight_bytes.assign(static_cast<size_t>(sizes.ranks), 7);
  plan::CostTable table;
  pipeline.cuts.push_back(0);
  for (int32_t stage = 0; stage < pipeline.schedule.stages(); ++stage) {
    pipeline.cuts.push_back(pipeline.cuts.back() + pick(random, 1, 2));
  }
  int64_t bytes = pick(random, 1, 9);
  for (int32_t i = 0; i < pipeline.cuts.back(); ++i) {
    plan::LayerCost layer;
    layer.name = cat("layer ", i);
    layer.input_bytes = bytes;
    layer.output_bytes = bytes = pick(random, 1, 9);
    layer.ways = {{.saved_bytes = 20, .needs_output = pick(random, 0, 1) == 1}};
    table.layers.push_back(layer);
  }
  table.target_bytes = 1;
  pipeline.operations =
      plan::keep_everything(table, pipeline.cuts, pipeline.schedule.micro_batches);
  return plan::lower_pipeline(table, pipeline, plan::residents_by_rank(table, pipeline), 0);
}

std::vector<int32_t> places_of(const RankProgram& rank, Op op) {
  std::vector<int32_t> places;
  for (size_t i = 0; i < rank.instructions.size(); ++i) {
    if (rank.instructions[i].op == op) {
      places.push_back(static_cast<int32_t>(i));
    }
  }
  return places;
}

// What it frees is freed by the next one instead, whose turn has not changed.
void move_before(RankProgram& rank, int32_t from, int32_t to) {
  std::vector<ValueId>& frees = rank.instructions[static_cast<size_t>(from)].frees;
  std::vector<ValueId>& later = rank.instructions[static_cast<size_t>(from) + 1].frees;
  later.insert(later.end(), frees.begin(), frees.end());
  frees.clear();
  const auto begin = rank.instructions.begin();
  std::rotate(begin + to, begin + from, begin + from + 1);
}

// Two receives of one rank in the other order, whose values are of one channel or not.
void swap_receives(Program& program, Random& random) {
  RankProgram& rank = program.ranks[static_cast<size_t>(
      pick(random, 0, static_cast<int32_t>(program.ranks.size()) - 1))];
  const std::vector<int32_t> places = places_of(rank, Op::Receive);
  if (places.size() < 2) {
    return;
  }
  const int32_t first = pick(random, 0, static_cast<int32_t>(places.size()) - 2);
  const int32_t second = pick(random, first + 1, static_cast<int32_t>(places.size()) - 1);
  move_before(rank, places[static_cast<size_t>(second)], places[static_cast<size_t>(first)]);
}

// Whether the k-th send and receive of every channel are of the same micro-batch.
bool has_matching_order(const Program& program) {
  std::map<Channel, std::vector<int32_t>> sends, receives;
  for (size_t r = 0; r < program.ranks.size(); ++r) {
    for (const Instruction& one : program.ranks[r].instructions) {
      if (one.op == Op::Send || one.op == Op::Receive) {
        (one.op == Op::Send ? sends
                            : receives)[channel_of(program.ranks[r], static_cast<int32_t>(r), one)]
            .push_back(one.micro_batch);
      }
    }
  }
  return sends == receives;
}

}  // namespace

TEST(Waits, AreJudgedRightInThousandsOfRandomPrograms) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(cat("seed ", seed));
  Random random(seed);
  int good = 0, deadlocks = 0, mismatches = 0;
  while (good < 1000 || deadlocks < 1000) {
    Program program = random_pipeline(random);
    const int swaps = pick(random, 0, 2);
    for (int i = 0; i < swaps; ++i) {
      swap_receives(program, random);
    }
    const Verdict verdict = verify(program);
    if (!has_matching_order(program)) {
      ++mismatches;
      ASSERT_FALSE(verdict.is_sound());
    } else if (test::has_order(program)) {
      ++good;
      ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
    } else {
      ++deadlocks;
      ASSERT_FALSE(verdict.is_sound());
      ASSERT_TRUE(verdict.violation->text.find("none can go on") != std::string::npos)
          << verdict.violation->text;
    }
  }
  RecordProperty("good", good);
  RecordProperty("deadlocks", deadlocks);
  RecordProperty("mismatches", mismatches);
  std::printf("%d good, %d deadlocks, %d mismatches\n", good, deadlocks, mismatches);
}

namespace {

// Two ranks, one layer each, one micro-batch.
Program two_ranks() {
  plan::CostTable table;
  for (int i = 0; i < 2; ++i) {
    plan::LayerCost layer;
    layer.name = cat("layer ", i);
    layer.input_bytes = layer.output_bytes = 4;
    layer.ways = {{.saved_bytes = 10, .needs_output = false}};
    table.layers.push_back(layer);
  }
  plan::Pipeline pipeline{.schedule = schedule::make_schedule(schedule::Kind::OneFOneB, 2, 2),
                          .cuts = {0, 1, 2}};
  pipeline.operations = plan::keep_everything(table, pipeline.cuts, 2);
  return plan::lower_pipeline(table, pipeline, plan::residents_by_rank(table, pipeline), 0);
}

Instruction& find(Program& program, size_t rank, Op op, int32_t micro_batch) {
  for (Instruction& one : program.ranks[rank].instructions) {
    if (one.op == op && one.micro_batch == micro_batch) {
      return one;
    }
  }
  throw std::runtime_error("no such instruction");
}

std::string fault(const Program& program) {
  const Verdict verdict = verify(program);
  return verdict.is_sound() ? "" : verdict.violation->text;
}

}  // namespace

TEST(Waits, NamesTheRanksAndInstructionsOfACircle) {
  Program program = two_ranks();
  EXPECT_EQ(fault(program), "");
  // Rank 0 wants the first gradient before it has sent the activation that leads to it.
  RankProgram& rank = program.ranks[0];
  move_before(rank, places_of(rank, Op::Receive)[0], places_of(rank, Op::Send)[0]);
  EXPECT_EQ(
      fault(program),
      "ranks wait for each other and none can go on: rank 0, instruction 2 (receive of layer 1, "
      "micro-batch 0, from rank 1) waits for rank 1, instruction 5 (send of layer 1, "
      "micro-batch 0, to rank 0); rank 1, instruction 1 (receive of layer 1, micro-batch 0, "
      "from rank 0) waits for rank 0, instruction 3 (send of layer 1, micro-batch 0, to rank "
      "1)");
}

TEST(Waits, RefusesWhatDoesNotMatch) {
  Program program = two_ranks();
  RankProgram& rank = program.ranks[1];
  rank.values[static_cast<size_t>(find(program, 1, Op::Receive, 1).makes[0])].bytes = 5;
  find(program, 1, Op::Receive, 1).working_bytes = 5;
  EXPECT_NE(fault(program).find("expects 5 bytes of x1.1 where rank 0"), std::string::npos)
      << fault(program);

  program = two_ranks();
  std::vector<Instruction>& list = program.ranks[0].instructions;
  const Instruction lost = find(program, 0, Op::Send, 1);
  list.erase(std::find(list.begin(), list.end(), lost));
  EXPECT_NE(fault(program), "");

  // A layer's weights are with one rank: another cannot run it.
  program = two_ranks();
  RankProgram& first = program.ranks[0];
  const ValueId x1 = find(program, 0, Op::Send, 0).reads[0];
  const ValueId x2 = static_cast<ValueId>(first.values.size());
  first.values.push_back({ValueKind::Activation, 2, 0, 4});
  first.instructions.insert(first.instructions.begin() + places_of(first, Op::Send)[0],
                            {.op = Op::Forward,
                             .layer = 1,
                             .micro_batch = 0,
                             .reads = {x1},
                             .makes = {x2},
                             .frees = {x2},
                             .working_bytes = 4});
  EXPECT_NE(fault(program).find("the backward of layer 1, micro-batch 0, is missing"),
            std::string::npos)
      << fault(program);

  program = two_ranks();
  find(program, 0, Op::Send, 0).resource.index = 0;
  EXPECT_NE(fault(program).find("there is no other rank 0"), std::string::npos) << fault(program);
}

}  // namespace penstock::program
