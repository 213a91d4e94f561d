#include "penstock/checkpoint/run_folder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <optional>
#include <set>
#include <signal.h>
#include <string_view>
#include <system_error>
#include <unistd.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/log.h"
#include "penstock/base/process.h"
#include "penstock/checkpoint/folder_ops.h"
#include "penstock/checkpoint/manifest.h"

namespace penstock::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kReplacedSuffix = ".old";

[[noreturn]] void fail_read(const fs::path& path, const std::error_code& error) {
  throw FileError(cat("cannot read ", path.string(), ": ", error.message()));
}

fs::file_type type_of(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (error && type != fs::file_type::not_found) {
    fail_read(path, error);
  }
  return type;
}

bool is_link(const fs::path& path) {
  std::error_code unused;
  return fs::is_symlink(path, unused);
}

// Names of all entries of `folder`; none when it does not exist.
std::vector<std::string> list_names(const fs::path& folder) {
  if (type_of(folder) == fs::file_type::not_found) {
    return {};
  }
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) {
    fail_read(folder, error);
  }
  return names;
}

// "step-00000100" -> 100; nothing for any name that step_folder_name() does not give.
std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(kStepPrefix.size());
  int64_t step = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), step);
  return step >= 0 && step_folder_name(step) == name ? std::optional(step) : std::nullopt;
}

std::optional<int64_t> replaced_step_of(std::string_view name) {
  if (!name.ends_with(kReplacedSuffix)) {
    return std::nullopt;
  }
  return step_of(name.substr(0, name.size() - kReplacedSuffix.size()));
}

// Where the whole checkpoint of a step lies.
std::optional<fs::path> find_step(const fs::path& run_folder, int64_t step) {
  for (const std::string& name : {step_folder_name(step), replaced_step_folder_name(step)}) {
    if (is_whole_checkpoint(run_folder / name)) {
      return run_folder / name;
    }
  }
  return std::nullopt;
}

// Where `latest` leads. The link is followed here, once: it may move while the checkpoint is being
// read.
std::optional<fs::path> find_latest(const fs::path& run_folder) {
  const fs::path latest = run_folder / kLatestName;
  if (!is_link(latest)) {
    // A copy that followed links leaves a folder.
    return is_whole_checkpoint(latest) ? std::optional(latest) : std::nullopt;
  }
  std::error_code error;
  const fs::path target = fs::read_symlink(latest, error);
  if (error) {
    fail_read(latest, error);
  }
  if (is_whole_checkpoint(run_folder / target)) {
    return run_folder / target;
  }
  const std::optional<int64_t> current = step_of(target.string());
  const std::optional<int64_t> step = current ? current : replaced_step_of(target.string());
  return step ? find_step(run_folder, *step) : std::nullopt;
}

std::optional<fs::path> find_in_run(const fs::path& run_folder) {
  if (std::optional<fs::path> latest = find_latest(run_folder)) {
    return latest;
  }
  const std::vector<int64_t> steps = list_steps(run_folder);
  return steps.empty() ? std::nullopt : find_step(run_folder, steps.back());
}

bool is_alive(int process) {
  return ::kill(process, 0) == 0 || errno != ESRCH;
}

// What a process that was killed between the two renames of a replacement left.
void settle_replacement(const fs::path& run_folder, int64_t step) {
  const fs::path replaced = run_folder / replaced_step_folder_name(step);
  const fs::path current = run_folder / step_folder_name(step);
  if (type_of(current) == fs::file_type::not_found) {
    rename_path(replaced, current);
  } else if (is_whole_checkpoint(current)) {
    discard_checkpoint(replaced);
  }
}

}  // namespace

std::string step_folder_name(int64_t step) {
  PENSTOCK_CHECK(step >= 0, "step ", step);
  std::array<char, 32> digits;
  std::snprintf(digits.data(), digits.size(), "%08lld", static_cast<long long>(step));
  return cat(kStepPrefix, digits.data());
}

std::string replaced_step_folder_name(int64_t step) {
  return cat(step_folder_name(step), kReplacedSuffix);
}

bool is_whole_checkpoint(const fs::path& folder) {
  std::error_code unused;
  return fs::is_regular_file(folder / kManifestName, unused);
}

