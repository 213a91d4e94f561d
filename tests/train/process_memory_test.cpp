#include "penstock/train/process_memory.h"

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/base/text.h"

#include "support/error_text.h"

namespace penstock::train {
namespace {

using test::error_text;

constexpr int64_t kMiB = int64_t{1} << 20;

config::Recipe recipe_with(const std::string& process_memory, const std::string& memory = "") {
  config::Recipe recipe;
  recipe.run.process_memory = process_memory;
  recipe.plan.memory = memory;
  return recipe;
}

TEST(ProcessMemory, LeavesTensorsWhatLibrariesDoNotTake) {
  EXPECT_EQ(within_process_memory(recipe_with(""), 1, 100 * kMiB).plan.memory, "");
  EXPECT_EQ(within_process_memory(recipe_with("", "1GiB"), 1, 100 * kMiB).plan.memory, "1GiB");
  const int64_t room = 1024 * kMiB - 100 * kMiB - kComputingBytes;
  EXPECT_EQ(within_process_memory(recipe_with("1GiB"), 1, 100 * kMiB).plan.memory_bytes(), room);
  EXPECT_EQ(within_process_memory(recipe_with("1GiB"), 1, 100 * kMiB).run.process_memory, "");
  EXPECT_EQ(within_process_memory(recipe_with("1GiB"), 4, 100 * kMiB).plan.memory_bytes(),
            room / 4);
  EXPECT_EQ(within_process_memory(recipe_with("1GiB", "60MiB"), 1, 100 * kMiB).plan.memory,
            "60MiB");
}

TEST(ProcessMemory, WhatDoesNotGoIntoItIsRefused) {
  EXPECT_EQ(
      error_text<ConfigError>([] { within_process_memory(recipe_with("100MiB"), 1, 100 * kMiB); }),
      "run.process_memory = \"100MiB\" is less than the program takes without a model, about "
      "148.0 MiB; say more, or leave it out");
  const std::string text = error_text<ConfigError>(
      [] { within_process_memory(recipe_with("1GiB", "512MiB"), 2, 100 * kMiB); });
  EXPECT_NE(
      text.find("plan.memory = \"512MiB\" does not go into run.process_memory = \"1GiB\", which "
                "leaves each of 2 ranks 438.0 MiB"),
      std::string::npos)
      << text;
}

TEST(ProcessMemory, ANeedIsHeldAgainstTheHostAndUlimit) {
  const Need need{.tensors = 500 * kMiB, .resident = 100 * kMiB};
  const int64_t all = 600 * kMiB + kComputingBytes;
  EXPECT_EQ(missing_room(need, {all, "the machine's memory"}, std::nullopt), "");
  const std::string host = missing_room(need, {all - 1, "the cgroup's limit"}, std::nullopt);
  EXPECT_EQ(
      host.find("does not fit: the step needs about 648.0 MiB (500.0 MiB for tensors, the rest for "
                "libraries), and the cgroup's limit is"),
      0U)
      << host;
  EXPECT_NE(host.find("; try plan.memory = \"511999KiB\""), std::string::npos) << host;
  const MemoryCeiling much{int64_t{1} << 50, "the machine's memory"};
  const int64_t from_now = 500 * kMiB + kComputingBytes;
  EXPECT_EQ(missing_room(need, much, MemoryCeiling{from_now, "ulimit -v"}), "");
  EXPECT_NE(missing_room(need, much, MemoryCeiling{from_now - 1, "ulimit -v"})
                .find("what ulimit -v leaves is 548.0 MiB"),
            std::string::npos);
}

TEST(ProcessMemory, ProcessesOfOneHostAreAddedUp) {
  const Need need{.tensors = 500 * kMiB, .resident = 400 * kMiB, .processes = 4, .ranks = 8};
  const int64_t all = 900 * kMiB + 4 * kComputingBytes;
  EXPECT_EQ(missing_room(need, {all, "the machine's memory"}, std::nullopt), "");
  const std::string text = missing_room(need, {all - 1, "the machine's memory"}, std::nullopt);
  EXPECT_NE(text.find("in 4 processes of this host"), std::string::npos) << text;
  EXPECT_NE(text.find(cat("try plan.memory = \"", (500 * kMiB - 1) / 8 / 1024, "KiB\"")),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace penstock::train
