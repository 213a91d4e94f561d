// find_fault finds what is broken on purpose.
#include <algorithm>
#include <utility>

#include <gtest/gtest.h>

#include "penstock/schedule/schedule.h"

namespace penstock::schedule {

namespace {

// Three ranks and four micro-batches: small, but every kind has a turn of every sort.
std::vector<Schedule> sound_schedules() {
  std::vector<Schedule> schedules;
  for (const std::string& name : kind_names()) {
    const Kind kind = parse_kind(name);
    schedules.push_back(make_schedule(
        kind, {.ranks = 3, .micro_batches = 4, .updates = is_asynchronous(kind) ? 2 : 1}));
  }
  return schedules;
}

// Breaks each turn of each schedule in turn, and expects a fault.
template <typename Break>
void expect_faults(const Break& break_turn) {
  for (const Schedule& sound : sound_schedules()) {
    for (size_t rank = 0; rank < sound.turns.size(); ++rank) {
      for (size_t i = 0; i < sound.turns[rank].size(); ++i) {
        Schedule broken = sound;
        break_turn(broken, rank, i);
        EXPECT_NE(find_fault(broken), "") << "rank " << rank << ", turn " << i;
      }
    }
  }
}

auto at(std::vector<Turn>& turns, size_t i) {
  return turns.begin() + static_cast<ptrdiff_t>(i);
}

TEST(FindFault, FindsAMissingTurn) {
  expect_faults([](Schedule& schedule, size_t rank, size_t i) {
    schedule.turns[rank].erase(at(schedule.turns[rank], i));
  });
}

TEST(FindFault, FindsADoubledTurn) {
  expect_faults([](Schedule& schedule, size_t rank, size_t i) {
    std::vector<Turn>& turns = schedule.turns[rank];
    turns.insert(at(turns, i), Turn(turns[i]));
  });
  expect_faults([](Schedule& schedule, size_t rank, size_t i) {
    schedule.turns[rank].push_back(Turn(schedule.turns[rank][i]));
  });
}

TEST(FindFault, FindsATurnOnTheWrongRank) {
  expect_faults([](Schedule& schedule, size_t rank, size_t i) {
    std::vector<Turn>& turns = schedule.turns[rank];
    std::vector<Turn>& others = schedule.turns[(rank + 1) % schedule.turns.size()];
    others.insert(at(others, std::min(i, others.size())), turns[i]);
    turns.erase(at(turns, i));
  });
}

TEST(FindFault, FindsTwoMicroBatchesSwapped) {
  expect_faults([](Schedule& schedule, size_t rank, size_t i) {
    Turn& turn = schedule.turns[rank][i];
    const int32_t other = turn.micro_batch == 0 ? 1 : turn.micro_batch - 1;
    for (Turn& candidate : schedule.turns[rank]) {
      if (candidate.phase == turn.phase && candidate.stage == turn.stage &&
          candidate.micro_batch == other) {
        std::swap(turn.micro_batch, candidate.micro_batch);
        return;
      }
    }
    FAIL() << "nothing to swap with";
  });
}

TEST(FindFault, NamesTheMicroBatchThatComesFirst) {
  Schedule schedule = make_schedule(Kind::GPipe, 1, 2);
  std::swap(schedule.turns[0][2], schedule.turns[0][3]);
  EXPECT_EQ(find_fault(schedule),
            "rank 0, backward of micro-batch 1 at stage 0: micro-batch 0 comes first");
}

TEST(FindFault, FindsABackwardBeforeItsForward) {
  Schedule schedule = make_schedule(Kind::OneFOneB, 1, 1);
  std::swap(schedule.turns[0][0], schedule.turns[0][1]);
  EXPECT_EQ(find_fault(schedule),
            "rank 0, backward of micro-batch 0 at stage 0: its forward has not been run");
}

TEST(FindFault, FindsASplitBackwardInTheWrongOrder) {
  Schedule schedule = make_schedule(Kind::ZeroBubbleH1, 1, 1);
  std::swap(schedule.turns[0][1], schedule.turns[0][2]);
  EXPECT_EQ(find_fault(schedule),
            "rank 0, backward-weight of micro-batch 0 at stage 0: its backward-input has not been "
            "run");
}

TEST(FindFault, FindsRanksThatWaitInACircle) {
  // Each list is sound by itself, but rank 0 wants a gradient before it gives rank 1 the forward
  // that rank 1 runs first.
  using enum Phase;
  const Schedule schedule{
      .micro_batches = 2,
      .rank_of = {0, 1},
      .turns = {{{Forward, 0, 0}, {Backward, 0, 0}, {Forward, 0, 1}, {Backward, 0, 1}},
                {{Forward, 1, 0}, {Forward, 1, 1}, {Backward, 1, 0}, {Backward, 1, 1}}}};
  EXPECT_EQ(find_fault(schedule),
            "ranks wait for each other in a circle: rank 0 (backward of micro-batch 0 at stage 0) "
            "for rank 1, rank 1 (forward of micro-batch 1 at stage 1) for rank 0");
}

TEST(FindFault, NamesTheCircleAndNotThoseWhoWaitForIt) {
  using enum Phase;
  const Schedule schedule{
      .micro_batches = 2,
      .rank_of = {0, 1, 2},
      .turns = {{{Forward, 0, 0}, {Forward, 0, 1}, {Backward, 0, 0}, {Backward, 0, 1}},
                {{Forward, 1, 0}, {Backward, 1, 0}, {Forward, 1, 1}, {Backward, 1, 1}},
                {{Forward, 2, 0}, {Forward, 2, 1}, {Backward, 2, 0}, {Backward, 2, 1}}}};
  EXPECT_EQ(find_fault(schedule),
            "ranks wait for each other in a circle: rank 1 (backward of micro-batch 0 at stage 1) "
            "for rank 2, rank 2 (forward of micro-batch 1 at stage 2) for rank 1");
}

TEST(FindFault, FindsARankThatWaitsForItself) {
  using enum Phase;
  const Schedule schedule{
      .micro_batches = 1,
      .rank_of = {0, 0},
      .turns = {{{Forward, 1, 0}, {Forward, 0, 0}, {Backward, 1, 0}, {Backward, 0, 0}}}};
  EXPECT_EQ(find_fault(schedule),
            "ranks wait for each other in a circle: rank 0 (forward of micro-batch 0 at stage 1) "
            "for rank 0");
}

TEST(FindFault, AcceptsStagesThatDifferInWhetherTheySplit) {
  using enum Phase;
  const Schedule schedule{
      .micro_batches = 1,
      .rank_of = {0, 1},
      .turns = {{{Forward, 0, 0}, {Backward, 0, 0}},
                {{Forward, 1, 0}, {BackwardInput, 1, 0}, {BackwardWeight, 1, 0}}}};
  EXPECT_EQ(find_fault(schedule), "");
}

TEST(FindFault, FindsNumbersOutOfRange) {
  const Schedule sound = make_schedule(Kind::OneFOneB, 2, 2);
  Schedule stage = sound;
  stage.turns[0][0].stage = 2;
  EXPECT_EQ(find_fault(stage), "rank 0, forward of micro-batch 0 at stage 2: there are 2 stages");
  Schedule micro_batch = sound;
  micro_batch.turns[1][0].micro_batch = -1;
  EXPECT_EQ(find_fault(micro_batch),
            "rank 1, forward of micro-batch -1 at stage 1: there are 2 micro-batches");
  Schedule rank = sound;
  rank.rank_of[1] = 2;
  EXPECT_EQ(find_fault(rank), "stage 1 is on rank 2 of 2");
  EXPECT_NE(find_fault(Schedule{}), "");
}

}  // namespace

}  // namespace penstock::schedule
