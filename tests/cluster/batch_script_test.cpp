#include "penstock/cluster/batch_script.h"

#include <gtest/gtest.h>

#include "penstock/base/error.h"

namespace penstock::cluster {
namespace {

BatchJob two_nodes() {
  BatchJob job;
  job.program = "/opt/penstock/bin/penstock";
  job.recipe = "recipes/book.toml";
  job.settings = {"train.lr=1e-3", "data.path=my book.txt"};
  job.folder = "/home/me";
  job.run_folder = "/home/me/runs/book";
  job.name = "book";
  job.nodes = 2;
  job.tasks = 4;
  job.gpus = 4;
  job.cpus = 8;
  job.hours = 2;
  return job;
}

bool has_line(const std::string& text, const std::string& line) {
  return text.find("\n" + line + "\n") != std::string::npos;
}

TEST(BatchScript, AsksForWhatTheJobNeeds) {
  BatchJob job = two_nodes();
  job.partition = "gpu_p2";
  job.account = "abc@v100";
  const std::string script = batch_script(job);
  EXPECT_EQ(script.substr(0, 12), "#!/bin/bash\n");
  for (const char* line : {"#SBATCH --job-name=book",
                           "#SBATCH --comment=penstock:/home/me/runs/book",
                           "#SBATCH --chdir=/home/me",
                           "#SBATCH --nodes=2",
                           "#SBATCH --ntasks-per-node=4",
                           "#SBATCH --gpus-per-node=4",
                           "#SBATCH --cpus-per-task=8",
                           "#SBATCH --time=02:00:00",
                           "#SBATCH --partition=gpu_p2",
                           "#SBATCH --account=abc@v100",
                           "#SBATCH --signal=USR1@300",
                           "#SBATCH --requeue",
                           "#SBATCH --output=/home/me/runs/book/logs/job-%j.txt"}) {
    EXPECT_TRUE(has_line(script, line)) << line << "\n" << script;
  }
}

TEST(BatchScript, LeavesToTheClusterWhatIsNotAskedFor) {
  BatchJob job = two_nodes();
  job.gpus = 0;
  job.cpus = 0;
  const std::string script = batch_script(job);
  for (const char* word : {"gpu", "cpus", "partition", "account"}) {
    EXPECT_EQ(script.find(word), std::string::npos) << word << "\n" << script;
  }
}

TEST(BatchScript, StartsTheRanksAndGoesOnFromTheLatestCheckpoint) {
  const std::string script = batch_script(two_nodes());
  EXPECT_NE(script.find("srun --mpi=pmix --kill-on-bad-exit=1 --cpus-per-task=8 --gpu-bind=none "
                        "--open-mode=append --output=\"$run\"/logs/job-%j-rank-%t.txt \\\n"
                        "  /opt/penstock/bin/penstock train recipes/book.toml "
                        "--set train.lr=1e-3 --set 'data.path=my book.txt' --resume auto\n"),
            std::string::npos)
      << script;
}

TEST(BatchScript, OneRankNeedsNoMpi) {
  BatchJob job = two_nodes();
  job.nodes = job.tasks = 1;
  EXPECT_NE(batch_script(job).find("srun --mpi=none "), std::string::npos);
}

TEST(BatchScript, AShortJobKeepsMostOfItsTime) {
  BatchJob job = two_nodes();
  job.hours = 0.1;  // 360 s
  EXPECT_TRUE(has_line(batch_script(job), "#SBATCH --signal=USR1@90"));
  job.save_seconds = 30;
  EXPECT_TRUE(has_line(batch_script(job), "#SBATCH --signal=USR1@30"));
}

TEST(BatchScript, QuotesNamesWithSpaces) {
  BatchJob job = two_nodes();
  job.run_folder = "/home/me/my runs/book";
  job.recipe = "it's.toml";
  const std::string script = batch_script(job);
  EXPECT_TRUE(has_line(script, "#SBATCH --comment=\"penstock:/home/me/my runs/book\"")) << script;
  EXPECT_TRUE(has_line(script, "run='/home/me/my runs/book'")) << script;
  EXPECT_NE(script.find(" train 'it'\\''s.toml' "), std::string::npos) << script;
}

TEST(BatchScript, RefusesNamesThatSlurmWouldReadOtherwise) {
  for (const char* name : {"/home/me/50%", "/home/\"me\"", "/home/a\\b", "/home/a\nb"}) {
    BatchJob job = two_nodes();
    job.run_folder = name;
    EXPECT_THROW(batch_script(job), ConfigError) << name;
  }
  BatchJob job = two_nodes();
  job.partition = "a\n#SBATCH --exclusive";
  EXPECT_THROW(batch_script(job), ConfigError);
}

TEST(BatchScript, TakesAPlainWordForMpi) {
  BatchJob job = two_nodes();
  job.mpi = "pmix_v4";
  EXPECT_NE(batch_script(job).find("srun --mpi=pmix_v4 "), std::string::npos);
  for (const char* word : {"pmix; reboot", "$(reboot)", "pmix pmi2", "", "-x", "a\nb"}) {
    job.mpi = word;
    EXPECT_THROW(batch_script(job), ConfigError) << word;
  }
}

// What the script does is for tests/integration/test_cluster.py.
TEST(BatchScript, SaysWhyAJobIsNotQueuedAgain) {
  const std::string script = batch_script(two_nodes());
  for (const char* words :
       {"was cancelled, or its time ended before it had saved: not queued again",
        "no step was saved before the signal came",
        "run.hours of the recipe are over: not queued again",
        "neither finished nor been interrupted"}) {
    EXPECT_NE(script.find(words), std::string::npos) << words;
  }
}

TEST(SlurmTime, IsInSecondsAndAtLeastAMinute) {
  EXPECT_EQ(slurm_time(2), "02:00:00");
  EXPECT_EQ(slurm_time(0.5), "00:30:00");
  EXPECT_EQ(slurm_time(100.01), "100:00:36");
  EXPECT_EQ(slurm_time(1e-6), "00:01:00");
}

}  // namespace
}  // namespace penstock::cluster