std::vector<int64_t> list_steps(const fs::path& run_folder) {
  std::set<int64_t> steps;
  for (const std::string& name : list_names(run_folder)) {
    const std::optional<int64_t> current = step_of(name);
    const std::optional<int64_t> step = current ? current : replaced_step_of(name);
    if (step && is_whole_checkpoint(run_folder / name)) {
      steps.insert(*step);
    }
  }
  return {steps.begin(), steps.end()};
}

std::vector<fs::path> folders_of_step(const fs::path& run_folder, int64_t step) {
  std::vector<fs::path> found;
  for (const std::string& name : {step_folder_name(step), replaced_step_folder_name(step)}) {
    if (type_of(run_folder / name) != fs::file_type::not_found) {
      found.push_back(run_folder / name);
    }
  }
  return found;
}

std::optional<int64_t> find_latest_step(const fs::path& run_folder) {
  const std::optional<fs::path> found = find_in_run(run_folder);
  if (!found) {
    return std::nullopt;
  }
  const std::string name = found->filename().string();
  const std::optional<int64_t> step = step_of(name);
  return step ? step : replaced_step_of(name);
}

fs::path resolve_checkpoint(const fs::path& path) {
  // "latest/" names a folder to the system, "latest" a link.
  const fs::path plain = path.has_filename() ? path : path.parent_path();
  if (plain.filename() == kLatestName && is_link(plain)) {
    const fs::path run_folder = plain.has_parent_path() ? plain.parent_path() : ".";
    if (std::optional<fs::path> found = find_in_run(run_folder)) {
      return *found;
    }
  }
  const fs::file_type type = type_of(plain);
  if (type == fs::file_type::not_found) {
    throw CheckpointError(cat("checkpoint ", path.string(), " does not exist"));
  }
  if (type != fs::file_type::directory) {
    throw CheckpointError(cat(
        "checkpoint ", path.string(), " is not a folder; give a checkpoint's or a run's folder"));
  }
  if (is_whole_checkpoint(plain)) {
    return plain;
  }
  if (std::optional<fs::path> found = find_in_run(plain)) {
    return *found;
  }
  throw CheckpointError(cat("folder ",
                            path.string(),
                            " holds no checkpoint: neither ",
                            kManifestName,
                            " nor a whole ",
                            kStepPrefix,
                            "* folder"));
}

void remove_old_checkpoints(const fs::path& run_folder, int64_t keep) {
  std::vector<int64_t> steps = list_steps(run_folder);
  if (keep <= 0 || steps.size() <= static_cast<size_t>(keep)) {
    return;
  }
  steps.resize(steps.size() - static_cast<size_t>(keep));
  const std::optional<fs::path> latest = find_latest(run_folder);
  for (const int64_t step : steps) {
    while (const std::optional<fs::path> folder = find_step(run_folder, step)) {
      std::error_code unused;
      if (latest && fs::equivalent(*latest, *folder, unused)) {
        break;
      }
      discard_checkpoint(*folder);
    }
  }
}

void remove_leftovers(const fs::path& run_folder) {
  const std::string host = this_process().host;
  for (const std::string& name : list_names(run_folder)) {
    const std::optional<TemporaryOwner> owner = temporary_owner(name);
    if (owner && owner->host != host) {
      // Whether its process lives nobody can see from here.
      log_warning(run_folder.string(),
                  "/",
                  name,
                  " is a leftover of host ",
                  owner->host,
                  "; remove it when no run uses the folder there");
    } else if (owner && (owner->process == ::getpid() || !is_alive(owner->process))) {
      remove_path(run_folder / name);
    } else if (const std::optional<int64_t> step = replaced_step_of(name)) {
      settle_replacement(run_folder, *step);
    }
  }
}

// A link cannot be changed, but another can be renamed over it.
void point_latest(const fs::path& checkpoint) {
  const fs::path run_folder = checkpoint.parent_path();
  const fs::path latest = run_folder / kLatestName;
  if (fs::is_directory(fs::symlink_status(latest))) {
    const fs::path copy = run_folder / "latest-copy";
    remove_path(copy);
    rename_path(latest, copy);
  }
  const fs::path link = temporary_path(run_folder, kLatestName);
  remove_path(link);
  std::error_code error;
  fs::create_symlink(checkpoint.filename(), link, error);
  if (error) {
    throw FileError(cat("cannot create link ", link.string(), ": ", error.message()));
  }
  rename_path(link, latest);
  sync_folder(run_folder);
}

}  // namespace penstock::checkpoint
