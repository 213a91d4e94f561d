// A checkpoint that is being written. Its files go into a temporary folder, which takes its name in
// one rename once all of it is on disk: a kill or a full disk at any moment leaves the checkpoints
// before it loadable.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "penstock/checkpoint/manifest.h"

namespace penstock::checkpoint {

// One at a time per step. Failures of the disk are FileErrors.
class PendingCheckpoint {
 public:
  // Creates the run's folder where it is missing.
  PendingCheckpoint(std::filesystem::path run_folder, int64_t step);
  // Removes the temporary folder unless committed.
  ~PendingCheckpoint();
  PendingCheckpoint(const PendingCheckpoint&) = delete;
  PendingCheckpoint& operator=(const PendingCheckpoint&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  // where to write the files

  // Records a file, fully written, of path().
  void add(FileRecord file);

  // Fills in the manifest's step and files, makes everything durable, replaces a checkpoint of the
  // same step, and points `latest` here. Nothing may be added afterwards. Returns the checkpoint's
  // folder.
  std::filesystem::path commit(Manifest manifest);

 private:
  void move_in(const std::filesystem::path& final, const std::filesystem::path& replaced) const;

  std::filesystem::path run_folder_;
  int64_t step_;
  std::filesystem::path temporary_;
  std::vector<FileRecord> files_;
  bool is_committed_ = false;
};

}  // namespace penstock::checkpoint
