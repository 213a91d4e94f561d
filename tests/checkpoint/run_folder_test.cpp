#include "penstock/checkpoint/run_folder.h"

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/process.h"

#include "checkpoint/small_checkpoint.h"
#include "support/error_text.h"
#include "support/temp_folder.h"

namespace penstock::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::error_text;
using test::read_small_checkpoint;
using test::TempFolder;
using test::write_small_checkpoint;
using Steps = std::vector<int64_t>;

class RunFolder : public ::testing::Test {
 protected:
  const fs::path& run() const { return folder_.path(); }
  fs::path step(int64_t number) const { return run() / step_folder_name(number); }

 private:
  TempFolder folder_;
};

int id_of_dead_process() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  return child;
}

TEST(StepFolderName, PadsToEightDigits) {
  EXPECT_EQ(step_folder_name(0), "step-00000000");
  EXPECT_EQ(step_folder_name(100), "step-00000100");
  EXPECT_EQ(step_folder_name(1'234'567'890'123), "step-1234567890123");
  EXPECT_THROW(step_folder_name(-1), InternalError);
}

TEST_F(RunFolder, ListsWholeCheckpointsInOrder) {
  EXPECT_EQ(list_steps(run()), Steps{});
  EXPECT_EQ(list_steps(run() / "missing"), Steps{});
  for (const int64_t number : {200, 3, 1'000'000'000}) {
    write_small_checkpoint(run(), number);
  }
  fs::create_directory(step(7));  // without a manifest
  for (const char* name : {"step-5", "step-0000000x", "step-", "step--0000001", "other"}) {
    fs::create_directory(run() / name);
    write_text_file(run() / name / kManifestName, "");
  }
  write_text_file(run() / "step-00000009", "a file");
  EXPECT_EQ(list_steps(run()), (Steps{3, 200, 1'000'000'000}));
}

TEST_F(RunFolder, ResolvesACheckpointToItself) {
  write_small_checkpoint(run(), 1);
  write_small_checkpoint(run(), 2);
  EXPECT_EQ(resolve_checkpoint(step(1)), step(1));
  EXPECT_EQ(resolve_checkpoint(step(1) / ""), step(1));
}

TEST_F(RunFolder, ResolvesARunToWhatLatestPointsTo) {
  write_small_checkpoint(run(), 2);
  write_small_checkpoint(run(), 1);  // written last
  EXPECT_EQ(resolve_checkpoint(run()), step(1));
  EXPECT_EQ(resolve_checkpoint(run() / ""), step(1));
  EXPECT_EQ(find_latest_step(run()), 1);
}

TEST_F(RunFolder, HasNoLatestStepWithoutACheckpoint) {
  EXPECT_EQ(find_latest_step(run()), std::nullopt);
  EXPECT_EQ(find_latest_step(run() / "none"), std::nullopt);
}

TEST_F(RunFolder, ResolvesLatestToTheFolderBehindIt) {
  write_small_checkpoint(run(), 1);
  EXPECT_EQ(resolve_checkpoint(run() / "latest"), step(1));
  EXPECT_EQ(resolve_checkpoint(run() / "latest" / ""), step(1));
}

TEST_F(RunFolder, ResolvesLatestInTheCurrentFolder) {
  write_small_checkpoint(run(), 1);
  const fs::path before = fs::current_path();
  fs::current_path(run());
  const fs::path found = resolve_checkpoint("latest");
  fs::remove("latest");
  fs::create_symlink("step-00000009", "latest");
  const fs::path fallback = resolve_checkpoint("latest");
  fs::current_path(before);
  EXPECT_EQ(found.lexically_normal(), "step-00000001");
  EXPECT_EQ(fallback.lexically_normal(), "step-00000001");
}

TEST_F(RunFolder, ResolvesWithoutLatestToTheNewestStep) {
  write_small_checkpoint(run(), 30);
  write_small_checkpoint(run(), 4);
  fs::create_directory(step(50));  // without a manifest
  fs::remove(run() / "latest");
  EXPECT_EQ(resolve_checkpoint(run()), step(30));
}

TEST_F(RunFolder, ResolvesWithDanglingLatestToTheNewestStep) {
  write_small_checkpoint(run(), 1);
  write_small_checkpoint(run(), 2);
  fs::remove_all(step(2));
  EXPECT_EQ(resolve_checkpoint(run()), step(1));
  EXPECT_EQ(resolve_checkpoint(run() / "latest"), step(1));
}

TEST_F(RunFolder, ResolvesToTheReplacedCheckpointWhenKilledBetweenTheRenames) {
  write_small_checkpoint(run(), 2);
  write_small_checkpoint(run(), 1, "old");
  fs::rename(step(1), run() / replaced_step_folder_name(1));
  EXPECT_EQ(list_steps(run()), (Steps{1, 2}));
  EXPECT_EQ(read_small_checkpoint(resolve_checkpoint(run())), "old");
  fs::remove(run() / "latest");
  fs::remove_all(step(2));
  EXPECT_EQ(read_small_checkpoint(resolve_checkpoint(run())), "old");
}

TEST_F(RunFolder, ResolvesLatestThatACopyTurnedIntoAFolder) {
  write_small_checkpoint(run(), 1, "copied");
  fs::remove(run() / "latest");
  fs::copy(step(1), run() / "latest");
  EXPECT_EQ(read_small_checkpoint(resolve_checkpoint(run())), "copied");
}

TEST_F(RunFolder, ResolveSaysWhatIsWrong) {
  const auto resolve_error = [](const fs::path& path) {
    return error_text<CheckpointError>([&] { resolve_checkpoint(path); });
  };
  const std::string name = run().string();
  EXPECT_EQ(resolve_error(run() / "x"), "checkpoint " + name + "/x does not exist");
  EXPECT_EQ(
      resolve_error(run()),
      "folder " + name + " holds no checkpoint: neither manifest.json nor a whole step-* folder");
  write_text_file(run() / "file", "");
  EXPECT_EQ(resolve_error(run() / "file"),
            "checkpoint " + name + "/file is not a folder; give a checkpoint's or a run's folder");
  EXPECT_EQ(resolve_error(""), "checkpoint  does not exist");
  fs::create_symlink("nowhere", run() / "latest");
  EXPECT_EQ(resolve_error(run() / "latest"), "checkpoint " + name + "/latest does not exist");
}

TEST_F(RunFolder, LinksInACircleAreAFileError) {
  fs::create_symlink("circle", run() / "circle");
  EXPECT_THROW(resolve_checkpoint(run() / "circle"), FileError);
}

TEST_F(RunFolder, RemovesAllButTheNewest) {
  for (const int64_t number : {1, 2, 3, 4, 5}) {
    write_small_checkpoint(run(), number);
  }
  remove_old_checkpoints(run(), 0);
  remove_old_checkpoints(run(), -1);
  remove_old_checkpoints(run(), 9);
  EXPECT_EQ(list_steps(run()), (Steps{1, 2, 3, 4, 5}));
  remove_old_checkpoints(run(), 2);
  EXPECT_EQ(list_steps(run()), (Steps{4, 5}));
  EXPECT_EQ(std::distance(fs::directory_iterator(run()), {}), 3);  // two steps and latest
}

TEST_F(RunFolder, NeverRemovesWhatLatestPointsTo) {
  for (const int64_t number : {1, 3, 4, 2}) {
    write_small_checkpoint(run(), number);
  }
  remove_old_checkpoints(run(), 1);
  EXPECT_EQ(list_steps(run()), (Steps{2, 4}));
  EXPECT_EQ(resolve_checkpoint(run()), step(2));
}

TEST_F(RunFolder, RemovesReplacedFoldersWithTheirStep) {
  write_small_checkpoint(run(), 1);
  fs::copy(step(1), run() / replaced_step_folder_name(1));
  write_small_checkpoint(run(), 2);
  remove_old_checkpoints(run(), 1);
  EXPECT_EQ(list_steps(run()), Steps{2});
}

TEST_F(RunFolder, RemoveOldLeavesAloneWhatIsNoCheckpoint) {
  fs::create_directory(step(1));
  write_text_file(run() / "notes.txt", "");
  write_small_checkpoint(run(), 2);
  write_small_checkpoint(run(), 3);
  remove_old_checkpoints(run(), 1);
  EXPECT_TRUE(fs::exists(step(1)));
  EXPECT_TRUE(fs::exists(run() / "notes.txt"));
  EXPECT_FALSE(fs::exists(step(2)));
}

TEST_F(RunFolder, RemovesLeftoversOfDeadProcessesOnly) {
  write_small_checkpoint(run(), 1);
  const auto temporary = [&](const std::string& owner) { return run() / (".tmp-x-" + owner); };
  const std::string here = this_process().host + "-";
  const std::string dead_number = std::to_string(id_of_dead_process());
  const std::string dead = here + dead_number;
  const std::string own = here + std::to_string(::getpid());
  const std::string alive = here + std::to_string(::getppid());
  const std::string elsewhere = "other.host-" + dead_number;  // who knows whether it lives there
  for (const std::string& owner : {dead, own, alive, elsewhere}) {
    fs::create_directories(temporary(owner) / "deep");
    write_text_file(temporary(owner) / "deep" / "file", "x");
  }
  fs::create_symlink("step-00000001", run() / (".tmp-latest-" + dead));
  for (const char* name :
       {".tmp-notes", ".tmp-x-h-0", ".tmp-x-h-12ab", ".tmp-x-h-99999999999999"}) {
    write_text_file(run() / name, "not ours");
  }
  remove_leftovers(run());
  EXPECT_FALSE(fs::exists(temporary(dead)));
  EXPECT_FALSE(fs::exists(temporary(own)));
  EXPECT_TRUE(fs::exists(temporary(alive)));
  EXPECT_TRUE(fs::exists(temporary(elsewhere)));
  EXPECT_FALSE(fs::is_symlink(run() / (".tmp-latest-" + dead)));
  for (const char* name :
       {".tmp-notes", ".tmp-x-h-0", ".tmp-x-h-12ab", ".tmp-x-h-99999999999999"}) {
    EXPECT_TRUE(fs::exists(run() / name)) << name;
  }
  EXPECT_EQ(read_small_checkpoint(step(1)), "content");
}

TEST_F(RunFolder, LeftoversOfAMissingFolderAreNone) {
  remove_leftovers(run() / "missing");
}

TEST_F(RunFolder, RestoresAReplacedCheckpointThatIsTheOnlyOne) {
  write_small_checkpoint(run(), 1, "old");
  fs::rename(step(1), run() / replaced_step_folder_name(1));
  remove_leftovers(run());
  EXPECT_EQ(read_small_checkpoint(step(1)), "old");
  EXPECT_FALSE(fs::exists(run() / replaced_step_folder_name(1)));
}

TEST_F(RunFolder, RemovesAReplacedCheckpointWhenTheNewOneIsIn) {
  write_small_checkpoint(run(), 1, "old");
  fs::rename(step(1), run() / replaced_step_folder_name(1));
  fs::create_directory(step(1));
  remove_leftovers(run());  // the new one is not whole
  EXPECT_EQ(read_small_checkpoint(resolve_checkpoint(run())), "old");
  fs::copy(run() / replaced_step_folder_name(1) / kManifestName, step(1));
  remove_leftovers(run());
  EXPECT_FALSE(fs::exists(run() / replaced_step_folder_name(1)));
}

}  // namespace
}  // namespace penstock::checkpoint
