#include "penstock/checkpoint/safetensors.h"

#include <fstream>
#include <random>

#include <gtest/gtest.h>

#include "penstock/base/error.h"

#include "checkpoint/safetensors_bytes.h"
#include "support/error_text.h"
#include "support/temp_folder.h"

namespace penstock::checkpoint {
namespace {

using test::as_byte_span;
using test::error_text;
using test::safetensors_bytes;
using test::TempFolder;

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors(as_byte_span(file));
}

void expect_rejected(const std::string& file, const std::string& reason) {
  const std::string text = error_text<CheckpointError>([&] { parse(file); });
  EXPECT_NE(text.find(reason), std::string::npos) << "got: " << text;
}

// A header and as many bytes of data.
void expect_rejected(const std::string& header, size_t data_bytes, const std::string& reason) {
  expect_rejected(safetensors_bytes(header, data_bytes), reason);
}

// One tensor "a" from its fields.
std::string one_tensor(const std::string& dtype,
                       const std::string& shape,
                       const std::string& offsets) {
  return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirData) {
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},)"
                             R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})";
  const SafetensorsHeader parsed = parse(safetensors_bytes(header, 12));
  ASSERT_EQ(parsed.tensors.size(), 2u);
  EXPECT_EQ(parsed.tensors[0].name, "b");
  EXPECT_EQ(parsed.tensors[0].dtype, Dtype::BF16);
  EXPECT_EQ(parsed.tensors[1].name, "a");
  EXPECT_EQ(parsed.tensors[1].shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(parsed.tensors[1].begin, 4u);
  EXPECT_EQ(parsed.tensors[1].end, 12u);
  EXPECT_EQ(parsed.metadata.at("format"), "pt");
  EXPECT_EQ(parsed.data_begin, 8 + header.size());
}

TEST(Safetensors, AcceptsAHeaderWithoutTensors) {
  EXPECT_TRUE(parse(safetensors_bytes("{}", 0)).tensors.empty());
  EXPECT_TRUE(parse(safetensors_bytes(R"({"__metadata__":{}})", 0)).metadata.empty());
}

TEST(Safetensors, AcceptsTrailingSpaces) {
  EXPECT_TRUE(parse(safetensors_bytes("{}      ", 0)).tensors.empty());
}

TEST(Safetensors, AcceptsEmptyTensorsWhereAnotherBegins) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                             R"("e":{"dtype":"F32","shape":[3,0],"data_offsets":[0,0]},)"
                             R"("z":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})";
  const SafetensorsHeader parsed = parse(safetensors_bytes(header, 4));
  ASSERT_EQ(parsed.tensors.size(), 3u);
  EXPECT_EQ(parsed.tensors[0].name, "e");
  EXPECT_EQ(parsed.tensors[2].name, "z");
}

TEST(Safetensors, AcceptsEmptyAndUnusualNames) {
  const std::string header = R"({"":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)"
                             R"("é\n\u00e9":{"dtype":"U8","shape":[],"data_offsets":[1,2]}})";
  const SafetensorsHeader parsed = parse(safetensors_bytes(header, 2));
  EXPECT_EQ(parsed.tensors[0].name, "");
  EXPECT_EQ(parsed.tensors[1].name, "\u00e9\n\u00e9");
}

TEST(Safetensors, RejectsFilesTooShortForALength) {
  expect_rejected("", "too short");
  expect_rejected("1234567", "file of 7 bytes is too short");
}

TEST(Safetensors, RejectsHeaderLengthOverTheLimit) {
  expect_rejected(safetensors_bytes(100'000'001, "{}", 0), "header length 100000001 is over");
  expect_rejected(safetensors_bytes(UINT64_MAX, "{}", 0), "header length 18446744073709551615");
}

TEST(Safetensors, RejectsHeaderPastTheEnd) {
  expect_rejected(safetensors_bytes(3, "{}", 0), "header of 3 bytes reaches past the end");
  expect_rejected(safetensors_bytes(100'000'000, "{}", 0), "past the end of the file (10 bytes)");
}

TEST(Safetensors, RejectsHeaderThatDoesNotBeginWithABrace) {
  expect_rejected("", 0, "does not begin with '{'");
  expect_rejected(" {}", 0, "does not begin with '{'");
  expect_rejected("\xEF\xBB\xBF{}", 0, "does not begin with '{'");
  expect_rejected("[]", 0, "does not begin with '{'");
}

