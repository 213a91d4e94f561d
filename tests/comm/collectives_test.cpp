#include "penstock/comm/collectives.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/comm/collective_traffic.h"
#include "penstock/comm/local.h"
#include "penstock/comm/sub_group.h"

#include "comm/collective_cases.h"
#include "comm/seconds.h"
#include "comm/two_threads.h"

namespace penstock::comm {
namespace {

using test::words;

class CollectivesOver : public testing::TestWithParam<int32_t> {};

TEST_P(CollectivesOver, GiveTheSumsAndSendWhatTheFormulasSay) {
  run_local(GetParam(), [](Group& group) {
    group.set_timeout(60);
    test::check_collectives(group, {0, 1, 3, 7, 1000, 4097, 65537});
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesOver, testing::Range(1, 10));

// More parts under way than a sender may be ahead.
TEST(Collectives, GoOnWhereAMessageIsManyTimesTheStaging) {
  run_local(3, [](Group& group) {
    group.set_timeout(60);
    test::check_collectives(group, {600'001});
  });
}

TEST(Collectives, MixWithNothingElseOfTheirGroup) {
  run_local(6, [](Group& job) {
    const std::unique_ptr<Group> half = split(job, job.rank() % 2, words("halves"));
    const double value = job.rank();
    Ticket ticket = half->send((half->rank() + 1) % 3, 0, &value, sizeof(value));
    test::check_collectives(*half, {1000});
    double received = 0;
    half->receive((half->rank() + 2) % 3, 0, &received, sizeof(received), words("a value"));
    EXPECT_EQ(received, (job.rank() + 4) % 6);
    half->wait(ticket, words("a value"));
  });
}

TEST(Collectives, BelongToASecondThreadWhileTheFirstUsesTheGroup) {
  run_local(4, [](Group& job) { test::use_two_threads(job); });
}

std::string line_of(int32_t ranks, const std::function<void(Group&)>& work) {
  try {
    run_local(ranks, work);
  } catch (const Error& error) {
    return test::without_seconds(error.what());
  }
  return "";
}

void reduce_some(Group& group, Algorithm algorithm) {
  std::vector<std::byte> staging(static_cast<size_t>(Collectives::kLeastStaging));
  std::vector<float> data(1000, 1.0F);
  Collectives collectives(group, 0, staging);
  collectives.all_reduce(data.data(), 1000, Element::Float32, algorithm, words("bucket 3"));
}

TEST(Collectives, EndWithTheLineOfARankThatFails) {
  for (const Algorithm algorithm : kAlgorithms) {
    const std::string line = line_of(3, [&](Group& group) {
      if (group.rank() == 1) {
        throw OutOfMemory("no room for bucket 3");
      }
      reduce_some(group, algorithm);
    });
    EXPECT_EQ(line, "no room for bucket 3") << algorithm_name(algorithm);
  }
}

TEST(Collectives, EndAtTheTimeOutAndNameWhomTheyWaitFor) {
  for (const Algorithm algorithm : kAlgorithms) {
    const std::string line = line_of(2, [&](Group& group) {
      if (group.rank() == 0) {
        group.set_timeout(0.1);
        reduce_some(group, algorithm);
      } else {
        char byte = 0;
        group.receive(0, 5, &byte, 1, words("nothing"));
      }
    });
    EXPECT_EQ(line, "rank 0 has waited N s for rank 1: bucket 3") << algorithm_name(algorithm);
  }
}

TEST(Collectives, RefuseWhatCannotBe) {
  run_local(1, [](Group& group) {
    std::vector<std::byte> staging(static_cast<size_t>(Collectives::kLeastStaging));
    EXPECT_THROW(Collectives(group, 0, std::span(staging).first(1000)), InternalError);
    EXPECT_THROW(Collectives(group, 0, std::span(staging).subspan(1)), InternalError);
    Collectives collectives(group, 0, staging);
    float value = 0;
    const auto reduce_scatter = [&](const std::vector<int64_t>& cuts) {
      collectives.reduce_scatter(&value, cuts, Element::Float32, Algorithm::Ring, words("it"));
    };
    EXPECT_THROW(reduce_scatter({0, 1, 1}), InternalError);
    EXPECT_THROW(reduce_scatter({1, 1}), InternalError);
    EXPECT_THROW(reduce_scatter({0, -1}), InternalError);
    EXPECT_THROW(collectives.broadcast(1, &value, 4, Algorithm::Ring, words("it")), InternalError);
    EXPECT_THROW(collectives.all_reduce(&value, -1, Element::Float32, Algorithm::Ring, words("it")),
                 InternalError);
  });
}

TEST(Collectives, HaveNamesThatAreReadBack) {
  for (const Algorithm algorithm : kAlgorithms) {
    EXPECT_EQ(parse_algorithm(algorithm_name(algorithm)), algorithm);
  }
  EXPECT_EQ(algorithm_name(Algorithm::Butterfly), "butterfly");
  EXPECT_EQ(parse_algorithm("rings"), std::nullopt);
}

TEST(Collectives, CutEvenlyWithTheLongerChunksFirst) {
  EXPECT_EQ(even_cuts(7, 3), (std::vector<int64_t>{0, 3, 5, 7}));
  EXPECT_EQ(even_cuts(1, 3), (std::vector<int64_t>{0, 1, 1, 1}));
  EXPECT_EQ(even_cuts(0, 2), (std::vector<int64_t>{0, 0, 0}));
}

struct Formula {
  Algorithm algorithm;
  int32_t size;
  int64_t bytes;  // of rank 0, for 840 float32
  int32_t steps;
};

// The table of docs/collectives.md, in numbers.
TEST(CollectiveTraffic, OfAnAllReduceIsThatOfTheTable) {
  constexpr int64_t kBytes = 3360;
  for (const Formula& formula : {Formula{Algorithm::Naive, 4, 3 * kBytes, 6},
                                 Formula{Algorithm::Tree, 4, 2 * kBytes, 4},
                                 Formula{Algorithm::Tree, 5, 3 * kBytes, 6},
                                 Formula{Algorithm::Butterfly, 4, 2 * kBytes * 3 / 4, 4},
                                 Formula{Algorithm::Butterfly, 5, 2 * kBytes * 3 / 4 + kBytes, 6},
                                 Formula{Algorithm::Ring, 4, 2 * kBytes * 3 / 4, 6},
                                 Formula{Algorithm::Direct, 4, 2 * kBytes * 3 / 4, 2},
                                 Formula{Algorithm::Own, 4, 2 * kBytes * 3 / 4, 6},
                                 Formula{Algorithm::Direct, 7, 2 * kBytes * 6 / 7, 2},
                                 Formula{Algorithm::Ring, 1, 0, 0}}) {
    const Traffic traffic =
        all_reduce_traffic(formula.algorithm, 0, formula.size, 840, Element::Float32);
    EXPECT_EQ(traffic.bytes, formula.bytes) << algorithm_name(formula.algorithm) << formula.size;
    EXPECT_EQ(traffic.steps, formula.steps) << algorithm_name(formula.algorithm) << formula.size;
  }
}

// Whatever the algorithm, every rank but the root must get the bytes once: what is sent in all.
TEST(CollectiveTraffic, OfABroadcastReachesAllRanks) {
  for (const Algorithm algorithm : {Algorithm::Naive, Algorithm::Tree, Algorithm::Ring}) {
    for (int32_t size = 1; size <= 9; ++size) {
      int64_t sum = 0;
      for (int32_t rank = 0; rank < size; ++rank) {
        sum += broadcast_traffic(algorithm, size / 2, rank, size, 100).bytes;
      }
      EXPECT_EQ(sum, 100 * (size - 1)) << algorithm_name(algorithm) << size;
    }
  }
}

}  // namespace
}  // namespace penstock::comm
