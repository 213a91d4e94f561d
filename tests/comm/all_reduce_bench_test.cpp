#include "penstock/comm/all_reduce_bench.h"

#include <vector>

#include <gtest/gtest.h>

#include "penstock/comm/local.h"

namespace penstock::comm {
namespace {

TEST(AllReduceBench, GivesAllRanksTheSameTimesOfEverySizeAndAlgorithm) {
  std::vector<std::vector<AllReduceTime>> of_rank(3);
  run_local(3, [&](Group& group) {
    const AllReduceBench bench{
        .sizes = {64, 4096}, .element = Element::BFloat16, .seconds_per_size = 0};
    of_rank[static_cast<size_t>(group.rank())] = measure_all_reduce(group, bench);
  });
  ASSERT_EQ(of_rank[0].size(), 10);  // Own would be Direct again
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(of_rank[0][i].bytes, i < 5 ? 64 : 4096);
    EXPECT_EQ(of_rank[0][i].algorithm, kAlgorithms[i % 5]);
    EXPECT_GT(of_rank[0][i].seconds, 0);
    EXPECT_EQ(of_rank[1][i].seconds, of_rank[0][i].seconds);
    EXPECT_EQ(of_rank[2][i].seconds, of_rank[0][i].seconds);
  }
}

TEST(AllReduceBench, StopsOnAllRanksWhereOneIsStopped) {
  run_local(2, [](Group& group) {
    size_t num_begun = 0;
    AllReduceBench bench{.sizes = {64, 128, 256}, .seconds_per_size = 0};
    bench.on_size = [&](size_t) { ++num_begun; };
    bench.is_stopped = [&] { return group.rank() == 1 && num_begun == 2; };
    EXPECT_EQ(measure_all_reduce(group, bench).size(), 10);
    EXPECT_EQ(num_begun, 2);
    bench.is_stopped = [] { return true; };
    EXPECT_TRUE(measure_all_reduce(group, bench).empty());
  });
}

}  // namespace
}  // namespace penstock::comm
