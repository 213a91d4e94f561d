#include "penstock/checkpoint/pending_checkpoint.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <random>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/base/process.h"
#include "penstock/checkpoint/run_folder.h"
#include "penstock/checkpoint/safetensors_writer.h"

#include "checkpoint/small_checkpoint.h"
#include "support/error_text.h"
#include "support/small_disk.h"
#include "support/temp_folder.h"

namespace penstock::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::add_file;
using test::error_text;
using test::read_small_checkpoint;
using test::small_manifest;
using test::TempFolder;
using test::write_small_checkpoint;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}
using Names = std::vector<std::string>;

TEST(PendingCheckpoint, CommitMakesAWholeCheckpointAndPointsLatestToIt) {
  const TempFolder folder;
  const fs::path run = folder.path() / "runs" / "demo";
  const fs::path committed = write_small_checkpoint(run, 100, "weights");
  EXPECT_EQ(committed, run / "step-00000100");
  EXPECT_EQ(names_in(run), (Names{"latest", "step-00000100"}));
  EXPECT_EQ(names_in(committed), (Names{"data", "manifest.json"}));
  EXPECT_EQ(fs::read_symlink(run / "latest"), "step-00000100");
  const Manifest manifest = read_manifest(committed);
  EXPECT_EQ(manifest.step, 100);
  EXPECT_EQ(manifest.files.size(), 1u);
  EXPECT_EQ(read_small_checkpoint(committed), "weights");
}

TEST(PendingCheckpoint, LatestFollowsTheLastCommit) {
  const TempFolder folder;
  write_small_checkpoint(folder.path(), 2);
  write_small_checkpoint(folder.path(), 1);
  EXPECT_EQ(fs::read_symlink(folder.path() / "latest"), "step-00000001");
}

TEST(PendingCheckpoint, ReplacesACheckpointOfTheSameStep) {
  const TempFolder folder;
  write_small_checkpoint(folder.path(), 1, "old");
  write_small_checkpoint(folder.path(), 1, "new");
  EXPECT_EQ(read_small_checkpoint(folder.path() / "step-00000001"), "new");
  EXPECT_EQ(names_in(folder.path()), (Names{"latest", "step-00000001"}));
}

TEST(PendingCheckpoint, ReplacesWhatAKilledReplacementLeft) {
  const TempFolder folder;
  const fs::path step = folder.path() / "step-00000001";
  const fs::path replaced = folder.path() / "step-00000001.old";
  // Killed between the renames.
  write_small_checkpoint(folder.path(), 1, "old");
  fs::rename(step, replaced);
  write_small_checkpoint(folder.path(), 1, "new");
  EXPECT_EQ(read_small_checkpoint(step), "new");
  EXPECT_FALSE(fs::exists(replaced));
  // Killed after them.
  fs::copy(step, replaced);
  write_small_checkpoint(folder.path(), 1, "newer");
  EXPECT_EQ(read_small_checkpoint(step), "newer");
  EXPECT_FALSE(fs::exists(replaced));
}

TEST(PendingCheckpoint, ReplacesAFolderThatIsNoCheckpoint) {
  const TempFolder folder;
  fs::create_directories(folder.path() / "step-00000001" / "junk");
  write_small_checkpoint(folder.path(), 1, "new");
  EXPECT_EQ(names_in(folder.path()), (Names{"latest", "step-00000001"}));
}

TEST(PendingCheckpoint, LeavesNothingWhenNotCommitted) {
  const TempFolder folder;
  write_small_checkpoint(folder.path(), 1);
  {
    PendingCheckpoint pending(folder.path(), 2);
    add_file(pending, "data", "x");
    EXPECT_EQ(pending.path().parent_path(), folder.path());
    EXPECT_EQ(pending.path().filename().string(),
              ".tmp-step-00000002-" + this_process().host + "-" + std::to_string(::getpid()));
    EXPECT_EQ(list_steps(folder.path()), std::vector<int64_t>{1});
  }
  EXPECT_EQ(names_in(folder.path()), (Names{"latest", "step-00000001"}));
}

TEST(PendingCheckpoint, StartsAfreshWhereAnEarlierProcessHadTheSameId) {
  const TempFolder folder;
  const fs::path stale = folder.path() / (".tmp-step-00000001-" + this_process().host + "-" +
                                          std::to_string(::getpid()));
  fs::create_directories(stale / "junk");
  write_small_checkpoint(folder.path(), 1);
  EXPECT_EQ(names_in(folder.path() / "step-00000001"), (Names{"data", "manifest.json"}));
}

TEST(PendingCheckpoint, RefusesMisuse) {
  const TempFolder folder;
  PendingCheckpoint pending(folder.path(), 1);
  add_file(pending, "data", "x");
  EXPECT_THROW(pending.add({"data", 1, 0}), InternalError);
  EXPECT_THROW(pending.add({"../data", 1, 0}), InternalError);
  EXPECT_THROW(pending.add({"manifest.json", 1, 0}), InternalError);
  pending.commit(small_manifest());
  EXPECT_THROW(pending.add({"more", 1, 0}), InternalError);
  EXPECT_THROW(pending.commit(small_manifest()), InternalError);
}

TEST(PendingCheckpoint, RecordOfAMissingFileStopsTheCommit) {
  const TempFolder folder;
  {
    PendingCheckpoint pending(folder.path(), 1);
    pending.add({"data", 1, 0});
    const std::string text = error_text<FileError>([&] { pending.commit(small_manifest()); });
    EXPECT_EQ(text.find("cannot sync "), 0u) << text;
  }
  EXPECT_EQ(names_in(folder.path()), Names{});
}

