#include "penstock/comm/sub_group.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/comm/local.h"

#include "comm/seconds.h"
#include "comm/traffic.h"

namespace penstock::comm {
namespace {

using test::words;

// A grid of 2 x 3 ranks, by rows and by columns.
struct Grid {
  explicit Grid(Group& job)
      : row(split(job, job.rank() / 3, words("rows"))),
        column(split(job, job.rank() % 3, words("columns"))) {}

  std::unique_ptr<Group> row, column;
};

int64_t exchange(Group& group, int32_t peer, int64_t value) {
  Ticket ticket = group.send(peer, 7, &value, sizeof(value));
  int64_t other = 0;
  group.receive(peer, 7, &other, sizeof(other), words("a number"));
  group.wait(ticket, words("a number"));
  return other;
}

TEST(SubGroup, NumbersItsRanksInTheOrderOfTheJob) {
  run_local(6, [](Group& job) {
    const Grid grid(job);
    EXPECT_EQ(grid.row->size(), 3);
    EXPECT_EQ(grid.row->rank(), job.rank() % 3);
    EXPECT_EQ(grid.column->size(), 2);
    EXPECT_EQ(grid.column->rank(), job.rank() / 3);
    EXPECT_TRUE(grid.row->shares_memory());
  });
}

TEST(SubGroup, HasMessagesOfItsOwn) {
  run_local(6, [](Group& job) {
    const Grid grid(job);
    // The same two ranks, the same channel, three groups: what is sent first is received last.
    const std::unique_ptr<Group> pair = split(*grid.row, grid.row->rank() / 2, words("pairs"));
    if (pair->size() == 2) {
      const int32_t peer = 1 - pair->rank();
      const int64_t values[] = {10 + job.rank(), 20 + job.rank(), 30 + job.rank()};
      const int32_t other = job.rank() / 3 * 3 + peer;
      Ticket tickets[] = {job.send(other, 7, &values[0], 8),
                          grid.row->send(peer, 7, &values[1], 8),
                          pair->send(peer, 7, &values[2], 8)};
      int64_t found[3] = {};
      pair->receive(peer, 7, &found[2], 8, words("of the pair"));
      grid.row->receive(peer, 7, &found[1], 8, words("of the row"));
      job.receive(other, 7, &found[0], 8, words("of the job"));
      EXPECT_EQ(found[0], 10 + other);
      EXPECT_EQ(found[1], 20 + other);
      EXPECT_EQ(found[2], 30 + other);
      for (Ticket& ticket : tickets) {
        job.wait(ticket, words("a send"));
      }
    }
  });
}

TEST(SubGroup, GathersAndBroadcastsAmongItsRanks) {
  run_local(6, [](Group& job) {
    const Grid grid(job);
    const double mine = job.rank();
    const std::vector<double> column{mine < 3 ? mine : mine - 3, mine < 3 ? mine + 3 : mine};
    EXPECT_EQ(grid.column->all_gather({&mine, 1}, words("values")), column);
    int64_t value = job.rank();
    grid.row->broadcast(1, &value, sizeof(value), words("a value"));
    EXPECT_EQ(value, job.rank() / 3 * 3 + 1);
    test::random_traffic(*grid.row, 10);
    test::random_traffic(*grid.column, 10);
  });
}

// Ranks that have been in more groups than others count on from the highest.
TEST(SubGroup, MayBeMadeByRanksWithDifferentPasts) {
  run_local(4, [](Group& job) {
    const std::unique_ptr<Group> half = split(job, job.rank() / 2, words("halves"));
    std::vector<std::unique_ptr<Group>> more;
    for (int i = 0; half->rank() >= 0 && i < 3 * (job.rank() / 2); ++i) {
      more.push_back(split(*half, 0, words("again")));
    }
    const std::unique_ptr<Group> across = split(job, job.rank() % 2, words("across"));
    EXPECT_EQ(exchange(*across, 1 - across->rank(), 100 + job.rank()), 100 + (job.rank() + 2) % 4);
  });
}

TEST(SubGroup, ThatFailsEndsTheJobAndNamesRanksAsTheJobDoes) {
  std::string line;
  try {
    run_local(4, [](Group& job) {
      const std::unique_ptr<Group> half = split(job, job.rank() / 2, words("halves"));
      if (job.rank() == 2) {
        job.set_timeout(0.2);
        int64_t value = 0;
        half->receive(1, 0, &value, sizeof(value), words("what nobody sends"));
      }
      job.barrier(words("the end"));
    });
  } catch (const Error& error) {
    line = test::without_seconds(error.what());
  }
  EXPECT_NE(line.find("rank 2"), std::string::npos) << line;
  EXPECT_NE(line.find("rank 3"), std::string::npos) << line;
  EXPECT_NE(line.find("what nobody sends"), std::string::npos) << line;
}

}  // namespace
}  // namespace penstock::comm
