#include "penstock/checkpoint/together.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/comm/local.h"

#include "support/error_text.h"

namespace penstock::checkpoint {
namespace {

const comm::What kWhat = [] { return std::string("a test"); };

// What each of three ranks throws, with its sort, where these do not fare well.
std::vector<std::string> outcomes(const std::function<void(int32_t)>& work) {
  std::vector<std::string> all(3);
  comm::run_local(3, [&](comm::Group& group) {
    std::string& own = all[static_cast<size_t>(group.rank())];
    try {
      run_together(group, kWhat, [&] { work(group.rank()); });
      own = "well";
    } catch (const FileError& error) {
      own = std::string("file: ") + error.what();
    } catch (const CheckpointError& error) {
      own = std::string("checkpoint: ") + error.what();
    }
  });
  return all;
}

TEST(RunTogether, GoesOnWhereAllDo) {
  EXPECT_EQ(outcomes([](int32_t) {}), std::vector<std::string>(3, "well"));
}

TEST(RunTogether, WhatOneThrowsAllThrow) {
  EXPECT_EQ(outcomes([](int32_t rank) {
              if (rank == 1) {
                throw FileError("disk full");
              }
            }),
            std::vector<std::string>(3, "file: disk full"));
  EXPECT_EQ(outcomes([](int32_t rank) {
              if (rank > 0) {
                throw CheckpointError("bad at " + std::to_string(rank));
              }
            }),
            std::vector<std::string>(3, "checkpoint: bad at 1"));
}

TEST(RunTogether, OtherErrorsEndTheGroup) {
  EXPECT_EQ(test::error_text<InternalError>([] {
              outcomes([](int32_t rank) {
                if (rank == 2) {
                  throw InternalError("a bug");
                }
              });
            }),
            "a bug");
}

TEST(ShareText, GivesTheRootsTextToAll) {
  comm::run_local(3, [](comm::Group& group) {
    const std::string own = group.rank() == 1 ? "from rank 1" : "else";
    EXPECT_EQ(share_text(group, 1, own, kWhat), "from rank 1");
    EXPECT_EQ(share_text(group, 0, group.rank() == 0 ? "" : "else", kWhat), "");
  });
}

}  // namespace
}  // namespace penstock::checkpoint