TEST(Safetensors, RejectsInvalidUtf8) {
  expect_rejected("{\"__metadata__\":{\"a\":\"\xC3\x28\"}}", 0, "header is not valid UTF-8");
  expect_rejected("{\"\xED\xA0\x80\":1}", 0, "header is not valid UTF-8");
}

TEST(Safetensors, RejectsInvalidJson) {
  expect_rejected("{", 0, "header is not valid JSON near byte");
  expect_rejected("{} x", 0, "header is not valid JSON near byte 4");
  expect_rejected("{}{}", 0, "header is not valid JSON near byte 3");
  expect_rejected("{'a':1}", 0, "header is not valid JSON");
  expect_rejected("{\"a\":1,}", 0, "header is not valid JSON");
  expect_rejected("{/*c*/}", 0, "header is not valid JSON");
  expect_rejected(R"({"\ud800":1})", 0, "header is not valid JSON");
  expect_rejected(one_tensor("\"U8\"", "[1e999]", "[0,1]"), 1, "number out of range");
}

TEST(Safetensors, RejectsZeroBytesInTheHeader) {
  // The JSON library would stop at the zero and ignore what follows.
  expect_rejected(std::string("{}\0\0", 4), 0, "zero byte at byte 2");
  expect_rejected(std::string("{}\0 {\"a\":1}", 11), 0, "zero byte at byte 2");
}

TEST(Safetensors, RejectsRepeatedKeys) {
  const std::string tensor = R"("a":{"dtype":"U8","shape":[],"data_offsets":[0,1]})";
  expect_rejected("{" + tensor + "," + tensor + "}", 1, "header repeats the key \"a\"");
  expect_rejected(R"({"__metadata__":{"k":"1","k":"2"}})", 0, "header repeats the key \"k\"");
  expect_rejected(
      R"({"__metadata__":{},"__metadata__":{}})", 0, "repeats the key \"__metadata__\"");
  expect_rejected(R"({"a":{"dtype":"U8","dtype":"I8","shape":[],"data_offsets":[0,1]}})",
                  1,
                  "header repeats the key \"dtype\"");
  expect_rejected(R"({"b":1,"\u0062":1})", 0, "header repeats the key \"b\"");
}

TEST(Safetensors, RejectsDeepNestingWithoutRecursion) {
  expect_rejected(one_tensor("\"U8\"", "[[1]]", "[0,1]"), 1, "nested deeper than 3 levels");
  std::string deep = "{\"a\":";
  deep.append(20'000'000, '[');
  expect_rejected(deep, 0, "header is nested deeper than 3 levels");
}

TEST(Safetensors, RejectsMetadataThatIsNotTextToText) {
  expect_rejected(R"({"__metadata__":null})", 0, "__metadata__ must be an object, not null");
  expect_rejected(R"({"__metadata__":[]})", 0, "__metadata__ must be an object, not array");
  expect_rejected(R"({"__metadata__":{"k":1}})", 0, "the value of \"k\" must be text, not number");
  expect_rejected(R"({"__metadata__":{"k":{}}})", 0, "the value of \"k\" must be text, not object");
}

TEST(Safetensors, RejectsTensorsThatAreNoObject) {
  expect_rejected(R"({"a":1})", 0, "tensor \"a\": must be an object, not number");
  expect_rejected(R"({"a":[]})", 0, "tensor \"a\": must be an object, not array");
}

TEST(Safetensors, RejectsMissingFields) {
  expect_rejected(
      R"({"a":{"shape":[],"data_offsets":[0,1]}})", 1, "tensor \"a\": dtype is missing");
  expect_rejected(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "shape is missing");
  expect_rejected(R"({"a":{"dtype":"U8","shape":[]}})", 1, "data_offsets is missing");
}

TEST(Safetensors, RejectsUnknownFields) {
  expect_rejected(R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"x":0}})",
                  1,
                  "tensor \"a\": unknown field \"x\"");
}

