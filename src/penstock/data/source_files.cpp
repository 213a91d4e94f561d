#include "penstock/data/source_files.h"

#include <algorithm>
#include <set>
#include <system_error>

#include "penstock/base/error.h"

namespace penstock::data {

namespace fs = std::filesystem;

namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') {
    text.remove_prefix(1);
  }
  while (!text.empty() && text.back() == ' ') {
    text.remove_suffix(1);
  }
  return text;
}

[[noreturn]] void fail(const char* verb, const fs::path& path, const std::error_code& error) {
  throw FileError(cat("cannot ", verb, " ", path.string(), ": ", error.message()));
}

std::vector<fs::path> visible_entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  fs::directory_iterator next(folder, error);
  while (!error && next != fs::directory_iterator()) {
    if (!next->path().filename().string().starts_with('.')) {
      entries.push_back(next->path());
    }
    next.increment(error);
  }
  if (error) {
    fail("list", folder, error);
  }
  // The system lists a folder in any order; samples must not depend on it.
  std::sort(entries.begin(), entries.end());
  return entries;
}

void walk(const fs::path& folder, std::set<fs::path>& entered, std::vector<fs::path>& files) {
  std::error_code error;
  const fs::path real_folder = fs::canonical(folder, error);
  if (error) {
    fail("list", folder, error);
  }
  if (!entered.insert(real_folder).second) {
    return;
  }
  for (const fs::path& entry : visible_entries(folder)) {
    // Broken links, links to themselves, pipes and sockets are neither, and are passed over.
    const fs::file_status status = fs::status(entry, error);
    if (fs::is_directory(status)) {
      walk(entry, entered, files);
    } else if (fs::is_regular_file(status)) {
      files.push_back(entry);
    } else if (error == std::errc::permission_denied) {
      fail("read", entry, error);
    }
  }
}

}  // namespace

std::vector<std::string> split_entries(std::string_view data_path) {
  std::vector<std::string> entries;
  for (size_t start = 0; start <= data_path.size();) {
    const size_t comma = std::min(data_path.find(',', start), data_path.size());
    const std::string_view entry = trim(data_path.substr(start, comma - start));
    if (entry.empty()) {
      throw ConfigError(cat("data.path = \"",
                            data_path,
                            "\" has an empty entry; name files or folders, separated by commas, "
                            "as in \"docs,src,README.md\""));
    }
    entries.emplace_back(entry);
    start = comma + 1;
  }
  return entries;
}

bool is_folder(const std::string& entry) {
  std::error_code error;
  const fs::file_status status = fs::status(entry, error);
  if (status.type() == fs::file_type::not_found) {
    throw ConfigError(cat("data.path = \"",
                          entry,
                          "\" does not exist; name a file or a folder, from the root or from where "
                          "Penstock was started"));
  }
  if (error) {
    throw ConfigError(cat("data.path = \"", entry, "\" cannot be read: ", error.message()));
  }
  if (!fs::is_directory(status) && !fs::is_regular_file(status)) {
    throw ConfigError(cat("data.path = \"", entry, "\" is neither a file nor a folder"));
  }
  return fs::is_directory(status);
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::set<fs::path> entered;
  std::vector<fs::path> files;
  walk(folder, entered, files);
  return files;
}

}  // namespace penstock::data
