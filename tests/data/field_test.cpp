#include "penstock/data/field.h"

#include <vector>

#include <gtest/gtest.h>

#include "data/corpus.h"

namespace penstock::data {
namespace {

using test::expect_config_error;

TEST(Field, BytesAreThoseOfItsElements) {
  const Field pixels{"pixels", FieldType::UInt8, {3, 32, 16}};
  EXPECT_EQ(pixels.elements(), 1536);
  EXPECT_EQ(pixels.bytes(), 1536);
  EXPECT_EQ((Field{"x", FieldType::Float32, {8}}).bytes(), 32);
  EXPECT_EQ((Field{"x", FieldType::Int32, {8}}).bytes(), 32);
  EXPECT_EQ((Field{"x", FieldType::Int64, {8}}).bytes(), 64);
  EXPECT_EQ((Field{"x", FieldType::Bool, {8}}).bytes(), 8);
}

TEST(Field, ScalarHasOneElement) {
  const Field label{"label", FieldType::Int64, {}};
  EXPECT_EQ(label.elements(), 1);
  EXPECT_EQ(label.bytes(), 8);
}

TEST(Field, TextNamesTypeAndShape) {
  EXPECT_EQ(type_and_shape({"x", FieldType::UInt8, {3, 32}}), "UInt8 [3, 32]");
  EXPECT_EQ(type_and_shape({"x", FieldType::Float32, {}}), "Float32 []");
  EXPECT_EQ(name_of(FieldType::Int64), "Int64");
  EXPECT_EQ(name_of(FieldType::Int32), "Int32");
  EXPECT_EQ(name_of(FieldType::Bool), "Bool");
}

TEST(Field, UnknownTypeIsOurBug) {
  EXPECT_THROW(bytes_of(static_cast<FieldType>(99)), InternalError);
  EXPECT_THROW(name_of(static_cast<FieldType>(99)), InternalError);
}

TEST(CheckFields, GoodOnesPass) {
  check_fields({{"inputs", FieldType::Int64, {16}}, {"label", FieldType::Int32, {}}});
}

TEST(CheckFields, NoFieldsAreRefused) {
  expect_config_error([] { check_fields({}); }, {"the data has no fields; give it at least one"});
}

TEST(CheckFields, FieldWithoutANameIsRefused) {
  expect_config_error(
      [] {
        check_fields({{"a"}, {""}});
      },
      {"field 1 of the data has no name; name it"});
}

TEST(CheckFields, TwoOfOneNameAreRefused) {
  expect_config_error(
      [] {
        check_fields({{"a"}, {"b"}, {"a"}});
      },
      {"the data has two fields \"a\"; give each a name of its own"});
}

TEST(CheckFields, SizeBelowOneIsRefused) {
  for (const int64_t size : {0, -1}) {
    expect_config_error(
        [&] {
          check_fields({{"a", FieldType::Bool, {4, size}}});
        },
        {cat("field \"a\" of the data is Bool [4, ", size, "]"),
         "each size must be 1 or more (a single number has the shape {})"});
  }
}

TEST(CheckFields, MoreBytesThanCanBeCountedAreRefused) {
  const int64_t many = int64_t{1} << 31;
  check_fields({{"a", FieldType::UInt8, {many, many}}});
  expect_config_error(
      [&] {
        check_fields({{"a", FieldType::Float32, {many, many}}});
      },
      {"field \"a\" of the data is Float32 [2147483648, 2147483648]",
       "the bytes of one sample do not fit into 63 bits"});
}

}  // namespace
}  // namespace penstock::data
