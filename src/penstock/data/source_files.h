// What data.path names: files and folders, separated by commas. This finds the files and their
// order; it does not read them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::data {

// "docs, src,README.md" -> {"docs", "src", "README.md"}. A path with a comma in it cannot be named.
// Throws ConfigError when an entry is empty.
std::vector<std::string> split_entries(std::string_view data_path);

// Whether the entry names a folder. Throws ConfigError when it is neither a file nor a folder.
bool is_folder(const std::string& entry);

// All files below `folder`, in an order that depends on their names alone. Hidden files and folders
// (".git") are left out; links are followed, but each folder is entered once, so a loop ends.
std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder);

}  // namespace penstock::data
