#include "penstock/report/timeline_html.h"

#include "penstock/base/error.h"
#include "penstock/base/text.h"
#include "penstock/report/svg.h"
#include "penstock/report/timeline_data.h"
#include "penstock/report/timeline_page.h"

namespace penstock::report {

std::string filled_page(const std::string& title, const std::string& data) {
  const std::string script = cat(timeline_chart_script(),
                                 timeline_pointer_script(),
                                 timeline_tables_script(),
                                 timeline_steps_script());
  std::string_view rest = timeline_page();
  std::string out;
  // The page is cut at its marks, and never searched again: a title may look like a mark.
  const auto fill = [&](std::string_view mark, const std::string& text) {
    const size_t at = rest.find(mark);
    PENSTOCK_CHECK(at != std::string_view::npos, "the page lacks ", mark);
    out.append(rest.substr(0, at)).append(text);
    rest.remove_prefix(at + mark.size());
  };
  fill(kTitleMark, xml_escape(title));
  fill(kDataMark, data);
  fill(kScriptMark, script);
  return out.append(rest);
}

std::string timeline_html(const StepPicture& picture) {
  return filled_page(heading_text(picture), timeline_data(picture));
}

}  // namespace penstock::report
