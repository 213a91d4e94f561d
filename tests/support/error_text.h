// The message of the error a call throws.
#pragma once

#include <string>

#include <gtest/gtest.h>

namespace penstock::test {

// Fails the test unless `call` throws an ErrorType, whose text must be one line.
template <typename ErrorType, typename Call>
std::string error_text(const Call& call) {
  try {
    call();
  } catch (const ErrorType& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace penstock::test
