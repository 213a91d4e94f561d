// Small real checkpoints for the tests of a run's folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "penstock/base/checksum.h"
#include "penstock/base/file.h"
#include "penstock/checkpoint/manifest.h"
#include "penstock/checkpoint/pending_checkpoint.h"
#include "penstock/checkpoint/verify.h"

namespace penstock::test {

inline checkpoint::Manifest small_manifest() {
  checkpoint::Manifest manifest;
  manifest.penstock_version = "0.1.0";
  manifest.torch_version = "2.11.0";
  manifest.created = checkpoint::utc_now();
  return manifest;
}

inline void add_file(checkpoint::PendingCheckpoint& pending,
                     const std::string& name,
                     const std::string& content) {
  FileWriter file(pending.path() / name);
  file.write(content);
  file.finish();
  pending.add({name, file.size(), file.checksum()});
}

// A checkpoint whose one file, "data", holds `content`.
inline std::filesystem::path write_small_checkpoint(const std::filesystem::path& run_folder,
                                                    int64_t step,
                                                    const std::string& content = "content") {
  checkpoint::PendingCheckpoint pending(run_folder, step);
  add_file(pending, "data", content);
  return pending.commit(small_manifest());
}

// Throws unless the checkpoint is whole; gives the content of "data".
inline std::string read_small_checkpoint(const std::filesystem::path& folder) {
  checkpoint::verify_files(folder, checkpoint::read_manifest(folder));
  return read_text_file(folder / "data");
}

}  // namespace penstock::test
