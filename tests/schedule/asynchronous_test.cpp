// Pipelines that are not drained for an update: how late gradients are and how many versions of the
// weights a rank has, against formulas that follow from the definitions and not from our turns.
#include <algorithm>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/schedule/clock.h"
#include "penstock/schedule/schedule.h"

#include "support/error_text.h"

namespace penstock::schedule {

namespace {

using penstock::test::error_text;

struct Case {
  Kind kind = Kind::PipeDream;
  int32_t ranks = 1;
  int32_t micro_batches = 1;
  int32_t updates = 1;

  Schedule make() const {
    return make_schedule(kind,
                         {.ranks = ranks, .micro_batches = micro_batches, .updates = updates});
  }
  std::string name(int32_t rank = 0) const {
    return cat(kind_name(kind),
               ", rank ",
               rank,
               " of ",
               ranks,
               ", ",
               micro_batches,
               " micro-batches, ",
               updates,
               " updates");
  }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Kind kind : {Kind::PipeDream, Kind::PipeDream2BW, Kind::PipeMare}) {
    for (int32_t ranks = 1; ranks <= 6; ++ranks) {
      for (int32_t micro_batches = 1; micro_batches <= 6; ++micro_batches) {
        for (int32_t updates = 1; updates <= 7; ++updates) {
          if (kind != Kind::PipeDream2BW || micro_batches >= ranks) {
            cases.push_back({kind, ranks, micro_batches, updates});
          }
        }
      }
    }
  }
  return cases;
}

int32_t divide_up(int32_t a, int32_t b) {
  return (a + b - 1) / b;
}

// Until the gradient of a micro-batch is there, as many others go forward on a rank as there are
// ranks behind it: its weights are late by the updates that those make, as far as there are any.
int32_t expected_delay(const Case& c, int32_t rank) {
  const int32_t behind = c.ranks - 1 - rank;
  const int32_t steady = c.kind == Kind::PipeDream2BW ? 1 : divide_up(behind, c.micro_batches);
  return std::min(steady, c.updates - 1);
}

// PipeDream: the newest weights, and those that micro-batches in flight went forward with. After an
// update the ranks behind have so many of them, less at the end of the segment.
int32_t expected_versions(const Case& c, int32_t rank) {
  if (c.kind == Kind::PipeMare) {
    return 1;
  }
  if (c.kind == Kind::PipeDream2BW) {
    return std::min(2, c.updates);
  }
  const int32_t behind = c.ranks - 1 - rank;
  const int32_t all = c.micro_batches * c.updates;
  size_t most = 1;
  for (int32_t update = 1; update <= c.updates; ++update) {
    std::set<int32_t> versions{update};
    const int32_t first = update * c.micro_batches;
    for (int32_t k = first; k < std::min(first + behind, all); ++k) {
      versions.insert(k < behind ? 0 : (k - behind) / c.micro_batches);
    }
    most = std::max(most, versions.size());
  }
  return static_cast<int32_t>(most);
}

Phase phase_at(const Schedule& schedule, size_t rank, size_t i) {
  return schedule.turns[rank][i].phase;
}

// The first turn of a phase on a rank.
size_t first_of(const Schedule& schedule, size_t rank, Phase phase) {
  size_t i = 0;
  while (phase_at(schedule, rank, i) != phase) {
    ++i;
  }
  return i;
}

// Two ranks with two micro-batches in each of three updates.
Schedule small_schedule() {
  return Case{Kind::PipeDream, 2, 2, 3}.make();
}

}  // namespace

TEST(AsynchronousSchedule, HasNoFaultAtAnySize) {
  for (const Case& c : all_cases()) {
    const Schedule schedule = c.make();
    ASSERT_EQ(find_fault(schedule), "") << c.name();
    EXPECT_EQ(schedule.micro_batches, c.micro_batches * c.updates) << c.name();
    EXPECT_EQ(schedule.updates, c.updates) << c.name();
    for (const std::vector<Turn>& turns : schedule.turns) {
      EXPECT_EQ(std::ranges::count(turns, Phase::Update, &Turn::phase), c.updates) << c.name();
    }
  }
}

