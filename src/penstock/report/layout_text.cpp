#include "penstock/report/layout_text.h"

#include "penstock/base/text.h"
#include "penstock/base/units.h"
#include "penstock/report/table.h"

namespace penstock::report {

namespace {

std::string name_of(const LayoutRow& row) {
  return cat("plan.pipeline = ",
             row.pipeline,
             ", plan.data = ",
             row.data,
             row.data > 1 ? cat(", plan.shard = \"", row.shard, "\"") : "");
}

}  // namespace

std::string layout_line(const std::vector<LayoutRow>& rows) {
  const LayoutRow& best = rows.front();
  std::string line = cat(name_of(best),
                         ": step ",
                         format_seconds(best.step_s),
                         ", peak ",
                         format_bytes(best.peak_bytes),
                         " predicted");
  if (rows.size() > 1 && rows[1].is_feasible) {
    line += cat("; next ",
                name_of(rows[1]),
                ": ",
                format_seconds(rows[1].step_s),
                ", ",
                format_bytes(rows[1].peak_bytes));
  }
  return line;
}

std::string layout_table(const std::vector<LayoutRow>& rows) {
  Table table({{"pipeline", Align::Right},
               {"data", Align::Right},
               {"shard"},
               {"step", Align::Right},
               {"peak", Align::Right},
               {"sent to replicas", Align::Right},
               {""}});
  for (const LayoutRow& row : rows) {
    const bool is_planned = row.why_not.empty();
    table.add_row({cat(row.pipeline),
                   cat(row.data),
                   row.data > 1 ? row.shard : "",
                   is_planned && row.is_feasible ? format_seconds(row.step_s) : "",
                   is_planned ? format_bytes(row.peak_bytes) : "",
                   is_planned && row.data > 1 ? format_bytes(row.sent_bytes) : "",
                   !is_planned        ? row.why_not
                   : !row.is_feasible ? "does not fit"
                   : &row == &rows[0] ? "chosen"
                                      : ""});
  }
  return table.text();
}

std::string no_layout_fits(const std::vector<LayoutRow>& rows, int64_t limit_bytes) {
  const LayoutRow& best = rows.front();
  if (!best.why_not.empty()) {
    return cat("no layout of the ranks can be planned; ", name_of(best), ": ", best.why_not);
  }
  return cat("does not fit: of ",
             rows.size(),
             " layouts of the ranks the leanest, ",
             name_of(best),
             ", needs at least ",
             format_count(best.peak_bytes),
             " bytes on a rank, and plan.memory allows ",
             format_count(limit_bytes),
             "; try more ranks, more plan.micro_batches or a smaller train.batch");
}

}  // namespace penstock::report
