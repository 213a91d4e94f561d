#include "penstock/data/source_files.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "data/corpus.h"
#include "support/temp_folder.h"

namespace penstock::data {
namespace {

namespace fs = std::filesystem;
using test::expect_config_error;
using test::TempFolder;
using test::write_file;
using Names = std::vector<std::string>;

Names names_below(const fs::path& folder) {
  Names names;
  for (const fs::path& path : files_below(folder)) {
    names.push_back(path.lexically_relative(folder).string());
  }
  return names;
}

TEST(SourceFiles, EntriesAreSeparatedByCommas) {
  EXPECT_EQ(split_entries("docs"), (Names{"docs"}));
  EXPECT_EQ(split_entries("docs, src ,README.md"), (Names{"docs", "src", "README.md"}));
  EXPECT_EQ(split_entries("my docs,b"), (Names{"my docs", "b"}));
}

TEST(SourceFiles, EmptyEntryIsRefused) {
  for (const char* path : {"", " ", ",", "a,", ",a", "a,,b"}) {
    expect_config_error([&] { split_entries(path); },
                        {cat("data.path = \"", path, "\""), "empty entry"});
  }
}

TEST(SourceFiles, FilesComeInTheOrderOfTheirNames) {
  const TempFolder folder;
  for (const char* name : {"b.txt", "a/z.txt", "c/d/e.txt", "a.txt", "a/y.txt", "B.txt"}) {
    write_file(folder.path() / name, "text");
  }
  EXPECT_EQ(names_below(folder.path()),
            (Names{"B.txt", "a/y.txt", "a/z.txt", "a.txt", "b.txt", "c/d/e.txt"}));
}

TEST(SourceFiles, HiddenFilesAndFoldersAreLeftOut) {
  const TempFolder folder;
  for (const char* name : {".hidden", ".git/config", "a/.b/c", "a/d", "e.f"}) {
    write_file(folder.path() / name, "text");
  }
  EXPECT_EQ(names_below(folder.path()), (Names{"a/d", "e.f"}));
}

TEST(SourceFiles, FolderNamedByTheUserMayBeHidden) {
  const TempFolder folder;
  write_file(folder.path() / ".corpus/a.txt", "text");
  EXPECT_EQ(names_below(folder.path() / ".corpus"), (Names{"a.txt"}));
}

TEST(SourceFiles, LinksAreFollowedButLoopsEnd) {
  const TempFolder folder, elsewhere;
  write_file(elsewhere.path() / "far.txt", "text");
  write_file(folder.path() / "sub/near.txt", "text");
  fs::create_directory_symlink(elsewhere.path(), folder.path() / "linked");
  fs::create_symlink(elsewhere.path() / "far.txt", folder.path() / "file-link");
  fs::create_directory_symlink(folder.path(), folder.path() / "sub/loop");
  fs::create_directory_symlink(folder.path() / "sub", elsewhere.path() / "back");
  EXPECT_EQ(names_below(folder.path()),
            (Names{"file-link", "linked/back/near.txt", "linked/far.txt"}));
}

TEST(SourceFiles, BrokenLinksAreLeftOut) {
  const TempFolder folder;
  write_file(folder.path() / "a.txt", "text");
  fs::create_symlink("nowhere", folder.path() / "broken");
  fs::create_symlink("itself", folder.path() / "itself");
  EXPECT_EQ(names_below(folder.path()), (Names{"a.txt"}));
}

TEST(SourceFiles, FolderThatCannotBeListedIsAFileError) {
  const TempFolder folder;
  EXPECT_THROW(files_below(folder.path() / "gone"), FileError);
}

TEST(SourceFiles, FileAndFolderAreTold) {
  const TempFolder folder;
  EXPECT_FALSE(is_folder(write_file(folder.path() / "a.txt", "text")));
  EXPECT_TRUE(is_folder(folder.path().string()));
}

TEST(SourceFiles, MissingPathIsRefused) {
  expect_config_error([] { is_folder("no/such/place"); },
                      {"data.path = \"no/such/place\" does not exist"});
}

TEST(SourceFiles, PathThatTheSystemRefusesIsRefusedWithItsReason) {
  const std::string name(1000, 'x');
  expect_config_error([&] { is_folder(name); },
                      {"data.path", "cannot be read: File name too long"});
}

TEST(SourceFiles, DeviceIsRefused) {
  expect_config_error([] { is_folder("/dev/null"); },
                      {"data.path = \"/dev/null\" is neither a file nor a folder"});
}

}  // namespace
}  // namespace penstock::data