TEST(AsynchronousSchedule, HasTheOrderOfOneFOneB) {
  for (const Case& c : all_cases()) {
    const Schedule found = c.make();
    const Schedule rest = without_updates(found);
    const Schedule expected = make_schedule(Kind::OneFOneB, c.ranks, c.micro_batches * c.updates);
    EXPECT_EQ(most_in_flight(found), most_in_flight(expected)) << c.name();
    for (size_t rank = 0; rank < rest.turns.size(); ++rank) {
      ASSERT_EQ(rest.turns[rank].size(), expected.turns[rank].size());
      for (size_t i = 0; i < rest.turns[rank].size(); ++i) {
        Turn turn = rest.turns[rank][i];
        turn.version = kNewest;
        EXPECT_EQ(turn, expected.turns[rank][i]) << c.name();
      }
    }
  }
}

TEST(AsynchronousSchedule, IsAsLateAsItsFormulaSays) {
  for (const Case& c : all_cases()) {
    const std::vector<int32_t> delays = most_delayed(c.make());
    for (int32_t rank = 0; rank < c.ranks; ++rank) {
      EXPECT_EQ(delays[static_cast<size_t>(rank)], expected_delay(c, rank)) << c.name(rank);
    }
  }
}

TEST(AsynchronousSchedule, HasTheVersionsThatItsFormulaSays) {
  for (const Case& c : all_cases()) {
    const std::vector<int32_t> versions = most_versions(c.make());
    for (int32_t rank = 0; rank < c.ranks; ++rank) {
      EXPECT_EQ(versions[static_cast<size_t>(rank)], expected_versions(c, rank)) << c.name(rank);
    }
  }
}

// As published: with an update for each micro-batch, rank r of p has p - r versions.
TEST(AsynchronousSchedule, PipeDreamHasAVersionForEachRankFromHereOn) {
  const Schedule schedule = Case{Kind::PipeDream, 4, 1, 8}.make();
  EXPECT_EQ(most_delayed(schedule), (std::vector<int32_t>{3, 2, 1, 0}));
  EXPECT_EQ(most_versions(schedule), (std::vector<int32_t>{4, 3, 2, 1}));
}

// A batch works with the same weights at all stages, one update back.
TEST(AsynchronousSchedule, TwoVersionsAreTheSameOnAllRanks) {
  for (const Case& c : all_cases()) {
    if (c.kind != Kind::PipeDream2BW) {
      continue;
    }
    for (const std::vector<Turn>& turns : c.make().turns) {
      for (const Turn& turn : turns) {
        if (turn.phase != Phase::Update) {
          EXPECT_EQ(turn.version, std::max(0, turn.micro_batch / c.micro_batches - 1)) << c.name();
        }
      }
    }
  }
}

// PipeDream goes back with what it went forward with.
TEST(AsynchronousSchedule, PipeDreamKeepsTheVersionOfAMicroBatch) {
  const Schedule schedule = Case{Kind::PipeDream, 4, 3, 5}.make();
  for (const std::vector<Turn>& turns : schedule.turns) {
    std::vector<int32_t> versions;
    for (const Turn& turn : turns) {
      if (turn.phase == Phase::Forward) {
        versions.push_back(turn.version);
      } else if (turn.phase == Phase::Backward) {
        EXPECT_EQ(turn.version, versions[static_cast<size_t>(turn.micro_batch)]);
      }
    }
  }
}

TEST(AsynchronousSchedule, SynchronousOnesAreNeverLate) {
  const Schedule schedule = make_schedule(Kind::OneFOneB, 4, 8);
  EXPECT_EQ(most_delayed(schedule), std::vector<int32_t>(4, 0));
  EXPECT_EQ(most_versions(schedule), std::vector<int32_t>(4, 1));
}

TEST(AsynchronousSchedule, AnUpdateTakesItsTime) {
  const Schedule schedule = Case{Kind::PipeDream, 1, 2, 3}.make();
  EXPECT_DOUBLE_EQ(run_clock(schedule, PhaseSeconds{1, 2, 0, 0, 10}, 0).seconds, 6 * 3 + 3 * 10);
}

