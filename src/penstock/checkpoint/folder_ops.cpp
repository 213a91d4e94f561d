#include "penstock/checkpoint/folder_ops.h"

#include <charconv>
#include <system_error>
#include <unistd.h>

#include "penstock/base/error.h"
#include "penstock/base/process.h"

namespace penstock::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kTemporaryPrefix = ".tmp-";

}  // namespace

fs::path temporary_path(const fs::path& run_folder, std::string_view what) {
  return run_folder / cat(kTemporaryPrefix, what, "-", this_process().host, "-", ::getpid());
}

std::optional<TemporaryOwner> temporary_owner(std::string_view name) {
  if (!name.starts_with(kTemporaryPrefix)) {
    return std::nullopt;
  }
  name.remove_prefix(kTemporaryPrefix.size());
  const size_t number_at = name.rfind('-');
  const size_t host_at = number_at == name.npos ? name.npos : name.rfind('-', number_at - 1);
  if (host_at == name.npos || host_at == 0) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(number_at + 1);
  TemporaryOwner owner{.host = std::string(name.substr(host_at + 1, number_at - host_at - 1))};
  const auto [rest, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), owner.process);
  const bool is_number = error == std::errc() && rest == digits.data() + digits.size();
  return is_number && owner.process > 0 && !owner.host.empty() ? std::optional(owner)
                                                               : std::nullopt;
}

void rename_path(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) {
    throw FileError(
        cat("cannot rename ", from.string(), " to ", to.string(), ": ", error.message()));
  }
}

void remove_path(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    throw FileError(cat("cannot delete ", path.string(), ": ", error.message()));
  }
}

void discard_checkpoint(const fs::path& folder) {
  const fs::path temporary =
      temporary_path(folder.parent_path(), cat("gone-", folder.filename().string()));
  remove_path(temporary);
  rename_path(folder, temporary);
  remove_path(temporary);
}

}  // namespace penstock::checkpoint
