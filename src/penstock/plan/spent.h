// Where the seconds of planning go: by decider and by pass, those inside others included.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/base/clock.h"

namespace penstock::plan {

struct Spent {
  struct Entry {
    std::string name;
    int64_t times = 0;
    double seconds = 0;
  };
  std::vector<Entry> entries;  // in the order in which they came first

  void add(std::string_view name, double seconds) {
    auto found = std::find_if(
        entries.begin(), entries.end(), [&](const Entry& one) { return one.name == name; });
    if (found == entries.end()) {
      found = entries.insert(entries.end(), {.name = std::string(name)});
    }
    ++found->times;
    found->seconds += seconds;
  }
};

// Adds its lifetime; nowhere to add it to: does nothing.
class SpentScope {
 public:
  SpentScope(Spent* spent, std::string_view name)
      : spent_(spent), name_(name), began_(spent ? now_seconds() : 0) {}
  ~SpentScope() {
    if (spent_) {
      spent_->add(name_, now_seconds() - began_);
    }
  }
  SpentScope(const SpentScope&) = delete;
  SpentScope& operator=(const SpentScope&) = delete;

 private:
  Spent* const spent_;
  const std::string_view name_;
  const double began_;
};

}  // namespace penstock::plan
