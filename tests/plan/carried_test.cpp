// Elements that are carried along the chain: where their programs make, send and free them, and that
// plans keep within their limits.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "penstock/plan/carried_routes.h"
#include "penstock/plan/evaluation.h"
#include "penstock/plan/lower.h"
#include "penstock/plan/pipeline_solver.h"
#include "penstock/program/verify.h"

#include "plan/random_chains.h"
#include "plan/small_chains.h"

namespace penstock::plan {

namespace {

using program::Instruction;
using program::Op;
using program::Program;
using program::RankProgram;
using schedule::Kind;
using test::Dice;

constexpr Kind kKinds[] = {Kind::GPipe,
                           Kind::OneFOneB,
                           Kind::Interleaved,
                           Kind::ZeroBubbleH1,
                           Kind::ZeroBubbleH2,
                           Kind::ZeroBubbleV,
                           Kind::PipeDream,
                           Kind::PipeDream2BW,
                           Kind::PipeMare};

CostTable chain(size_t layers, const std::vector<CarriedCost>& carried) {
  CostTable table = test::homogeneous(layers, {.forward = 1, .backward = 2, .size = 4, .kept = 6});
  table.target_bytes = 1;
  table.carried = carried;
  return table;
}

CarriedCost element(const std::string& name, int32_t born, std::vector<int32_t> readers) {
  return {{.name = name, .born = born, .readers = std::move(readers), .has_gradient = true},
          /*bytes=*/10,
          /*gradient_bytes=*/20};
}
CarriedCost mask(std::vector<int32_t> readers) {
  return {{.name = "mask", .readers = std::move(readers)}, /*bytes=*/3};
}

// Every layer is a stage.
Program pipeline_of(const CostTable& table, Kind kind, int32_t ranks, int32_t micro_batches) {
  Pipeline pipeline{.schedule = make_schedule(kind, ranks, micro_batches, 2),
                    .link = {.latency_s = 1}};
  for (int32_t cut = 0; cut <= pipeline.schedule.stages(); ++cut) {
    pipeline.cuts.push_back(cut);
  }
  pipeline.operations = keep_everything(table, pipeline.cuts, pipeline.schedule.micro_batches);
  pipeline.weight_bytes.assign(static_cast<size_t>(ranks), 0);
  const Holdings nothing{.ranks = std::vector<RankHoldings>(static_cast<size_t>(ranks))};
  return lower_pipeline(table, pipeline, nothing, 0);
}

// "forward0 x0.0,i0.0 > x1.0,s0.0 / x0.0": what it reads and updates, makes, and frees.
std::string line(const RankProgram& rank, const Instruction& one) {
  const std::vector<std::string> names = program::value_names(rank);
  const auto list = [&](const std::vector<program::ValueId>& ids) {
    std::vector<std::string> words;
    for (const program::ValueId id : ids) {
      words.push_back(names[static_cast<size_t>(id)]);
    }
    return join(words, ",");
  };
  return cat(program::op_name(one.op),
             one.layer < 0 ? "" : cat(" ", one.layer),
             ": ",
             list(one.reads),
             one.updates.empty() ? "" : cat(" + ", list(one.updates)),
             one.makes.empty() ? "" : cat(" > ", list(one.makes)),
             one.frees.empty() ? "" : cat(" / ", list(one.frees)));
}
std::vector<std::string> lines(const RankProgram& rank) {
  std::vector<std::string> all;
  for (const Instruction& one : rank.instructions) {
    all.push_back(line(rank, one));
  }
  return all;
}

std::string fault(const Program& program) {
  const program::Verdict verdict = program::verify(program);
  return verdict.is_sound() ? "" : verdict.violation->text;
}

// Messages of elements and their gradients, "from>to i0.1".
std::vector<std::string> messages(const Program& program) {
  std::vector<std::string> all;
  for (size_t number = 0; number < program.ranks.size(); ++number) {
    const RankProgram& rank = program.ranks[number];
    for (const Instruction& one : rank.instructions) {
      if (one.op == Op::Send && one.element >= 0) {
        all.push_back(cat(number, ">", one.resource.index, " ", name_of(rank.value(one.reads[0]))));
      }
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

TEST(LowerCarried, OneRankMakesReadsAndAddsUp) {
  const CostTable table = chain(3, {element("memory", 0, {1, 2}), mask({1, 3})});
  const Program program = lower(table, keep_everything(table), 1, 0);
  EXPECT_EQ(fault(program), "");
  EXPECT_EQ(lines(program.ranks[0]),
            (std::vector<std::string>{"forward 0: x0.0 > x1.0,s0.0,i0.0",
                                      "forward 1: x1.0,i0.0,i1.0 > x2.0,s1.0",
                                      "forward 2: x2.0,i0.0 > x3.0,s2.0",
                                      "loss: x3.0,t.0,i1.0 > d3.0 / t.0",
                                      "backward 2: x2.0,s2.0,d3.0,x3.0,i0.0 > d2.0,u0.0 / "
                                      "x3.0,s2.0,d3.0",
                                      "backward 1: x1.0,s1.0,d2.0,x2.0,i0.0,i1.0 + u0.0 > d1.0 / "
                                      "i1.0,x2.0,s1.0,d2.0",
                                      "backward 0: x0.0,s0.0,d1.0,x1.0,i0.0,u0.0 / "
                                      "x0.0,x1.0,s0.0,i0.0,u0.0,d1.0",
                                      "squares:  > q.0",
                                      "decide: q.0 > n.0 / q.0",
                                      "step: n.0 / n.0"}));
  const std::vector<Instruction>& list = program.ranks[0].instructions;
  EXPECT_EQ(list[0].working_bytes, 6 + 10);
  // The table says of a backward what its contributions take; the first is kept.
  EXPECT_EQ(list[4].working_bytes, 4 + 20 - 10);
  EXPECT_EQ(list[5].working_bytes, 4);
}

TEST(LowerCarried, ARecomputedLayerMakesItAnew) {
  const CostTable table = chain(3, {element("memory", 0, {1, 2})});
  const Program program = lower(table, recompute_everything(table), 1, 0);
  EXPECT_EQ(fault(program), "");
  const std::vector<std::string> all = lines(program.ranks[0]);
  EXPECT_EQ(all[0], "forward 0: x0.0 > x1.0,i0.0");
  EXPECT_EQ(all[7],
            "backward 1: x1.0,s1.0,d2.0,x2.0#2,i0.0 + u0.0 > d1.0 / x1.0,i0.0,d2.0,x2.0#2,s1.0");
  EXPECT_EQ(all[8], "forward 0: x0.0 > x1.0#2,s0.0,i0.0#2");
}

TEST(LowerCarried, EachRankIsSentItOnceAndStagesBetweenGetNothing) {
  const CostTable table = chain(4, {element("memory", 0, {1, 3}), mask({1, 3})});
  EXPECT_EQ(messages(pipeline_of(table, Kind::OneFOneB, 4, 1)),
            (std::vector<std::string>{"0>1 i0.0", "1>0 u0.0", "1>3 i0.0", "3>1 u0.0"}));
  // Two chunks: ranks 0, 1, 0, 1. Rank 1 has had it; the gradient stays there, then goes back.
  EXPECT_EQ(messages(pipeline_of(table, Kind::Interleaved, 2, 1)),
            (std::vector<std::string>{"0>1 i0.0", "1>0 u0.0"}));
  // A V: ranks 0, 1, 1, 0. The gradient goes to and fro.
  EXPECT_EQ(messages(pipeline_of(table, Kind::ZeroBubbleV, 2, 1)),
            (std::vector<std::string>{"0>1 i0.0", "0>1 u0.0", "1>0 u0.0"}));
}

TEST(LowerCarried, FarMessagesMakeNobodyWaitInACircle) {
  // The next message of its channel would come before the peer's turn.
  const CostTable table = chain(4, {element("memory", 0, {3})});
  for (const Kind kind : kKinds) {
    for (const int32_t ranks : {2, 4}) {
      if (ranks * schedule::stages_per_rank(kind, 2) == 4) {
        EXPECT_EQ(fault(pipeline_of(table, kind, ranks, 4)), "") << kind_name(kind);
      }
    }
  }
}

TEST(LowerCarried, RandomPipelinesAreSoundAndSoAreTheirEvaluations) {
  Dice dice(120);
  int far = 0;
  for (int i = 0; i < 200 && !testing::Test::HasFailure(); ++i) {
    for (const Kind kind : kKinds) {
      const auto ranks = static_cast<int32_t>(dice.between(1, 5));
      const bool needs_one_each = kind == Kind::PipeDream2BW;
      Pipeline pipeline{
          .schedule = make_schedule(
              kind,
              {.ranks = ranks,
               .micro_batches = static_cast<int32_t>(dice.between(needs_one_each ? ranks : 1, 7)),
               .chunks = static_cast<int32_t>(dice.between(1, 3)),
               .updates = is_asynchronous(kind) ? static_cast<int32_t>(dice.between(1, 3)) : 1}),
          .link = {.latency_s = 0.5, .bytes_per_s = 3}};
      const int32_t stages = pipeline.schedule.stages();
      const auto layers = static_cast<int32_t>(dice.between(stages, stages + 3));
      CostTable table = test::rich_chain(dice, layers, {});
      table.carried = test::random_carried(dice, layers, 9, 4);
      for (int32_t stage = 0; stage <= stages; ++stage) {
        pipeline.cuts.push_back(layers * stage / stages);
      }
      pipeline.operations = keep_everything(table, pipeline.cuts, pipeline.schedule.micro_batches);
      pipeline.weight_bytes.assign(static_cast<size_t>(ranks), 1);
      const CarriedRoutes routes(table, pipeline.schedule, pipeline.cuts);
      for (const CarriedHop& hop : routes.back()) {
        far += hop.is_message && hop.is_far() ? 1 : 0;
      }
      const Holdings nothing{.ranks = std::vector<RankHoldings>(static_cast<size_t>(ranks))};
      const Program program = lower_pipeline(table, pipeline, nothing, 0);
      ASSERT_EQ(fault(program), "") << kind_name(kind) << ", " << format_costs(table);
      ASSERT_EQ(fault(write_evaluation(program, table, 3)), "") << kind_name(kind);
    }
  }
  EXPECT_GT(far, 200);
}

// verify() proves each program; the solver stops with an error where it does not.
TEST(CarriedPlans, KeepWithinEveryLimitOnEverySchedule) {
  Dice dice(121);
  int feasible = 0, recomputed = 0, tight = 0, missed = 0;
  for (int i = 0; i < 12 && !testing::Test::HasFailure(); ++i) {
    for (const Kind kind : kKinds) {
      const auto ranks = static_cast<int32_t>(dice.between(1, 3));
      const int32_t stages = ranks * schedule::stages_per_rank(kind, 2);
      const int64_t layers = dice.between(stages, stages + 2);
      CostTable table = test::rich_chain(dice, layers, {.most_size = 6, .most_modes = 2});
      table.carried = test::random_carried(dice, layers, 6, 3);
      PipelineRequest request{.kind = kind,
                              .ranks = ranks,
                              .micro_batches = static_cast<int32_t>(dice.between(ranks, 4)),
                              .updates = 2,
                              .link = {.latency_s = 0.25}};
      const PipelineAnswer kept = solve_pipeline(table, request);
      EXPECT_TRUE(kept.is_feasible);
      request.mode = dice.chance(70) ? SlotMode::Apart : SlotMode::Uniform;
      const int64_t most = *std::max_element(kept.peak_bytes.begin(), kept.peak_bytes.end());
      for (int64_t part = 10; part >= 4; part -= 3) {
        SCOPED_TRACE(cat(kind_name(kind), ", ", part, " of 10: ", format_costs(table)));
        request.limit_bytes = most * part / 10;
        const PipelineAnswer answer = solve_pipeline(table, request);
        const int64_t peak = *std::max_element(answer.peak_bytes.begin(), answer.peak_bytes.end());
        if (answer.is_feasible) {
          ++feasible;
          recomputed += answer.recomputed_forwards > 0 ? 1 : 0;
          EXPECT_LE(peak, request.limit_bytes);
        } else {
          const int64_t least =
              *std::max_element(answer.least_bytes.begin(), answer.least_bytes.end());
          request.limit_bytes = least;
          ++tight;
          missed += solve_pipeline(table, request).is_feasible ? 0 : 1;
          break;
        }
      }
    }
  }
  // Other limits lead to other cuts: with them the least of the ones before may not do.
  EXPECT_LE(missed, tight / 20);
  EXPECT_GT(feasible, 100);
  EXPECT_GT(recomputed, 20);
}

// What the slots are chosen by is never less than what the program holds.
TEST(CarriedPlans, CountNoLessThanTheProgramHolds) {
  Dice dice(122);
  for (int i = 0; i < 60 && !testing::Test::HasFailure(); ++i) {
    for (const Kind kind : kKinds) {
      const auto ranks = static_cast<int32_t>(dice.between(1, 4));
      const bool needs_one_each = kind == Kind::PipeDream2BW;
      const schedule::Schedule whole = make_schedule(
          kind,
          {.ranks = ranks,
           .micro_batches = static_cast<int32_t>(dice.between(needs_one_each ? ranks : 1, 6)),
           .chunks = 2,
           .updates = is_asynchronous(kind) ? 2 : 1});
      const schedule::Schedule schedule = schedule::without_updates(whole);
      const int32_t stages = schedule.stages();
      const auto layers = static_cast<int32_t>(dice.between(stages, stages + 4));
      CostTable table = test::rich_chain(dice, layers, {.most_size = 6, .most_modes = 2});
      table.carried = test::random_carried(dice, layers, 12, 3);
      Pipeline pipeline{.schedule = whole};
      for (int32_t stage = 0; stage <= stages; ++stage) {
        pipeline.cuts.push_back(layers * stage / stages);
      }
      pipeline.weight_bytes.assign(static_cast<size_t>(ranks), 0);
      SlotsRequest request{.table = table, .schedule = schedule, .cuts = pipeline.cuts};
      request.mode = SlotMode::KeepAll;
      const SlotsAnswer kept = choose_slots(request);
      request.mode = dice.chance(50) ? SlotMode::Uniform : SlotMode::Apart;
      const SlotsAnswer least = choose_slots(request);
      for (size_t rank = 0; rank < kept.peak_bytes.size(); ++rank) {
        request.limit_bytes.push_back(dice.between(
            least.least_bytes[rank], std::max(least.least_bytes[rank], kept.peak_bytes[rank])));
      }
      for (const SlotsAnswer& answer : {kept, choose_slots(request)}) {
        SCOPED_TRACE(cat(kind_name(kind), " of ", ranks, ": ", format_costs(table)));
        pipeline.operations = answer.operations;
        const Holdings nothing{.ranks = std::vector<RankHoldings>(static_cast<size_t>(ranks))};
        const Program program = lower_pipeline(table, pipeline, nothing, 0);
        const program::Verdict verdict = program::verify(program);
        ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
        for (size_t rank = 0; rank < verdict.peaks.size(); ++rank) {
          EXPECT_LE(verdict.peaks[rank].bytes, answer.peak_bytes[rank]) << "rank " << rank;
        }
      }
    }
  }
}

}  // namespace penstock::plan
