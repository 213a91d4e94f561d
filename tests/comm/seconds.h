// Lines that tell how long a wait was, made equal on a slow machine and a fast one.
#pragma once

#include <regex>
#include <string>

namespace penstock::comm::test {

// "waited 0.2 s" becomes "waited N s".
inline std::string without_seconds(const std::string& line) {
  static const std::regex kSeconds(R"(\d+\.\d s)");
  return std::regex_replace(line, kSeconds, "N s");
}

}  // namespace penstock::comm::test
