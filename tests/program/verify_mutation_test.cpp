// The verifier against sound programs with something changed. Whether the change does harm is for an
// interpreter to say that shares nothing with the verifier (content_interpreter.h).
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "penstock/program/simulate.h"
#include "penstock/program/verify.h"

#include "program/content_interpreter.h"
#include "program/exchange_mutations.h"
#include "program/instruction_mutations.h"
#include "program/list_mutations.h"
#include "program/mutation_table.h"
#include "program/program_mutations.h"
#include "program/random_programs.h"
#include "program/value_mutations.h"

namespace penstock::program {

namespace {

using test::ContentInterpreter;
using test::Dice;
using test::Mutation;
using test::MutationTable;
using test::Mutator;
using test::Tally;

// Sanitizers take their time; every row of the table is then not to be hoped for.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kIsThorough = false;
#else
constexpr bool kIsThorough = true;
#endif
constexpr int some(int programs) {
  return kIsThorough ? programs : programs / 10;
}

std::vector<Mutator> all_mutators() {
  std::vector<Mutator> all;
  for (const std::vector<Mutator>& some : {test::list_mutators(),
                                           test::exchange_mutators(),
                                           test::instruction_mutators(),
                                           test::value_mutators(),
                                           test::program_mutators()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// Both sides know the same of a program that does no harm: its peaks. And it can be simulated.
void expect_same_peaks(const Program& program,
                       const Verdict& verdict,
                       const ContentInterpreter& interpreter) {
  const auto peaks = interpreter.peaks();
  for (size_t rank = 0; rank < program.ranks.size(); ++rank) {
    EXPECT_EQ(verdict.peaks[rank].tier_bytes, peaks[rank]);
    EXPECT_EQ(replay_peak(program.ranks[rank]).tier_bytes, peaks[rank]);
  }
  EXPECT_NO_THROW(simulate(program));
}

// Whether the program does no harm and is accepted.
bool expect_right_verdict(const Program& program, const Mutation& mutation, MutationTable& table) {
  const Verdict verdict = verify(program);
  ContentInterpreter interpreter(program);
  const std::optional<std::string> harm = interpreter.run();
  Tally& tally = table.at(mutation);
  ++tally.tried;
  const std::string what = cat(mutation.subject, ", ", mutation.field, " ", mutation.what);
  if (verdict.is_sound()) {
    EXPECT_FALSE(harm.has_value()) << what << " was accepted, but it " << *harm;
    if (!harm) {
      ++tally.accepted_harmless;
      expect_same_peaks(program, verdict, interpreter);
    }
    return !harm;
  }
  if (harm) {
    ++tally.refused_harmful;
    return false;
  }
  ++tally.refused_harmless;
  const std::string_view name =
      class_of(mutation, verdict.violation->text, program.is_evaluation());
  EXPECT_FALSE(name.empty()) << what << " does no harm, but: " << verdict.violation->text;
  table.count_class(name);
  return false;
}

// What is in some sound program, by op: the lists that have operands there.
std::set<std::pair<std::string, std::string>> operand_lists(const Program& program) {
  std::set<std::pair<std::string, std::string>> found;
  for (const RankProgram& rank : program.ranks) {
    for (const Instruction& one : rank.instructions) {
      for (const auto& [name, list] : test::kOperandLists) {
        if (!(one.*list).empty()) {
          found.insert({std::string(op_name(one.op)), name});
        }
      }
    }
  }
  return found;
}

// Rows in which nothing can do harm: fields without a use, names, an order that means nothing, and
// the tier of what is not counted. Borders that all move alike do so seldom, and shares are few.
bool can_harm(const std::string& subject, const std::string& field) {
  static const std::set<std::pair<std::string, std::string>> harmless = {
      {"unit", "name"},
      {"group", "name"},
      {"carried", "name"},
      {"carried", "readers ~"},
      {"unit", "layers ~"},
      {"unit", "forward_only +"},
      {"unit", "weight_too -"},
      {"layer", "needs_output -"},
      {"rank", "values +"},
      {"b", "slices of all"},
      {"q", "tier"},
      {"z", "tier"},
      {"n", "tier"},
      {"h", "tier"},
      {"j", "tier"},
      {"f", "tier"},
      {"r", "tier"},
      {"l", "tier"},
      {"y", "tier"}};
  return field != "reads order" && !harmless.contains({subject, field});
}

void expect_row(const MutationTable& table,
                const std::string& subject,
                const std::string& field,
                bool is_used = true) {
  const Tally* const row = table.find(subject, field);
  if (row == nullptr) {
    ADD_FAILURE() << subject << ", " << field << " was never tried";
  } else if (is_used && can_harm(subject, field)) {
    EXPECT_GT(row->refused_harmful, 0) << subject << ", " << field;
  }
}

// Each field of each op, of each kind of value, and of the program.
void expect_all_rows(const MutationTable& table,
                     const std::set<std::pair<std::string, std::string>>& lists) {
  for (size_t i = 0; i < kNumOps; ++i) {
    const Op op = static_cast<Op>(i);
    const std::string name(op_name(op));
    for (const char* field : {"drop",
                              "duplicate",
                              "swap",
                              "move",
                              "op",
                              "reads +",
                              "makes +",
                              "sets +",
                              "updates +",
                              "frees +",
                              "resource kind",
                              "resource index",
                              "seconds",
                              "working_bytes"}) {
      expect_row(table, name, field);
    }
    for (const char* field :
         {"layer", "element", "units", "micro_batch", "keep", "group", "scatters", "sent_bytes"}) {
      expect_row(table, name, field, test::takes(op, field));
    }
  }
  for (const char* op : {"gather", "reduce", "exchange", "merge"}) {
    for (const char* field :
         {"all: drop", "all: duplicate", "all: move", "all: op", "all: group"}) {
      expect_row(table, op, field);
    }
    for (const char* field : {"all: units", "all: micro_batch"}) {
      const bool is_of_units = std::string(op) == "gather" || std::string(op) == "reduce";
      expect_row(table, op, field, /*is_used=*/is_of_units);
    }
  }
  expect_row(table, "reduce", "all: scatters");
  for (const char* op :
       {"loss", "backward", "backward-input", "backward-weight", "add", "prepare", "step"}) {
    expect_row(table, op, "repeat");
  }
  for (const char* op : {"stash", "forward", "backward"}) {
    expect_row(table, op, "move into an update");
  }
  for (const auto& [op, list] : lists) {
    expect_row(table, op, list + " -");
    expect_row(table, op, list + " ~");
    if (list != "frees") {
      expect_row(table, op, list + " to other");
    } else {
      expect_row(table, op, "move a free");
    }
  }
  for (size_t i = 0; i < kNumValueKinds; ++i) {
    const ValueKind kind = static_cast<ValueKind>(i);
    const ValueKindInfo& info = info_of(kind);
    const std::string name = test::letter_of(kind);
    for (const char* field : {"kind", "tier", "bytes"}) {
      expect_row(table, name, field);
    }
    expect_row(table, name, "layer", info.has_layer);
    expect_row(table, name, "element", info.has_element);
    expect_row(table, name, "unit", info.has_unit);
    expect_row(table, name, "micro_batch", info.has_micro_batch);
    expect_row(table, name, "version", info.has_version);
    expect_row(table, name, "label", info.has_label);
    expect_row(table, name, "slices +", info.has_unit && info.is_persistent);
  }
  for (const char* name : {"m", "a", "b", "o"}) {
    expect_row(table, name, "slices border");
    expect_row(table, name, "slices -");
    expect_row(table, name, "slices of all");
  }
  for (const auto& [row, tally] : table.rows()) {
    const bool is_of_program = row.first == "program" || row.first == "rank" ||
                               row.first == "unit" || row.first == "group" ||
                               row.first == "layer" || row.first == "carried";
    if (is_of_program) {
      expect_row(table, row.first, row.second);
    }
  }
}

}  // namespace

TEST(VerifyMutation, SoundProgramsOfEverySortDoNoHarm) {
  Dice dice(90);
  for (int i = 0; i < some(600); ++i) {
    const Program program = test::sound_program(dice, i);
    const Verdict verdict = verify(program);
    ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
    ContentInterpreter interpreter(program);
    ASSERT_EQ(interpreter.run(), std::nullopt);
    expect_same_peaks(program, verdict, interpreter);
  }
}

TEST(VerifyMutation, RefusesEveryHarmfulChangeOfAnyField) {
  Dice dice(91);
  MutationTable table;
  std::set<std::pair<std::string, std::string>> lists;
  const std::vector<Mutator> mutators = all_mutators();
  for (int i = 0; i < some(8000); ++i) {
    const Program sound = test::sound_program(dice, i);
    lists.merge(operand_lists(sound));
    for (const Mutator mutate : mutators) {
      Program program = sound;
      const std::optional<Mutation> mutation = mutate(program, dice);
      if (mutation && program != sound) {
        expect_right_verdict(program, *mutation, table);
      }
    }
  }
  table.print();
  if (kIsThorough) {
    expect_all_rows(table, lists);
  }
}

// What is accepted is changed again: mistakes may hide behind each other.
TEST(VerifyMutation, LikewiseWithSeveralChangesOneAfterTheOther) {
  Dice dice(92);
  MutationTable table;
  const std::vector<Mutator> mutators = all_mutators();
  for (int i = 0; i < some(400); ++i) {
    Program program = test::sound_program(dice, i);
    for (int k = 0; k < 60; ++k) {
      Program changed = program;
      const auto which = dice.between(0, static_cast<int64_t>(mutators.size()) - 1);
      const std::optional<Mutation> mutation = mutators[static_cast<size_t>(which)](changed, dice);
      if (mutation && changed != program && expect_right_verdict(changed, *mutation, table)) {
        program = std::move(changed);
      }
    }
  }
  EXPECT_GT(table.sum().accepted_harmless, some(3000));
}

TEST(VerifyMutation, FindsEveryCircleOfRanksThatWait) {
  Dice dice(93);
  MutationTable table;
  for (int i = 0; i < some(1500); ++i) {
    const Program sound = test::sound_program(dice, 1 + i % 8);
    for (int k = 0; k < 5; ++k) {
      Program program = sound;
      expect_right_verdict(program, *test::reorder_all(program, dice), table);
    }
  }
  EXPECT_GT(table.sum().refused_harmful, some(1000));
  EXPECT_GT(table.sum().accepted_harmless, some(1000));
}

}  // namespace penstock::program