TEST(Safetensors, RejectsFieldsOfTheWrongType) {
  expect_rejected(one_tensor("1", "[]", "[0,1]"), 1, "dtype must be text, not number");
  expect_rejected(one_tensor("\"U8\"", "1", "[0,1]"), 1, "shape must be a list, not number");
  expect_rejected(one_tensor("\"U8\"", "{}", "[0,1]"), 1, "shape must be a list, not object");
  expect_rejected(one_tensor("\"U8\"", "[\"1\"]", "[0,1]"), 1, "shape must hold whole numbers");
  expect_rejected(one_tensor("\"U8\"", "[1.0]", "[0,1]"), 1, "shape must hold whole numbers");
  expect_rejected(one_tensor("\"U8\"", "[true]", "[0,1]"), 1, "shape must hold whole numbers");
  expect_rejected(one_tensor("\"U8\"", "[null]", "[0,1]"), 1, "shape must hold whole numbers");
  expect_rejected(one_tensor("\"U8\"", "[1]", "\"0,1\""), 1, "data_offsets must be a list");
  expect_rejected(one_tensor("\"U8\"", "[1]", "[0]"), 1, "must be two numbers, not 1");
  expect_rejected(one_tensor("\"U8\"", "[1]", "[0,1,2]"), 1, "must be two numbers, not 3");
  expect_rejected(
      one_tensor("\"U8\"", "[1]", "[0,1.5]"), 1, "data_offsets must hold whole numbers");
  expect_rejected(one_tensor("\"U8\"", "[1]", "[-1,0]"), 1, "data_offsets must hold whole numbers");
}

TEST(Safetensors, RejectsUnknownDtypes) {
  expect_rejected(one_tensor("\"F128\"", "[1]", "[0,16]"), 16, "unknown dtype \"F128\"");
  expect_rejected(one_tensor("\"f32\"", "[1]", "[0,4]"), 4, "unknown dtype \"f32\"");
}

TEST(Safetensors, RejectsNegativeDims) {
  expect_rejected(one_tensor("\"U8\"", "[-1]", "[0,1]"), 1, "shape must hold whole numbers");
  expect_rejected(one_tensor("\"U8\"", "[-1,-1]", "[0,1]"), 1, "shape must hold whole numbers");
}

TEST(Safetensors, RejectsShapesThatOverflow) {
  expect_rejected(one_tensor("\"U8\"", "[18446744073709551615]", "[0,1]"), 1, "which is too large");
  // 2^64 wraps to 0 bytes.
  expect_rejected(one_tensor("\"U8\"", "[4294967296,4294967296]", "[0,0]"),
                  0,
                  "[4294967296, 4294967296] is too");
  // The number of elements fits, their size does not.
  expect_rejected(one_tensor("\"F64\"", "[2305843009213693952]", "[0,0]"), 0, "is too large");
  // Empty, but its strides overflow.
  expect_rejected(one_tensor("\"U8\"", "[0,4294967296,4294967296]", "[0,0]"), 0, "is too large");
}

TEST(Safetensors, RejectsOffsetsThatRunBackwards) {
  expect_rejected(one_tensor("\"U8\"", "[1]", "[1,0]"), 1, "data_offsets [1, 0] run backwards");
}

TEST(Safetensors, RejectsOffsetsPastTheData) {
  expect_rejected(
      one_tensor("\"U8\"", "[2]", "[0,2]"), 1, "data ends at byte 2 of a data section of 1 bytes");
  expect_rejected(one_tensor("\"U8\"", "[1]", "[18446744073709551614,18446744073709551615]"),
                  1,
                  "data ends at byte 18446744073709551615");
}

TEST(Safetensors, RejectsSizesThatDoNotMatchTheShape) {
  expect_rejected(one_tensor("\"F32\"", "[2]", "[0,4]"),
                  4,
                  "tensor \"a\": shape [2] of F32 needs 8 bytes, data_offsets give 4");
  expect_rejected(one_tensor("\"F32\"", "[]", "[0,8]"), 8, "shape [] of F32 needs 4 bytes");
  expect_rejected(one_tensor("\"F32\"", "[0]", "[0,4]"), 4, "needs 0 bytes, data_offsets give 4");
}

TEST(Safetensors, RejectsGaps) {
  expect_rejected(one_tensor("\"U8\"", "[1]", "[1,2]"), 2, "begins at byte 1 and leaves a gap");
  expect_rejected(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                  R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                  3,
                  "tensor \"b\": data begins at byte 2 and leaves a gap");
}

TEST(Safetensors, RejectsOverlaps) {
  expect_rejected(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                  R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                  3,
                  "tensor \"b\": data begins at byte 1 and overlaps");
  expect_rejected(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                  R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                  2,
                  "overlaps");
}

TEST(Safetensors, RejectsDataAfterTheLastTensor) {
  expect_rejected(
      one_tensor("\"U8\"", "[1]", "[0,1]"), 2, "tensors end at byte 1 of a data section");
  expect_rejected("{}", 1, "tensors end at byte 0 of a data section of 1 bytes");
}

