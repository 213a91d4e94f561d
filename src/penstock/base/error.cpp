#include "penstock/base/error.h"

namespace penstock {

void fail_check(const char* condition, const std::string& message, const char* file, int line) {
  std::string_view where = file;
  if (const size_t root = where.rfind("penstock/"); root != std::string_view::npos) {
    where.remove_prefix(root);
  }
  throw InternalError(cat("internal error at ",
                          where,
                          ":",
                          line,
                          ": ",
                          message,
                          " (expected ",
                          condition,
                          "); please report it"));
}

}  // namespace penstock
