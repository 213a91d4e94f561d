#include "penstock/base/error.h"

#include <gtest/gtest.h>

#include "support/error_text.h"

namespace penstock {
namespace {

using test::error_text;

TEST(Check, PassesWhenTheConditionHolds) {
  int evaluated = 0;
  EXPECT_NO_THROW(PENSTOCK_CHECK(++evaluated == 1, "evaluated ", evaluated, " times"));
  EXPECT_EQ(evaluated, 1);
}

TEST(Check, BuildsItsMessageOnlyOnFailure) {
  bool was_built = false;
  const auto message = [&] {
    was_built = true;
    return "text";
  };
  EXPECT_NO_THROW(PENSTOCK_CHECK(true, message()));
  EXPECT_FALSE(was_built);
}

TEST(Check, FailureNamesPlaceConditionAndValues) {
  const int index = 7, size = 5;
  const int line = __LINE__ + 1;
  const auto check = [&] { PENSTOCK_CHECK(index < size, "index ", index, " of ", size); };
  const std::string text = error_text<InternalError>(check);
  EXPECT_NE(text.find(cat("error_test.cpp:", line, ": ")), std::string::npos) << text;
  EXPECT_NE(text.find("index 7 of 5"), std::string::npos) << text;
  EXPECT_NE(text.find("expected index < size"), std::string::npos) << text;
  EXPECT_NE(text.find("please report it"), std::string::npos) << text;
}

TEST(Check, NamesSourcesFromTheSourceRootOn) {
  const auto check = [] { fail_check("a", "b", "/home/me/src/penstock/base/file.cpp", 12); };
  EXPECT_EQ(error_text<InternalError>(check),
            "internal error at penstock/base/file.cpp:12: b (expected a); please report it");
}

TEST(Check, IsOneStatement) {
  bool reached_else = false;
  if (false)
    PENSTOCK_CHECK(false, "not reached");
  else
    reached_else = true;
  EXPECT_TRUE(reached_else);
}

TEST(Errors, CarryTheExitCodeOfTheirSort) {
  EXPECT_EQ(ConfigError("").exit_code(), ExitCode::UserInput);
  EXPECT_EQ(FileError("").exit_code(), ExitCode::UserInput);
  EXPECT_EQ(CheckpointError("").exit_code(), ExitCode::UserInput);
  EXPECT_EQ(InternalError("").exit_code(), ExitCode::Internal);
}

TEST(Errors, ExitCodesAreTheDocumentedNumbers) {
  EXPECT_EQ(static_cast<int>(ExitCode::Ok), 0);
  EXPECT_EQ(static_cast<int>(ExitCode::Negative), 1);
  EXPECT_EQ(static_cast<int>(ExitCode::UserInput), 2);
  EXPECT_EQ(static_cast<int>(ExitCode::Internal), 3);
}

TEST(Errors, AreCaughtAsErrorWithTheirText) {
  try {
    throw FileError("cannot read x");
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "cannot read x");
    EXPECT_EQ(error.exit_code(), ExitCode::UserInput);
  }
}

}  // namespace
}  // namespace penstock
