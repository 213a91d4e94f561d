// Pictures of bare numbers: they have neither seconds nor bytes, and the pictures invent none.
#include <regex>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "penstock/plan/bare_pipeline.h"
#include "penstock/report/layer_table.h"
#include "penstock/report/timeline_html.h"
#include "penstock/report/timeline_svg.h"

#include "report/step_example.h"
#include "report/xml_checks.h"

namespace penstock::report {
namespace {

plan::BarePipeline bare_pipeline(double scale) {
  return plan::run_bare_pipeline(
      schedule::parse_kind("1f1b"),
      {.ranks = 4, .micro_batches = 8},
      {.forward = 1 * scale, .backward_input = 1 * scale, .backward_weight = 1 * scale});
}

nlohmann::json page_data(const StepPicture& picture) {
  const std::string html = timeline_html(picture);
  const std::string begin = "id=\"data\">";
  const size_t from = html.find(begin) + begin.size();
  return nlohmann::json::parse(html.substr(from, html.find("</script", from) - from));
}

TEST(BarePicture, ProgramsWithoutBytesAreBare) {
  EXPECT_TRUE(is_bare(bare_pipeline(1).program));
  EXPECT_FALSE(is_bare(example_program({})));
}

TEST(BarePicture, TheSvgHasNoUnits) {
  const plan::BarePipeline bare = bare_pipeline(1);
  const std::string svg = timeline_svg({"1f1b", bare.program, bare.timeline});
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_NE(svg.find(">step 33 predicted; ranks compute "), std::string::npos);
  EXPECT_NE(svg.find("; at 0 for 1<"), std::string::npos);
  EXPECT_TRUE(std::regex_search(svg, std::regex("<title>idle for [0-9]+<")));
  EXPECT_FALSE(std::regex_search(svg, std::regex("[0-9] (s|ms|us|B|KiB|MiB|GiB)\\b"))) << svg;
  for (const char* text : {">ms<", ">s<", ">us<", "memory", "peak"}) {
    EXPECT_EQ(svg.find(text), std::string::npos) << text;
  }
}

TEST(BarePicture, ThePageHasNoUnitsAndAsManyDigitsWhateverTheNumbers) {
  for (const double scale : {1e-9, 1.0, 1e9}) {
    const plan::BarePipeline bare = bare_pipeline(scale);
    const nlohmann::json data = page_data({"1f1b", bare.program, bare.timeline});
    EXPECT_EQ(data["is_bare"], true);
    EXPECT_NEAR(
        data["step"]["predicted"].get<double>() / data["ticks_per_second"].get<double>() / scale,
        33,
        1e-6);
    EXPECT_EQ(data["heading"],
              scale == 1  ? "1f1b; step 33 predicted"
              : scale < 1 ? "1f1b; step 3.3e-08 predicted"
                          : "1f1b; step 3.3e+10 predicted");
  }
  const program::Program program = example_program({});
  const program::Timeline timeline = program::simulate(program);
  const nlohmann::json data = page_data({"", program, timeline});
  EXPECT_EQ(data["is_bare"], false);
  EXPECT_EQ(data["ticks_per_second"], 1e9);
}

TEST(BarePicture, TheTextHasNoUnits) {
  const plan::BarePipeline bare = bare_pipeline(1);
  const std::string text = measured_beside_predicted({"", bare.program, bare.timeline});
  EXPECT_FALSE(std::regex_search(text, std::regex("[0-9] (s|ms|us|B|KiB|MiB|GiB)\\b"))) << text;
  EXPECT_EQ(text.find("peak"), std::string::npos);
  EXPECT_TRUE(std::regex_search(text, std::regex("step, beginning to end +33\n"))) << text;
}

}  // namespace
}  // namespace penstock::report
