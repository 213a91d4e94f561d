#include "penstock/base/file.h"

#include <gtest/gtest.h>

#include "penstock/base/error.h"

#include "support/error_text.h"
#include "support/temp_folder.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using test::error_text;
using test::TempFolder;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, GivesTheBytesOfTheFile) {
  const TempFolder folder;
  const std::string text("a\0b\xFF\n", 5);
  write_text_file(folder.path() / "file", text);
  const MappedFile file(folder.path() / "file");
  EXPECT_EQ(text_of(file), text);
  EXPECT_EQ(file.path(), folder.path() / "file");
  EXPECT_EQ(read_text_file(folder.path() / "file"), text);
}

TEST(MappedFile, OfAnEmptyFileIsEmpty) {
  const TempFolder folder;
  write_text_file(folder.path() / "empty", "");
  EXPECT_TRUE(MappedFile(folder.path() / "empty").bytes().empty());
  EXPECT_EQ(read_text_file(folder.path() / "empty"), "");
}

TEST(MappedFile, OfAMissingFileNamesThePathAndTheReason) {
  const TempFolder folder;
  const std::string path = (folder.path() / "missing").string();
  EXPECT_EQ(error_text<FileError>([&] { MappedFile file(path); }),
            "cannot read " + path + ": No such file or directory");
}

TEST(MappedFile, OfAFolderIsAnError) {
  const TempFolder folder;
  EXPECT_EQ(error_text<FileError>([&] { MappedFile file(folder.path()); }),
            "cannot read " + folder.path().string() + ": not a regular file");
}

TEST(MappedFile, MovesWithItsMapping) {
  const TempFolder folder;
  write_text_file(folder.path() / "a", "text of a");
  write_text_file(folder.path() / "b", "text of b");
  MappedFile a(folder.path() / "a");
  const std::byte* const address = a.bytes().data();
  MappedFile moved(std::move(a));
  EXPECT_EQ(moved.bytes().data(), address);
  EXPECT_TRUE(a.bytes().empty());
  {
    MappedFile b(folder.path() / "b");
    moved = std::move(b);
  }
  EXPECT_EQ(text_of(moved), "text of b");
  EXPECT_EQ(moved.path(), folder.path() / "b");
}

TEST(FileWriter, CountsAndSumsWhatItWrites) {
  const TempFolder folder;
  const fs::path path = folder.path() / "file";
  FileWriter writer(path);
  EXPECT_EQ(writer.size(), 0);
  writer.write("12345");
  writer.write("");
  writer.write("6789", 4);
  writer.finish();
  EXPECT_EQ(writer.size(), 9);
  EXPECT_EQ(writer.checksum(), 0xE3069283);
  EXPECT_EQ(read_text_file(path), "123456789");
}

TEST(FileWriter, TruncatesWhatWasThere) {
  const TempFolder folder;
  const fs::path path = folder.path() / "file";
  write_text_file(path, "a long old text");
  FileWriter writer(path);
  writer.write("new");
  writer.finish();
  EXPECT_EQ(read_text_file(path), "new");
}

TEST(FileWriter, WithoutFinishClosesTheFileAsItIs) {
  const TempFolder folder;
  const fs::path path = folder.path() / "file";
  {
    FileWriter writer(path);
    writer.write("part");
  }
  EXPECT_EQ(read_text_file(path), "part");
}

TEST(FileWriter, BelowARegularFileNamesThePathAndTheReason) {
  const TempFolder folder;
  write_text_file(folder.path() / "file", "");
  const fs::path path = folder.path() / "file" / "below";
  EXPECT_EQ(error_text<FileError>([&] { FileWriter writer(path); }),
            "cannot write " + path.string() + ": Not a directory");
}

TEST(FileWriter, OnAFullDiskSaysSo) {
  FileWriter writer("/dev/full");
  EXPECT_EQ(error_text<FileError>([&] { writer.write("text"); }),
            "cannot write /dev/full: No space left on device");
}

