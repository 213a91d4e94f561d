// Of several ranks one speaks for all.
#pragma once

namespace penstock {

// While it lives, the calling thread logs errors alone.
class QuietScope {
 public:
  explicit QuietScope(bool is_quiet);
  ~QuietScope();
  QuietScope(const QuietScope&) = delete;
  QuietScope& operator=(const QuietScope&) = delete;

 private:
  bool before_;
};

}  // namespace penstock
