#include "penstock/cluster/job_list.h"

#include <fstream>
#include <sys/stat.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/temp_folder.h"

namespace penstock::cluster {
namespace {

namespace fs = std::filesystem;

class JobList : public ::testing::Test {
 protected:
  fs::path make_run(const std::string& name,
                    const std::string& status,
                    const std::string& metrics) {
    const fs::path run = folder_.path() / name;
    fs::create_directories(run);
    if (!status.empty()) {
      std::ofstream(run / "status.json") << status;
    }
    std::ofstream(run / "metrics.jsonl") << metrics;
    return run;
  }

  test::TempFolder folder_;
};

TEST_F(JobList, ReadsTheLastStepThatIsWhole) {
  const fs::path run = make_run("a",
                                R"({"state": "running", "step": 3})",
                                "{\"step\": 1, \"loss\": 5.5, \"lr\": 0.1}\n"
                                "{\"step\": 2, \"loss\": 5.25, \"lr\": 0.1}\n"
                                "{\"step\": 2, \"validation_loss\": 5.0}\n"
                                "{\"step\": 3, \"lo");
  const RunProgress progress = read_progress(run);
  EXPECT_EQ(progress.state, "running");
  EXPECT_EQ(progress.step, 2);
  EXPECT_EQ(progress.loss, 5.25);
  EXPECT_TRUE(progress.age_seconds.has_value());
}

TEST_F(JobList, FindsTheLastStepOfLongFiles) {
  std::string metrics;
  for (int step = 1; step <= 5000; ++step) {
    metrics += "{\"step\": " + std::to_string(step) + ", \"loss\": 2.5, \"lr\": 0.001}\n";
  }
  EXPECT_EQ(read_progress(make_run("long", "", metrics)).step, 5000);
}

TEST_F(JobList, KnowsNothingOfWhatIsNotThere) {
  const RunProgress none = read_progress(folder_.path() / "none");
  EXPECT_EQ(none.state, "");
  EXPECT_EQ(none.step, std::nullopt);
  EXPECT_EQ(none.age_seconds, std::nullopt);
  const RunProgress odd =
      read_progress(make_run("odd", "{\"state\": 3", "null\n[]\n\n{\"step\": 1}\n"));
  EXPECT_EQ(odd.state, "");
  EXPECT_EQ(odd.step, std::nullopt);
  const RunProgress nan = read_progress(make_run("nan", "[]", "{\"step\": 7, \"loss\": null}\n"));
  EXPECT_EQ(nan.step, 7);
  EXPECT_EQ(nan.loss, std::nullopt);
}

TEST_F(JobList, ListsTheRunsOfAFolder) {
  make_run("b", "{}", "");
  make_run("a", "", "");
  fs::create_directories(folder_.path() / "no run");
  const std::vector<fs::path> runs = list_runs(folder_.path());
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].filename(), "a");
  EXPECT_EQ(runs[1].filename(), "b");
  EXPECT_TRUE(list_runs(folder_.path() / "none").empty());
}

TEST_F(JobList, JoinsTheQueueWithTheFolders) {
  const fs::path queued =
      make_run("queued", R"({"state": "interrupted"})", "{\"step\": 1200, \"loss\": 2.125}\n");
  const fs::path done =
      make_run("done", R"({"state": "finished"})", "{\"step\": 9, \"loss\": 1}\n");
  const std::vector<QueuedJob> jobs = {
      {"12", "PENDING", "Priority", 3600, queued.string()},
      {"13", "RUNNING", "None", std::nullopt, (folder_.path() / "new").string(), true}};
  const std::vector<JobRow> rows = join_jobs(jobs, {queued, done});
  ASSERT_EQ(rows.size(), 3u);

  const nlohmann::ordered_json json = jobs_json(rows);
  EXPECT_EQ(json[0]["job"], "12");
  EXPECT_EQ(json[0]["queue"], "PENDING");
  EXPECT_EQ(json[0]["reason"], "Priority");
  EXPECT_EQ(json[0]["left_seconds"], 3600);
  EXPECT_EQ(json[0]["state"], "interrupted");
  EXPECT_EQ(json[0]["step"], 1200);
  EXPECT_EQ(json[0]["loss"], 2.125);
  EXPECT_TRUE(json[1]["state"].is_null());
  EXPECT_TRUE(json[1]["left_seconds"].is_null());
  EXPECT_TRUE(json[2]["job"].is_null());
  EXPECT_EQ(json[2]["run"], done.string());

  const std::string text = jobs_text(rows);
  for (const char* words : {"PENDING (Priority)", "1,200", "2.1250", "no limit", "finished"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
  }
}

TEST_F(JobList, KnowsARunByAnyNameOfItsFolder) {
  const fs::path run = make_run("a", "", "");
  const QueuedJob job{"12", "RUNNING", "None", 60, folder_of_run(run)};
  const std::vector<JobRow> rows = join_jobs({job}, {fs::path(run.string() + "/")});
  EXPECT_EQ(rows.size(), 1u);
}

TEST_F(JobList, OnlyAJobWithoutLimitHasNone) {
  const QueuedJob job{"12", "PENDING", "None", std::nullopt, (folder_.path() / "a").string()};
  EXPECT_EQ(jobs_text(join_jobs({job}, {})).find("no limit"), std::string::npos);
}

TEST_F(JobList, NamesAndStatesOfAnyBytes) {
  const fs::path run = make_run("\xff\x1b[2J", R"({"state": "\u001b[2J"})", "");
  const std::vector<JobRow> rows = join_jobs({}, {run});
  EXPECT_EQ(rows[0].progress.state, "");
  const std::string text = jobs_text(rows);
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
  EXPECT_NE(text.find("?[2J"), std::string::npos) << text;
  EXPECT_NE(jobs_json_text(rows).find("\xEF\xBF\xBD\\u001b[2J"), std::string::npos)
      << jobs_json_text(rows);
}

TEST_F(JobList, DoesNotWaitForTheWriterOfAFifo) {
  const fs::path run = folder_.path() / "fifo";
  fs::create_directories(run);
  for (const char* name : {"status.json", "metrics.jsonl"}) {
    ASSERT_EQ(::mkfifo((run / name).c_str(), 0600), 0);
  }
  EXPECT_EQ(read_progress(run).step, std::nullopt);
  EXPECT_FALSE(is_run(run));
}

}  // namespace
}  // namespace penstock::cluster
