#include "penstock/plan/link_costs.h"

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/comm/collective_traffic.h"

namespace penstock::plan {
namespace {

using comm::Algorithm;
using comm::AllReduceTime;

constexpr int64_t kMiB = int64_t{1} << 20;

// A ring of 4: 6 steps, and each rank sends 1.5 times the message.
std::vector<AllReduceTime> ring_times(double latency_s, double bytes_per_s) {
  std::vector<AllReduceTime> times;
  for (int64_t bytes = 1024; bytes <= 64 * kMiB; bytes *= 4) {
    times.push_back(
        {Algorithm::Ring, bytes, 6 * latency_s + 1.5 * static_cast<double>(bytes) / bytes_per_s});
  }
  return times;
}

TEST(LinkCosts, AreThoseThatTheTimesWereMadeOf) {
  const LinkCosts costs = fit_links(4, ring_times(20e-6, 2e9));
  const CollectiveCost ring = costs.algorithms.at(Algorithm::Ring);
  EXPECT_NEAR(ring.latency_s, 20e-6, 1e-10);
  EXPECT_NEAR(ring.bytes_per_s, 2e9, 1e3);
  EXPECT_EQ(costs.ranks, 4);
  EXPECT_EQ(costs.algorithms.size(), 1);
}

// Absolute errors would let the largest messages drown the latency.
TEST(LinkCosts, AreFittedToRelativeErrors) {
  std::vector<AllReduceTime> times = ring_times(20e-6, 2e9);
  times.back().seconds *= 1.1;
  EXPECT_NEAR(fit_links(4, times).algorithms.at(Algorithm::Ring).latency_s, 20e-6, 2e-6);
}

TEST(LinkCosts, AreNeverNegative) {
  const std::vector<AllReduceTime> too_steep = {{Algorithm::Ring, 1024, 1e-6},
                                                {Algorithm::Ring, 4096, 1e-3}};
  const CollectiveCost steep = fit_links(4, too_steep).algorithms.at(Algorithm::Ring);
  EXPECT_EQ(steep.latency_s, 0);
  EXPECT_GT(steep.bytes_per_s, 0);
  const std::vector<AllReduceTime> falling = {{Algorithm::Ring, 1024, 1e-3},
                                              {Algorithm::Ring, 4096, 1e-6}};
  const CollectiveCost flat = fit_links(4, falling).algorithms.at(Algorithm::Ring);
  EXPECT_GT(flat.latency_s, 0);
  EXPECT_TRUE(std::isfinite(flat.bytes_per_s));
  EXPECT_GT(flat.bytes_per_s, 0);
}

TEST(LinkCosts, OfOneSizeAreItsBandwidth) {
  const CollectiveCost one =
      fit_links(4, {{Algorithm::Ring, 4 * kMiB, 1e-3}}).algorithms.at(Algorithm::Ring);
  EXPECT_EQ(one.latency_s, 0);
  EXPECT_NEAR(one.bytes_per_s, 1.5 * 4 * kMiB / 1e-3, 1);
}

TEST(LinkCosts, PriceEachCollectiveByItsStepsAndItsBusiestRank) {
  LinkCosts costs{.ranks = 4};
  costs.algorithms[Algorithm::Ring] = {1e-3, 1e6};
  costs.algorithms[Algorithm::Naive] = {1e-3, 1e6};
  EXPECT_NEAR(costs.all_reduce_s(Algorithm::Ring, 4, 4000), 6e-3 + 6000e-6, 1e-12);
  EXPECT_NEAR(costs.reduce_scatter_s(Algorithm::Ring, 4, 4000), 3e-3 + 3000e-6, 1e-12);
  EXPECT_NEAR(costs.all_gather_s(Algorithm::Ring, 4, 4000), 3e-3 + 3000e-6, 1e-12);
  // Rank 0 sends the sum to three.
  EXPECT_NEAR(costs.all_reduce_s(Algorithm::Naive, 4, 4000), 6e-3 + 12000e-6, 1e-12);
  EXPECT_NEAR(costs.all_reduce_s(Algorithm::Ring, 2, 4000), 2e-3 + 4000e-6, 1e-12);
}

TEST(LinkCosts, ChooseTheAlgorithmByTheMessage) {
  LinkCosts costs{.ranks = 4};
  costs.algorithms[Algorithm::Tree] = {10e-6, 1e9};
  costs.algorithms[Algorithm::Ring] = {10e-6, 1e9};
  EXPECT_EQ(costs.best_algorithm(4, 1024), Algorithm::Tree);
  EXPECT_EQ(costs.best_algorithm(4, 64 * kMiB), Algorithm::Ring);
  EXPECT_THROW(LinkCosts{}.best_algorithm(4, 1), InternalError);
}

TEST(LinkCosts, ReadBackAsTheyWereWritten) {
  const std::vector<AllReduceTime> times = ring_times(20e-6, 2e9);
  const LinkCosts costs = fit_links(4, times);
  EXPECT_EQ(parse_links(format_links(costs, times), "links.json"), costs);
  const std::string file = testing::TempDir() + "penstock_links.json";
  std::ofstream(file) << format_links(costs, times);
  EXPECT_EQ(load_links(file), costs);
}

std::string refusal(const std::string& text) {
  try {
    parse_links(text, "links.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(LinkCosts, AreRefusedWithALineThatSaysWhere) {
  EXPECT_NE(refusal("{").find("links.json is not valid JSON"), std::string::npos);
  for (const char* text : {"[]", "{}", R"({"algorithms": 3})", R"({"algorithms": {}})"}) {
    EXPECT_EQ(refusal(text),
              "links.json has no algorithms; write it with penstock bench allreduce --json "
              "links.json");
  }
  const std::string ring = R"({"ring": {"latency_s": 1e-5, "bytes_per_s": 1e9}})";
  EXPECT_EQ(refusal(R"({"algorithms": )" + ring + "}"), "links.json has no ranks");
  EXPECT_EQ(refusal(R"({"ranks": 1, "algorithms": )" + ring + "}"),
            "links.json ranks = 1 is not a number from 2 to 1.04858e+06");
  EXPECT_EQ(
      refusal(R"({"ranks": 4, "algorithms": {"rings": {}}})"),
      "links.json algorithms has \"rings\"; there is naive, tree, butterfly, ring, direct, own");
  EXPECT_EQ(refusal(R"({"ranks": 4, "algorithms": {"ring": {"latency_s": 0}}})"),
            "links.json algorithms.ring has no bytes_per_s");
  EXPECT_EQ(refusal(R"({"ranks": 4, "algorithms": {"ring": {"latency_s": -1, "bytes_per_s": 1}}})"),
            "links.json algorithms.ring latency_s = -1 is not a number from 0 to 1e+06");
  EXPECT_EQ(
      refusal(R"({"ranks": 4, "algorithms": {"ring": {"latency_s": 0, "bytes_per_s": "1"}}})"),
      "links.json algorithms.ring bytes_per_s = \"1\" is not a number from 1 to 1e+15");
}

}  // namespace
}  // namespace penstock::plan
