// manifest.json: what a checkpoint folder holds and the checksum of each file. It is written last,
// so a folder with a manifest is whole, and it sums its own content, so damage to it is seen as
// well.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/optim/loss_scale.h"

namespace penstock::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr int kManifestFormat = 1;

struct FileRecord {
  std::string name;  // within the folder, see is_plain_name()
  int64_t bytes = 0;
  uint32_t crc32c = 0;

  bool operator==(const FileRecord&) const = default;
};

struct Manifest {
  int format = kManifestFormat;
  int64_t step = 0;
  std::string penstock_version;
  std::string torch_version;
  std::string created;  // see utc_now()
  // Of a run in float16; those of other precisions, and those before there was any, have none.
  std::optional<optim::LossScaleState> loss_scale;
  std::vector<FileRecord> files;

  bool operator==(const Manifest&) const = default;
};

// The time as a manifest gives it: "2025-01-31T23:59:59Z".
std::string utc_now();

// Whether `name` stays inside the folder it is joined to: valid UTF-8 without separator, ".." or
// control characters, and not the manifest itself.
bool is_plain_name(std::string_view name);

std::string manifest_text(const Manifest& manifest);

// Throws CheckpointError when anything is missing, surplus or out of range, or when the text does
// not match its checksum. `checkpoint` names the folder in the message.
Manifest parse_manifest(std::string_view text, const std::string& checkpoint);

Manifest read_manifest(const std::filesystem::path& folder);

// What is thrown where the checkpoint `folder` is not what it was when it was written.
CheckpointError damaged(const std::filesystem::path& folder, const std::string& what);

std::string checksum_text(uint32_t checksum);  // eight hexadecimal digits

}  // namespace penstock::checkpoint
