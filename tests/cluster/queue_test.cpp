#include "penstock/cluster/queue.h"

#include <gtest/gtest.h>

namespace penstock::cluster {
namespace {

TEST(SlurmTime, ReadsWhatSqueueWrites) {
  EXPECT_EQ(parse_slurm_time("0:00"), 0);
  EXPECT_EQ(parse_slurm_time("59:07"), 59 * 60 + 7);
  EXPECT_EQ(parse_slurm_time("1:59:07"), 3600 + 59 * 60 + 7);
  EXPECT_EQ(parse_slurm_time("2-03:04:05"), ((2 * 24 + 3) * 60 + 4) * 60 + 5);
  for (const char* text :
       {"UNLIMITED", "NOT_SET", "INVALID", "", "12", "a:b", "1:2:3:4", "-1:00"}) {
    EXPECT_EQ(parse_slurm_time(text), std::nullopt) << text;
  }
}

TEST(Queue, HasTheJobsWithARunOfOurs) {
  const std::vector<QueuedJob> jobs = read_queue(
      "12|RUNNING|1:30:00|None|penstock:/home/me/runs/a|b  \n"
      "13|PENDING|2:00:00|Resources|(null)\n"
      "14|PENDING|UNLIMITED|Priority|penstock:/home/me/runs/c\n"
      "what is this\n"
      "\n");
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].id, "12");
  EXPECT_EQ(jobs[0].state, "RUNNING");
  EXPECT_EQ(jobs[0].left_seconds, 5400);
  EXPECT_EQ(jobs[0].run_folder, "/home/me/runs/a|b");
  EXPECT_EQ(jobs[1].reason, "Priority");
  EXPECT_EQ(jobs[1].left_seconds, std::nullopt);
  EXPECT_TRUE(jobs[1].is_unlimited);
  EXPECT_FALSE(jobs[0].is_unlimited);
  EXPECT_EQ(find_job(jobs, "/home/me/runs/c"), &jobs[1]);
  EXPECT_EQ(find_job(jobs, "/home/me/runs"), nullptr);
}

TEST(Queue, KnowsAFolderHoweverItIsWritten) {
  const std::string folder = folder_of_run("runs/a");
  EXPECT_EQ(folder, (std::filesystem::current_path() / "runs/a").string());
  for (const char* name : {"runs/a/", "runs/a//", "./runs/../runs/a", "runs/a/."}) {
    EXPECT_EQ(folder_of_run(name), folder) << name;
  }
  EXPECT_EQ(folder_of_run("/"), "/");
  EXPECT_EQ(folder_of_run("/tmp/"), folder_of_run("/tmp"));
}

}  // namespace
}  // namespace penstock::cluster