TEST(AsynchronousSchedule, RefusesTwoVersionsForTooFewMicroBatches) {
  EXPECT_EQ(error_text<ConfigError>([] {
              Case{Kind::PipeDream2BW, 4, 3, 2}.make();
            }),
            "2bw has two versions of the weights, which takes a micro-batch for each of 4 ranks, "
            "and there are 3; use at least 4 micro-batches, or pipedream");
}

TEST(AsynchronousSchedule, RefusesNoUpdatesAndAbsurdlyMany) {
  EXPECT_EQ(error_text<ConfigError>([] {
              Case{Kind::PipeDream, 2, 1, 0}.make();
            }),
            "a pipeline with 0 updates: it takes at least 1");
  const std::string text = error_text<ConfigError>([] {
    Case{Kind::PipeMare, 4, 1000, 100'000'000}.make();
  });
  EXPECT_NE(text.find("too large to schedule"), std::string::npos) << text;
  EXPECT_THROW((Case{Kind::OneFOneB, 2, 2, 2}.make()), InternalError);
}

TEST(FindAsynchronousFault, FindsAnUpdateThatComesTooEarly) {
  Schedule schedule = small_schedule();
  const size_t update = first_of(schedule, 1, Phase::Update);
  std::swap(schedule.turns[1][update], schedule.turns[1][update - 1]);
  EXPECT_EQ(
      find_fault(schedule),
      "rank 1, update 0 at stage 1: it takes the gradients of 2 micro-batches, and those of 1 "
      "are there");
}

TEST(FindAsynchronousFault, FindsAnUpdateThatComesTooLate) {
  Schedule schedule = small_schedule();
  std::vector<Turn>& turns = schedule.turns[1];
  const size_t update = first_of(schedule, 1, Phase::Update);
  const Turn late = turns[update];
  turns.erase(turns.begin() + static_cast<ptrdiff_t>(update));
  for (Turn& turn : turns) {
    turn.version = kNewest;  // so that nothing else is wrong
  }
  turns.insert(turns.begin() + static_cast<ptrdiff_t>(update) + 2, late);
  EXPECT_EQ(
      find_fault(schedule),
      "rank 1, update 0 at stage 1: it takes the gradients of 2 micro-batches, and those of 3 "
      "are there");
}

TEST(FindAsynchronousFault, FindsAMissingUpdate) {
  Schedule first = small_schedule();
  std::vector<Turn>& turns = first.turns[1];
  turns.erase(turns.begin() + static_cast<ptrdiff_t>(first_of(first, 1, Phase::Update)));
  for (Turn& turn : turns) {
    turn.version = kNewest;
  }
  EXPECT_EQ(find_fault(first), "rank 1, update 1 at stage 1: update 0 comes first");

  Schedule last = small_schedule();
  last.turns[1].pop_back();
  EXPECT_EQ(find_fault(last), "stage 1 has 2 of 3 updates");

  Schedule all = small_schedule();
  std::erase_if(all.turns[1], [](const Turn& turn) { return turn.phase == Phase::Update; });
  for (Turn& turn : all.turns[1]) {
    turn.version = kNewest;
  }
  EXPECT_EQ(find_fault(all), "stage 1 has 0 of 3 updates");
}

TEST(FindAsynchronousFault, FindsWeightsThatAreToCome) {
  Schedule schedule = small_schedule();
  schedule.turns[0][0].version = 1;
  EXPECT_EQ(find_fault(schedule),
            "rank 0, forward of micro-batch 0 at stage 0: it wants weights after 1 updates, and "
            "there have been 0");
}

TEST(FindAsynchronousFault, FindsNumbersOutOfRange) {
  Schedule schedule = small_schedule();
  schedule.turns[0].back().micro_batch = 3;
  EXPECT_EQ(find_fault(schedule), "rank 0, update 3 at stage 0: there are 3 updates");
  schedule = small_schedule();
  schedule.updates = 4;
  EXPECT_EQ(find_fault(schedule), "4 updates for 6 micro-batches");
}

TEST(FindAsynchronousFault, AcceptsASegmentWithoutItsUpdates) {
  EXPECT_EQ(find_fault(without_updates(Case{Kind::PipeMare, 3, 2, 3}.make())), "");
}

}  // namespace penstock::schedule
