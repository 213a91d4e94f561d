#include "penstock/report/allreduce_text.h"

#include <gtest/gtest.h>

namespace penstock::report {
namespace {

using comm::Algorithm;

TEST(AllReduceText, MarksTheFastestOfEachSize) {
  const std::vector<comm::AllReduceTime> times = {{Algorithm::Tree, 1024, 1e-4},
                                                  {Algorithm::Ring, 1024, 2e-4},
                                                  {Algorithm::Tree, 1 << 20, 4e-3},
                                                  {Algorithm::Ring, 1 << 20, 2e-3}};
  plan::LinkCosts fitted{.ranks = 4};
  fitted.algorithms[Algorithm::Tree] = {25e-6, 1e9};
  fitted.algorithms[Algorithm::Ring] = {12.34e-6, 2.5e9};
  EXPECT_EQ(all_reduce_text(times, fitted),
            "     ms   tree    ring\n"
            "-----------------------\n"
            "1.0 KiB  0.100*  0.200\n"
            "1.0 MiB  4.000   2.000*\n"
            "\n"
            "   GB/s   tree    ring\n"
            "-----------------------\n"
            "1.0 KiB  0.010*  0.005\n"
            "1.0 MiB  0.262   0.524*\n"
            "\n"
            "fitted  steps  us a step  GB/s sent\n"
            "-----------------------------------\n"
            "tree        4       25.0       1.00\n"
            "ring        6       12.3       2.50\n");
}

TEST(AllReduceText, OfNothingIsNothing) {
  EXPECT_EQ(all_reduce_text({}, {}), "");
}

}  // namespace
}  // namespace penstock::report