TEST(PendingCheckpoint, FileInPlaceOfTheRunFolderIsAFileError) {
  const TempFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  EXPECT_THROW(PendingCheckpoint(folder.path() / "file", 1), FileError);
  EXPECT_THROW(PendingCheckpoint(folder.path() / "file" / "run", 1), FileError);
}

// As after a copy that followed links.
TEST(PendingCheckpoint, FolderInPlaceOfLatestIsMovedAside) {
  const TempFolder folder;
  fs::create_directories(folder.path() / "latest" / "x");
  write_small_checkpoint(folder.path(), 1, "kept");
  EXPECT_EQ(read_small_checkpoint(resolve_checkpoint(folder.path())), "kept");
  EXPECT_TRUE(fs::is_symlink(folder.path() / "latest"));
  EXPECT_TRUE(fs::exists(folder.path() / "latest-copy" / "x"));
}

// Runs `body` in a child; true when it returned true.
bool run_in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Whether saving 4 MiB of tensor as step 2 ends in a FileError.
bool save_runs_out_of_space(const fs::path& run) {
  const std::vector<char> data(size_t{4} << 20);
  try {
    PendingCheckpoint pending(run, 2);
    const fs::path file = pending.path() / "data";
    const SafetensorsLayout layout({{"a", Dtype::U8, {static_cast<int64_t>(data.size())}}});
    create_safetensors(file, layout);
    SafetensorsWriter writer(file, layout);
    writer.write(layout.find("a"), 0, data.data(), data.size());
    writer.finish();
    pending.add({"data", layout.file_bytes(), checksum_of_file(layout, writer.written(), file)});
    pending.commit(small_manifest());
  } catch (const FileError&) {
    return true;
  }
  return false;
}

void expect_only_step_1(const fs::path& run) {
  EXPECT_EQ(names_in(run), (Names{"latest", "step-00000001"}));
  EXPECT_EQ(read_small_checkpoint(resolve_checkpoint(run)), "kept");
}

TEST(PendingCheckpoint, FileSizeLimitLeavesThePreviousCheckpoint) {
  const TempFolder folder;
  write_small_checkpoint(folder.path(), 1, "kept");
  EXPECT_TRUE(run_in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    return ::setrlimit(RLIMIT_FSIZE, &limit) == 0 && save_runs_out_of_space(folder.path());
  }));
  expect_only_step_1(folder.path());
}

TEST(PendingCheckpoint, LimitOnTheManifestLeavesThePreviousCheckpointOfTheSameStep) {
  const TempFolder folder;
  write_small_checkpoint(folder.path(), 1, "kept");
  EXPECT_TRUE(run_in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{64, 64};  // room for the data, not for the manifest
    try {
      return ::setrlimit(RLIMIT_FSIZE, &limit) != 0 ||
             write_small_checkpoint(folder.path(), 1, "new").empty();
    } catch (const FileError&) {
      return true;
    }
  }));
  expect_only_step_1(folder.path());
}

TEST(PendingCheckpoint, FullDiskLeavesThePreviousCheckpoint) {
  const TempFolder folder;
  const test::SmallDisk disk(folder.path(), 1 << 20);
  if (!disk.is_mounted()) {
    GTEST_SKIP() << "mounting a small file system needs root";
  }
  write_small_checkpoint(folder.path(), 1, "kept");
  EXPECT_TRUE(save_runs_out_of_space(folder.path()));
  expect_only_step_1(folder.path());
  write_small_checkpoint(folder.path(), 2, "fits");  // the space came back
  EXPECT_EQ(read_small_checkpoint(resolve_checkpoint(folder.path())), "fits");
}

// Commits without end; step_of(i) is the step of the i-th.
[[noreturn]] void commit_for_ever(const fs::path& run, int64_t (*step_of)(int64_t)) {
  for (int64_t i = 0;; ++i) {
    write_small_checkpoint(run, step_of(i), std::string(2000, static_cast<char>('a' + i % 26)));
    remove_old_checkpoints(run, 2);
  }
}

void expect_kills_leave_a_whole_checkpoint(int64_t (*step_of)(int64_t)) {
  const TempFolder folder;
  std::mt19937 random(5);
  write_small_checkpoint(folder.path(), step_of(0), "first");
  for (int round = 0; round < 40; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      commit_for_ever(folder.path(), step_of);
    }
    ::usleep(2000 + random() % 15000);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_NO_THROW(read_small_checkpoint(resolve_checkpoint(folder.path()))) << "round " << round;
    remove_leftovers(folder.path());
    EXPECT_NO_THROW(read_small_checkpoint(resolve_checkpoint(folder.path()))) << "round " << round;
    for (const std::string& name : names_in(folder.path())) {
      EXPECT_TRUE(name == "latest" || name.starts_with("step-")) << name;
    }
  }
}

TEST(PendingCheckpoint, KillsAtAnyMomentLeaveAWholeCheckpoint) {
  expect_kills_leave_a_whole_checkpoint([](int64_t i) { return i; });
}

TEST(PendingCheckpoint, KillsWhileReplacingLeaveAWholeCheckpoint) {
  expect_kills_leave_a_whole_checkpoint([](int64_t) { return int64_t{7}; });
}

}  // namespace
}  // namespace penstock::checkpoint
