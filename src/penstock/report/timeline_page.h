// The page that timeline_html fills: markup, style and scripts, without data.
//
// All text from outside reaches the page as JSON and is shown as textContent, never as markup. The
// page's content policy lets it load nothing at all.
#pragma once

#include <string_view>

namespace penstock::report {

// Marks in the page, each there once and in this order.
inline constexpr std::string_view kTitleMark = "@TITLE@";    // escaped text goes here
inline constexpr std::string_view kDataMark = "@DATA@";      // JSON without "<"
inline constexpr std::string_view kScriptMark = "@SCRIPT@";  // the scripts, in the order below

std::string_view timeline_page();
std::string_view timeline_chart_script();
std::string_view timeline_pointer_script();
std::string_view timeline_tables_script();
std::string_view timeline_steps_script();

}  // namespace penstock::report
