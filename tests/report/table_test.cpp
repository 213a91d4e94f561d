#include "penstock/report/table.h"

#include <gtest/gtest.h>

#include "penstock/base/error.h"

namespace penstock::report {
namespace {

TEST(Table, AlignsTextLeftAndNumbersRight) {
  Table table({{"name", Align::Left}, {"bytes", Align::Right}, {"note", Align::Left}});
  table.add_row({"embedding", "12", "x"});
  table.add_row({"head", "123456", ""});
  EXPECT_EQ(table.text(),
            "name        bytes  note\n"
            "-----------------------\n"
            "embedding      12  x\n"
            "head       123456\n");
}

TEST(Table, CountsCodePointsNotBytes) {
  Table table({{"größe", Align::Left}, {"µs", Align::Right}});
  table.add_row({"αβγδεζ", "1"});
  table.add_row({"ab", "100"});
  EXPECT_EQ(table.text(),
            "größe    µs\n"
            "-----------\n"
            "αβγδεζ    1\n"
            "ab      100\n");
}

TEST(Table, RuleSeparatesRows) {
  Table table({{"a", Align::Left}, {"b", Align::Right}});
  table.add_row({"x", "1"});
  table.add_rule();
  table.add_row({"total", "1"});
  EXPECT_EQ(table.text(),
            "a      b\n"
            "--------\n"
            "x      1\n"
            "--------\n"
            "total  1\n");
}

TEST(Table, WithoutHeadingsHasNoHeadingLine) {
  Table table({{"", Align::Left}, {"", Align::Right}});
  table.add_row({"a", "1"});
  EXPECT_EQ(table.text(), "a  1\n");
}

TEST(Table, WithoutRowsIsHeadingAndRule) {
  EXPECT_EQ(Table({{"a", Align::Left}}).text(), "a\n-\n");
}

TEST(Table, EmptyCellsMakeAnEmptyLine) {
  Table table({{"", Align::Left}, {"", Align::Left}});
  table.add_row({"", ""});
  EXPECT_EQ(table.text(), "\n");
}

TEST(Table, RowsOfAnotherLengthAreRefused) {
  Table table({{"a", Align::Left}, {"b", Align::Left}});
  EXPECT_THROW(table.add_row({"x"}), InternalError);
  EXPECT_THROW(table.add_row({"x", "y", "z"}), InternalError);
  EXPECT_THROW(Table({}), InternalError);
}

}  // namespace
}  // namespace penstock::report
