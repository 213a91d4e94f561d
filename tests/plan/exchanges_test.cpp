// The pass that writes what an optimizer exchanges with its replicas.
#include "penstock/plan/exchanges.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/program/program_text.h"
#include "penstock/program/simulate.h"
#include "penstock/program/verify.h"

#include "plan/random_pipelines.h"
#include "program/random_programs.h"
#include "program/replicated_program.h"

namespace penstock::plan {

namespace {

using program::Instruction;
using program::Op;
using program::Program;
using program::RankProgram;
using program::Shard;
using program::ValueKind;
using test::Dice;
using Average = UpdateForm::Average;

int64_t expected_sent(const Program& before,
                      const RankProgram& rank,
                      const UpdateForm& form,
                      const ExchangeBytes& bytes) {
  int64_t sent = 0;
  for (const Instruction& one : rank.instructions) {
    const bool is_over_stages =
        one.op == Op::Reduce &&
        before.groups[static_cast<size_t>(one.group)].axes.contains(comm::Axis::Pipeline);
    if (is_over_stages && !form.reduces) {
      sent += bytes.shared[static_cast<size_t>(one.units[0])];
    } else if (one.op != Op::Reduce || form.reduces) {
      sent += one.sent_bytes;
    }
  }
  sent += form.reduces ? 0 : bytes.sketches;
  sent += form.fills_momentum ? bytes.momentum : 0;
  sent += form.fills_alive ? bytes.alive : 0;
  sent += form.average == Average::None ? 0 : bytes.average;
  return sent + form.lengths * bytes.lengths;
}

}  // namespace

TEST(WriteExchanges, RandomFormsAreSoundAndSendWhatTheyWereGiven) {
  Dice dice(85);
  std::set<UpdateForm> forms;
  for (int i = 0; i < 600 && !HasFailure(); ++i) {
    const test::RandomPipeline one = test::random_pipeline(dice);
    const Program& before = one.program;
    if (before.replicas() == 1 || before.units.empty()) {
      continue;
    }
    SCOPED_TRACE(cat("case ", i, ", ", one.text()));
    const UpdateForm form = test::random_form(dice, before);
    const std::vector<ExchangeBytes> bytes = test::random_exchange_bytes(dice, before);
    const Program after = write_exchanges(before, form, bytes, {one.link(), one.link()});
    forms.insert(form);
    const program::Verdict verdict = program::verify(after);
    ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text << "\n" << format_program(after);
    EXPECT_EQ(program::parse_program(format_program(after), "written"), after);
    EXPECT_EQ(after.is_apart, form.is_apart());
    EXPECT_GT(program::simulate(after).seconds, 0);
    for (size_t rank = 0; rank < after.ranks.size(); ++rank) {
      const RankProgram& had = before.ranks[rank];
      const RankProgram& has = after.ranks[rank];
      EXPECT_EQ(has.sent_bytes(), expected_sent(before, had, form, bytes[rank]));
      EXPECT_EQ(has.limit_bytes, had.limit_bytes);
      ASSERT_EQ(has.persistent, had.persistent);  // all forms hold the same
      for (const program::ValueId id : has.persistent) {
        EXPECT_EQ(has.value(id), had.value(id));
      }
    }
    if (form.reduces) {  // any form is made of one that reduces
      EXPECT_EQ(write_exchanges(after, {}, bytes, {one.link(), one.link()}), before);
      const UpdateForm other = test::random_form(dice, before);
      EXPECT_EQ(write_exchanges(after, other, bytes, {one.link(), one.link()}),
                write_exchanges(before, other, bytes, {one.link(), one.link()}));
    }
  }
  EXPECT_GT(forms.size(), 12U);
}

// What replicas exchange takes their link; what stages add up takes that of all ranks.
TEST(WriteExchanges, EachLinkHasItsOwnSeconds) {
  Dice dice(86);
  const UpdateLinks links{.of_all = {.latency_s = 1}, .of_replicas = {.latency_s = 64}};
  int over_stages = 0, over_replicas = 0;
  for (int i = 0; i < 600; ++i) {
    const test::RandomPipeline one = test::random_pipeline(dice);
    if (one.program.replicas() == 1 || !one.program.keeps_gradients() ||
        one.program.units.empty()) {
      continue;
    }
    const Program after = write_exchanges(
        one.program, {.reduces = false}, test::random_exchange_bytes(dice, one.program), links);
    for (const RankProgram& rank : after.ranks) {
      for (const program::Instruction& instruction : rank.instructions) {
        if (instruction.op == program::Op::Reduce) {
          EXPECT_EQ(instruction.seconds, 1);
          ++over_stages;
        } else if (instruction.op == program::Op::Gather && !instruction.makes.empty() &&
                   rank.value(instruction.makes[0]).kind == program::ValueKind::AllSketches) {
          EXPECT_EQ(instruction.seconds, 64);
          ++over_replicas;
        }
      }
    }
  }
  EXPECT_GT(over_stages, 0);
  EXPECT_GT(over_replicas, 0);
}

TEST(WriteExchanges, WantsReplicasAndWholeGradients) {
  const std::vector<ExchangeBytes> bytes(2);
  for (const Shard shard : {Shard::Gradients, Shard::Parameters}) {
    EXPECT_THROW(write_exchanges(test::replicated_program(shard), {.reduces = false}, bytes, {}),
                 InternalError);
  }
  const Program program = test::replicated_program(Shard::None);
  EXPECT_THROW(write_exchanges(program, {.reduces = false}, {}, {}), InternalError);
  const Program apart = test::exchanging_program(Shard::None, {.reduces = false});
  EXPECT_THROW(write_exchanges(apart, {}, bytes, {}), InternalError);
  EXPECT_THROW(write_exchanges({}, {.lengths = 2}, {}, {}), InternalError);
  EXPECT_EQ(write_exchanges({}, {}, {}, {}), Program());
}

}  // namespace penstock::plan
