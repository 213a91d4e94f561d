// What the verifier refuses of programs with several updates, each by one that is broken in one
// place.
#include <algorithm>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "penstock/base/text.h"
#include "penstock/program/verify.h"

#include "program/asynchronous_program.h"

namespace penstock::program {

namespace {

using namespace penstock::test;  // NOLINT: the names of the small program's lines

class VerifyAsynchronous : public testing::Test {
 protected:
  Instruction& line(int index) { return rank().instructions[static_cast<size_t>(index)]; }
  RankProgram& rank() { return program_.ranks[0]; }
  void insert(int before, Instruction instruction) {
    rank().instructions.insert(rank().instructions.begin() + before, std::move(instruction));
  }
  void erase(int index) { rank().instructions.erase(rank().instructions.begin() + index); }
  ValueId copy() { return line(kStash).makes[0]; }
  Value& value(ValueId id) { return rank().values[static_cast<size_t>(id)]; }

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

  Program program_ = asynchronous_program();
};

}  // namespace

TEST_F(VerifyAsynchronous, AcceptsTheSmallProgramAndCountsTheCopy) {
  const Verdict verdict = verify(program_);
  ASSERT_TRUE(verdict.is_sound()) << verdict.violation->text;
  // Parameters, the copy, the second micro-batch with all that its forward left, and the gradient.
  EXPECT_EQ(verdict.peaks[0].bytes, 20 + 10 + 4 + 1 + 10 + 4);
  EXPECT_EQ(verdict.peaks[0].instruction, kSecondLoss);
}

TEST_F(VerifyAsynchronous, RefusesACopyOfAnotherVersion) {
  value(copy()).micro_batch = 1;
  EXPECT_EQ(refusal(kStash), "makes v.1 of weights that have had 0 updates");
  program_ = asynchronous_program();
  std::swap(line(kStash), line(kFirstStep));
  EXPECT_EQ(refusal(kFirstStep), "makes v.0 of weights that have had 1 updates");
}

TEST_F(VerifyAsynchronous, RefusesAStashThatIsNone) {
  line(kStash).reads = {line(kSecondForward).reads[0]};
  EXPECT_EQ(refusal(kStash), "reads 1 values, not 0");
  program_ = asynchronous_program();
  std::swap(line(kStash).makes, line(kSecondLoss).makes);
  EXPECT_EQ(refusal(kStash), "makes d1.1 of weights that have had 0 updates");
}

TEST_F(VerifyAsynchronous, RefusesGivenWeights) {
  rank().given.push_back(copy());
  EXPECT_EQ(refusal(-1), "v.0 is given; only inputs and targets are there when a step begins");
}

TEST_F(VerifyAsynchronous, RefusesABackwardWithOtherWeightsThanItsForward) {
  std::erase(line(kSecondBackward).reads, copy());
  EXPECT_EQ(refusal(kSecondBackward),
            "works with weights after 1 updates, and the micro-batch went forward with those after "
            "0");
  program_.mixes_weights = true;
  EXPECT_TRUE(verify(program_).is_sound());
}

TEST_F(VerifyAsynchronous, RefusesALossWithOtherWeightsThanItsForward) {
  std::erase(line(kSecondLoss).reads, copy());
  EXPECT_EQ(refusal(kSecondLoss),
            "works with weights after 1 updates, and the micro-batch went forward with those after "
            "0");
}

TEST_F(VerifyAsynchronous, RefusesAWeightHalfWithOtherWeightsThanItsForward) {
  const ValueId work = static_cast<ValueId>(rank().values.size());
  rank().values.push_back({ValueKind::WeightWork, 0, 1, 0});
  line(kSecondBackward).op = Op::BackwardInput;
  line(kSecondBackward).makes = {work};
  insert(
      kSecondStep,
      {.op = Op::BackwardWeight, .layer = 0, .micro_batch = 1, .reads = {work}, .frees = {work}});
  EXPECT_EQ(refusal(kSecondStep),
            "works with weights after 1 updates, and the micro-batch went forward with those after "
            "0");
}

TEST_F(VerifyAsynchronous, RefusesTwoVersionsAtOnce) {
  line(kSecondForward).reads.push_back(copy());
  EXPECT_EQ(refusal(kSecondForward), "reads two versions of the weights");
}

TEST_F(VerifyAsynchronous, RefusesACopyThatIsGone) {
  line(kSecondLoss).frees.push_back(copy());
  EXPECT_EQ(refusal(kSecondBackward), "reads v.0, which was freed by instruction 8");
}

TEST_F(VerifyAsynchronous, RefusesAGradientOfTheNextUpdate) {
  // The second micro-batch goes forward and into the loss before the first update.
  auto& list = rank().instructions;
  std::erase(line(kSecondForward).reads, copy());
  std::erase(line(kSecondLoss).reads, copy());
  std::rotate(list.begin() + kStash, list.begin() + kSecondForward, list.begin() + kSecondBackward);
  EXPECT_EQ(refusal(kStash + 1),
            "adds to the gradients of update 0; the micro-batch is of update 1");
}

TEST_F(VerifyAsynchronous, RefusesAMissingOrSecondClear) {
  erase(kSecondClear);
  EXPECT_EQ(refusal(kSecondStep - 1), "the gradients were never cleared");
  program_ = asynchronous_program();
  insert(kSecondClear, {.op = Op::Clear});
  EXPECT_EQ(refusal(kSecondClear + 1), "the gradients are cleared a second time");
  program_ = asynchronous_program();
  std::swap(line(kSecondClear), line(kSecondForward));
  std::swap(line(kSecondForward), line(kSecondLoss));
  EXPECT_EQ(refusal(kSecondLoss), "clears gradients that already hold a part");
}

TEST_F(VerifyAsynchronous, RefusesTooManyAndTooFewSteps) {
  insert(kSecondStep, {.op = Op::Step});
  EXPECT_EQ(refusal(kSecondStep + 1), "more steps than updates");
  program_ = asynchronous_program();
  erase(kSecondStep);
  EXPECT_EQ(refusal(-1), "there are 1 steps for 2 updates");
}

TEST_F(VerifyAsynchronous, RefusesAStepBeforeItsGradientsAreComplete) {
  std::swap(line(kSecondBackward), line(kSecondStep));
  EXPECT_EQ(refusal(kSecondBackward), "the backward of a, micro-batch 1, is missing");
}

TEST_F(VerifyAsynchronous, RefusesWorkAfterTheLastStep) {
  const ValueId input = line(kSecondForward).reads[0];
  std::erase(line(kSecondBackward).frees, input);
  const ValueId again = static_cast<ValueId>(rank().values.size());
  rank().values.push_back({ValueKind::Activation, 1, 1, 0});
  insert(kSecondStep + 1,
         {.op = Op::Forward,
          .layer = 0,
          .micro_batch = 1,
          .reads = {input},
          .makes = {again},
          .frees = {input, again}});
  EXPECT_EQ(refusal(kSecondStep + 1), "comes after the last step");
}

TEST_F(VerifyAsynchronous, RefusesAClearOrACopyAfterTheLastStep) {
  insert(kSecondStep + 1, {.op = Op::Clear});
  EXPECT_EQ(refusal(kSecondStep + 1), "comes after the last step");
  program_ = asynchronous_program();
  const ValueId useless = static_cast<ValueId>(rank().values.size());
  rank().values.push_back({ValueKind::Weights, 1, 1, 0});
  insert(kSecondStep + 1, {.op = Op::Stash, .makes = {useless}, .frees = {useless}});
  EXPECT_EQ(refusal(kSecondStep + 1), "comes after the last step");
}

TEST_F(VerifyAsynchronous, RefusesUpdatesThatDoNotDivideTheMicroBatches) {
  for (const int32_t updates : {0, 3, -1}) {
    program_.updates = updates;
    EXPECT_EQ(refusal(-1), cat(updates, " updates of 2 micro-batches"));
  }
}

}  // namespace penstock::program