std::string read_at(const OffsetReader& file, int64_t offset, size_t bytes) {
  std::string text(bytes, '?');
  file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(OffsetReader, GivesTheBytesThatWereAskedFor) {
  const TempFolder folder;
  write_text_file(folder.path() / "file", "0123456789");
  OffsetReader opened(folder.path() / "file");
  const OffsetReader file = std::move(opened);
  EXPECT_EQ(file.size(), 10);
  EXPECT_EQ(file.path(), folder.path() / "file");
  EXPECT_EQ(read_at(file, 0, 10), "0123456789");
  EXPECT_EQ(read_at(file, 7, 3), "789");
  EXPECT_EQ(read_at(file, 3, 1), "3");
  EXPECT_EQ(read_at(file, 10, 0), "");
}

TEST(OffsetReader, SaysWhereTheFileEnds) {
  const TempFolder folder;
  const fs::path path = folder.path() / "file";
  write_text_file(path, "0123456789");
  const OffsetReader file(path);
  EXPECT_EQ(error_text<FileError>([&] { read_at(file, 8, 5); }),
            "cannot read " + path.string() + ": it ends at byte 10, 3 short");
}

TEST(OffsetReader, OfNoRegularFileIsAnError) {
  const TempFolder folder;
  const std::string missing = (folder.path() / "missing").string();
  EXPECT_EQ(error_text<FileError>([&] { OffsetReader file(missing); }),
            "cannot read " + missing + ": No such file or directory");
  EXPECT_EQ(error_text<FileError>([&] { OffsetReader file(folder.path()); }),
            "cannot read " + folder.path().string() + ": not a regular file");
}

TEST(OffsetWriter, WritersOfOneFileLeaveEachOthersBytes) {
  const TempFolder folder;
  const fs::path path = folder.path() / "file";
  write_text_file(path, "a long old text");
  OffsetWriter first = OffsetWriter::create(path, 8);
  OffsetWriter second = OffsetWriter::open(path);
  second.write(5, "xyz", 3);
  first.write(0, "ab", 2);
  first.write(8, nullptr, 0);
  first.finish();
  second.finish();
  EXPECT_EQ(read_text_file(path), std::string("ab\0\0\0xyz", 8));
}

TEST(OffsetWriter, FailuresNameThePathAndTheReason) {
  const TempFolder folder;
  const fs::path missing = folder.path() / "missing";
  EXPECT_EQ(error_text<FileError>([&] { OffsetWriter::open(missing); }),
            "cannot write " + missing.string() + ": No such file or directory");
  EXPECT_EQ(error_text<FileError>([&] { OffsetWriter::create(folder.path(), 1); }),
            "cannot write " + folder.path().string() + ": Is a directory");
  EXPECT_EQ(error_text<FileError>([&] { OffsetWriter::create("/dev/full", 1); }),
            "cannot write /dev/full: Invalid argument");
  OffsetWriter full = OffsetWriter::open("/dev/full");
  EXPECT_EQ(error_text<FileError>([&] { full.write(0, "text", 4); }),
            "cannot write /dev/full: No space left on device");
}

TEST(WriteTextFile, ReplacesTheFileAndLeavesNoOther) {
  const TempFolder folder;
  const fs::path path = folder.path() / "file";
  write_text_file(path, "old");
  const MappedFile old(path);
  write_text_file(path, "newer");
  EXPECT_EQ(text_of(old), "old");  // a new file took its place; the old one was not overwritten
  EXPECT_EQ(read_text_file(path), "newer");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"file"});
}

TEST(WriteTextFile, TakesARelativePathWithoutAFolder) {
  const TempFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  EXPECT_NO_THROW(write_text_file("file", "text"));
  fs::current_path(before);
  EXPECT_EQ(read_text_file(folder.path() / "file"), "text");
}

TEST(WriteTextFile, FailureLeavesNoTemporaryFile) {
  const TempFolder folder;
  const fs::path path = folder.path() / "taken";
  fs::create_directory(path);
  const std::string error = error_text<FileError>([&] { write_text_file(path, "text"); });
  EXPECT_EQ(error, "cannot write " + path.string() + ": Is a directory");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"taken"});
}

TEST(WriteTextFile, BelowARegularFileIsAnError) {
  const TempFolder folder;
  write_text_file(folder.path() / "file", "");
  const std::string error =
      error_text<FileError>([&] { write_text_file(folder.path() / "file" / "below", "text"); });
  EXPECT_NE(error.find("Not a directory"), std::string::npos) << error;
}

TEST(SyncFolder, OfAMissingFolderIsAnError) {
  const TempFolder folder;
  EXPECT_NO_THROW(sync_folder(folder.path()));
  const std::string path = (folder.path() / "missing").string();
  EXPECT_EQ(error_text<FileError>([&] { sync_folder(path); }),
            "cannot sync " + path + ": No such file or directory");
}

TEST(RequireWritableFolder, CreatesTheFolderAndLeavesItEmpty) {
  const TempFolder folder;
  const fs::path path = folder.path() / "a" / "b";
  EXPECT_NO_THROW(require_writable_folder(path, "run.out"));
  EXPECT_TRUE(fs::is_directory(path));
  EXPECT_TRUE(fs::is_empty(path));
  EXPECT_NO_THROW(require_writable_folder(path, "run.out"));
}

TEST(RequireWritableFolder, FailureNamesOptionFolderReasonAndRemedy) {
  const TempFolder folder;
  write_text_file(folder.path() / "file", "");
  for (const fs::path& path : {folder.path() / "file", folder.path() / "file" / "below"}) {
    EXPECT_EQ(error_text<ConfigError>([&] { require_writable_folder(path, "run.out"); }),
              "run.out = \"" + path.string() +
                  "\" cannot be written: Not a directory; choose another folder with --set "
                  "run.out=DIR");
  }
}

}  // namespace
}  // namespace penstock
