#include "penstock/checkpoint/pending_checkpoint.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/quote.h"
#include "penstock/checkpoint/folder_ops.h"
#include "penstock/checkpoint/run_folder.h"

namespace penstock::checkpoint {

namespace fs = std::filesystem;

namespace {

void create_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw FileError(cat("cannot create folder ", folder.string(), ": ", error.message()));
  }
}

bool is_present(const fs::path& path) {
  std::error_code unused;
  return fs::exists(fs::symlink_status(path, unused));
}

// Not every writer makes its file durable, so the commit does.
void sync_file(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool is_synced = descriptor >= 0 && ::fsync(descriptor) == 0;
  const int error = errno;
  if (descriptor >= 0) {
    ::close(descriptor);
  }
  if (!is_synced) {
    throw FileError(cat("cannot sync ", path.string(), ": ", std::strerror(error)));
  }
}

}  // namespace

PendingCheckpoint::PendingCheckpoint(fs::path run_folder, int64_t step)
    : run_folder_(std::move(run_folder)),
      step_(step),
      temporary_(temporary_path(run_folder_, step_folder_name(step))) {
  create_folder(run_folder_);
  remove_path(temporary_);  // of an earlier process with this one's id
  create_folder(temporary_);
}

PendingCheckpoint::~PendingCheckpoint() {
  if (!is_committed_) {
    std::error_code unused;  // what stays is removed as a leftover
    fs::remove_all(temporary_, unused);
  }
}

void PendingCheckpoint::add(FileRecord file) {
  PENSTOCK_CHECK(!is_committed_, "file ", in_quotes(file.name), " after the commit");
  PENSTOCK_CHECK(is_plain_name(file.name), "file name ", in_quotes(file.name));
  for (const FileRecord& other : files_) {
    PENSTOCK_CHECK(other.name != file.name, "two files named ", in_quotes(file.name));
  }
  files_.push_back(std::move(file));
}

fs::path PendingCheckpoint::commit(Manifest manifest) {
  PENSTOCK_CHECK(!is_committed_, "second commit of step ", step_);
  manifest.step = step_;
  manifest.files = files_;
  for (const FileRecord& file : files_) {
    sync_file(temporary_ / file.name);
  }
  write_text_file(temporary_ / kManifestName, manifest_text(manifest));
  sync_folder(temporary_);

  const fs::path final = run_folder_ / step_folder_name(step_);
  const fs::path replaced = run_folder_ / replaced_step_folder_name(step_);
  move_in(final, replaced);
  is_committed_ = true;
  point_latest(final);
  if (is_present(replaced)) {
    discard_checkpoint(replaced);
  }
  return final;
}

// Readers take the replaced checkpoint where the new one is missing, so one of the two is there at
// every moment.
void PendingCheckpoint::move_in(const fs::path& final, const fs::path& replaced) const {
  if (is_whole_checkpoint(final)) {
    if (is_present(replaced)) {
      discard_checkpoint(replaced);
    }
    rename_path(final, replaced);
  } else if (is_present(final)) {
    discard_checkpoint(final);
  }
  rename_path(temporary_, final);
  sync_folder(run_folder_);
}

}  // namespace penstock::checkpoint