TEST(Safetensors, ErrorsStayOnOneShortLineWhateverTheName) {
  const std::string name = "line\\nbreak" + std::string(10'000, 'x');
  const std::string text =
      error_text<CheckpointError>([&] { parse(safetensors_bytes("{\"" + name + "\":1}", 0)); });
  EXPECT_LT(text.size(), 200u);
  EXPECT_NE(text.find("line?breakxxx"), std::string::npos) << text;
}

TEST(Safetensors, ErrorsNameHostileShapesInShort) {
  std::string shape = "[9";
  for (int i = 0; i < 100'000; ++i) {
    shape += ",1";
  }
  const std::string file = safetensors_bytes(one_tensor("\"U8\"", shape + "]", "[0,1]"), 1);
  EXPECT_LT(error_text<CheckpointError>([&] { parse(file); }).size(), 200u);
}

TEST(Safetensors, FlippedBytesAreRejectedOrParseInBounds) {
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                             R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]},)"
                             R"("e":{"dtype":"I64","shape":[0,7],"data_offsets":[28,28]}})";
  const std::string whole = safetensors_bytes(header, 28);
  const size_t front = 8 + header.size();  // the rest is data, where every flip is accepted
  std::mt19937 random(1234);
  int num_rejected = 0, num_accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string file = whole;
    for (unsigned flips = 1 + random() % 4; flips > 0; --flips) {
      file[random() % front] = static_cast<char>(random());
    }
    try {
      const SafetensorsHeader parsed = parse(file);
      size_t covered = 0;
      for (const TensorEntry& tensor : parsed.tensors) {
        EXPECT_EQ(tensor.begin, covered);
        EXPECT_EQ(tensor_bytes(tensor.dtype, tensor.shape), tensor.end - tensor.begin);
        covered = tensor.end;
      }
      EXPECT_EQ(parsed.data_begin + covered, file.size());
      ++num_accepted;
    } catch (const CheckpointError&) {
      ++num_rejected;
    }
  }
  EXPECT_GT(num_rejected, 1000);
  EXPECT_GT(num_accepted, 100);
}

TEST(Safetensors, EveryCutIsRejected) {
  const std::string whole = safetensors_bytes(one_tensor("\"F32\"", "[4]", "[0,16]"), 16);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(parse(whole.substr(0, size)), CheckpointError) << size;
  }
}

TEST(SafetensorsFile, FindsTensorsAndTheirBytes) {
  const TempFolder folder;
  const auto path = folder.path() / "x.safetensors";
  std::ofstream(path, std::ios::binary)
      << safetensors_bytes(one_tensor("\"U8\"", "[3]", "[0,3]"), 0) << "xyz";
  SafetensorsFile opened(path);
  const SafetensorsFile file = std::move(opened);
  EXPECT_EQ(file.find("b"), nullptr);
  const TensorEntry* entry = file.find("a");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(file.path(), path);
  std::string data = "???";
  file.read(*entry, 0, std::as_writable_bytes(std::span(data)));
  EXPECT_EQ(data, "xyz");
  file.read(*entry, 1, std::as_writable_bytes(std::span(data).first(2)));
  EXPECT_EQ(data, "yzz");
  EXPECT_THROW(file.read(*entry, 1, std::as_writable_bytes(std::span(data))), InternalError);
  EXPECT_THROW(file.read(*entry, 4, {}), InternalError);
}

TEST(SafetensorsFile, ReadsNoMoreThanAHeaderBeforeItIsAsked) {
  const TempFolder folder;
  const auto path = folder.path() / "x.safetensors";
  std::ofstream(path, std::ios::binary)
      << safetensors_bytes(one_tensor("\"U8\"", "[3]", "[0,3]"), 3);
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  std::string data = "???";
  const auto read = [&](size_t bytes) {
    file.read(*file.find("a"), 0, std::as_writable_bytes(std::span(data).first(bytes)));
  };
  read(2);
  EXPECT_NE(error_text<FileError>([&] { read(3); }).find("it ends at byte"), std::string::npos);
}

TEST(SafetensorsFile, ErrorsBeginWithThePath) {
  const TempFolder folder;
  const auto path = folder.path() / "x.safetensors";
  std::ofstream(path) << "short";
  const std::string text = error_text<CheckpointError>([&] { SafetensorsFile{path}; });
  EXPECT_EQ(text, path.string() + ": file of 5 bytes is too short for a safetensors file");
}

TEST(SafetensorsFile, MissingFileIsAFileError) {
  EXPECT_THROW(SafetensorsFile("/nonexistent/x.safetensors"), FileError);
}

}  // namespace
}  // namespace penstock::checkpoint
