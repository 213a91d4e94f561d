// Layouts of ranks that a planner has compared, for people. The best comes first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::report {

struct LayoutRow {
  int64_t pipeline = 1;
  int64_t data = 1;
  std::string shard;
  bool is_feasible = false;
  double step_s = 0;
  int64_t peak_bytes = 0;  // where it does not fit, the least that it needs
  int64_t sent_bytes = 0;
  std::string why_not;  // it was not planned
};

// "plan.pipeline = 2, plan.data = 2, plan.shard = \"optimizer\": step 1.2 s, ...; next ..."
std::string layout_line(const std::vector<LayoutRow>& rows);
std::string layout_table(const std::vector<LayoutRow>& rows);
// One line, where the first does not fit.
std::string no_layout_fits(const std::vector<LayoutRow>& rows, int64_t limit_bytes);

}  // namespace penstock::report
