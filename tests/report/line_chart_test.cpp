#include "penstock/report/line_chart.h"

#include <cmath>
#include <limits>
#include <sstream>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/report/text_width.h"

#include "report/xml_checks.h"

namespace penstock::report {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void expect_no_stray_numbers(const std::string& svg) {
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

LineChart loss_chart() {
  return {.title = "Loss",
          .x_label = "step",
          .y_label = "nats",
          .curves = {{"train", {0, 1, 2, 3}, {4, 3, 2.5, 2.25}}}};
}

TEST(LineChartSvg, IsWellFormedWithTitleLabelsAndCurve) {
  const std::string svg = line_chart_svg(loss_chart());
  EXPECT_TRUE(is_well_formed(svg)) << svg;
  EXPECT_NE(svg.find("<svg xmlns=\"http://www.w3.org/2000/svg\""), std::string::npos);
  for (const char* text : {">Loss<", ">step<", ">nats<"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(count_of(svg, "<polyline"), 1u);
}

TEST(LineChartSvg, LegendOnlyForSeveralCurves) {
  LineChart chart = loss_chart();
  EXPECT_EQ(line_chart_svg(chart).find(">train<"), std::string::npos);
  chart.curves.push_back({"validation", {0, 3}, {4, 3}});
  const std::string svg = line_chart_svg(chart);
  EXPECT_NE(svg.find(">train<"), std::string::npos);
  EXPECT_NE(svg.find(">validation<"), std::string::npos);
}

TEST(LineChartSvg, ManyCurvesStayApartAndInThePicture) {
  LineChart chart = loss_chart();
  chart.curves.clear();
  for (int i = 0; i < 20; ++i) {
    chart.curves.push_back({"a curve with a long name " + std::to_string(i), {0, 1}, {0, 1.0 * i}});
  }
  const std::string svg = line_chart_svg(chart);
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_EQ(count_of(svg, "<polyline"), 20u);
  // 7 colours, then dashed, then dotted; each stroke once in the legend and once as a curve.
  EXPECT_EQ(count_of(svg, "stroke=\"#0072b2\" stroke-width=\"1.8\" points"), 1u);
  EXPECT_EQ(count_of(svg, "stroke=\"#0072b2\" stroke-width=\"1.8\" stroke-dasharray=\"6 3\""), 2u);
  EXPECT_EQ(count_of(svg, "stroke=\"#0072b2\" stroke-width=\"1.8\" stroke-dasharray=\"2 3\""), 2u);
}

TEST(LineChartSvg, TextIsEscaped) {
  LineChart chart = loss_chart();
  chart.title = "<script>\"a\" & b</script>";
  chart.x_label = chart.y_label = "x < y \x01 \xFF";
  chart.curves.push_back({"<b>", {0}, {1}});
  chart.marks.push_back({1, "</text>"});
  const std::string svg = line_chart_svg(chart);
  EXPECT_TRUE(is_well_formed(svg)) << svg;
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_EQ(svg.find('\x01'), std::string::npos);
}

TEST(LineChartSvg, NonFinitePointsBreakTheLine) {
  LineChart chart = loss_chart();
  chart.curves = {{"", {0, 1, 2, 3, 4, 5, 6}, {1, 2, kNaN, 3, HUGE_VAL, 4, 5}}};
  const std::string svg = line_chart_svg(chart);
  EXPECT_EQ(count_of(svg, "<polyline"), 2u);
  EXPECT_EQ(count_of(svg, "<circle"), 1u);  // the point between two breaks
  expect_no_stray_numbers(svg);
}

TEST(LineChartSvg, LogAxisLeavesOutWhatHasNoLogarithm) {
  LineChart chart = loss_chart();
  chart.log_x = true;
  chart.curves = {{"", {-1, 0, 1e-5, 1e-3, 1e-1}, {9, 8, 3, 2, 4}}};
  chart.marks = {{1e-3, "best"}, {0, "nowhere"}};
  const std::string svg = line_chart_svg(chart);
  EXPECT_TRUE(is_well_formed(svg));
  expect_no_stray_numbers(svg);
  EXPECT_NE(svg.find(">1e-5<"), std::string::npos);
  EXPECT_NE(svg.find(">0.1<"), std::string::npos);
  EXPECT_NE(svg.find(">best<"), std::string::npos);
  EXPECT_EQ(svg.find(">nowhere<"), std::string::npos);
}

TEST(LineChartSvg, MarksAreDashedLinesWithinThePicture) {
  LineChart chart = loss_chart();
  chart.marks = {{10, "beyond the curve"}};
  const std::string svg = line_chart_svg(chart);
  EXPECT_EQ(count_of(svg, "stroke-dasharray"), 1u);
  EXPECT_NE(svg.find(">10<"), std::string::npos);  // the axis reaches it
  // At the right edge the label goes to the left of its line.
  EXPECT_NE(svg.find("text-anchor=\"end\" fill=\"#222222\""), std::string::npos);
}

TEST(LineChartSvg, EmptyChartsSaySo) {
  for (const bool log_x : {false, true}) {
    const std::vector<std::vector<Curve>> cases = {
        {}, {{"a", {}, {}}}, {{"b", {1, 2}, {kNaN, kNaN}}, {"c", {kNaN}, {1}}}};
    for (const auto& curves : cases) {
      const std::string svg = line_chart_svg({.log_x = log_x, .curves = curves});
      EXPECT_TRUE(is_well_formed(svg));
      EXPECT_NE(svg.find(">no data<"), std::string::npos);
      expect_no_stray_numbers(svg);
    }
  }
}

TEST(LineChartSvg, OnePointAndConstantCurvesAreDrawn) {
  LineChart chart = loss_chart();
  chart.curves = {{"", {3}, {7}}};
  EXPECT_EQ(count_of(line_chart_svg(chart), "<circle"), 1u);
  chart.curves = {{"", {0, 1, 2}, {7, 7, 7}}};
  const std::string svg = line_chart_svg(chart);
  EXPECT_EQ(count_of(svg, "<polyline"), 1u);
  expect_no_stray_numbers(svg);
}

TEST(LineChartSvg, SizeDoesNotGrowWithTheNumberOfPoints) {
  LineChart chart = loss_chart();
  Curve& curve = chart.curves[0];
  curve = {};
  for (int i = 0; i < 1'000'000; ++i) {
    curve.x.push_back(i);
    curve.y.push_back(i == 500'000 ? 9.0 : std::sin(i * 1e-5));
  }
  const std::string svg = line_chart_svg(chart);
  EXPECT_LT(svg.size(), 60'000u);
  EXPECT_NE(svg.find(">10<"), std::string::npos);
  // The single outlier is still drawn: at 9 of -2 to 10, 320 pixels high, below the title.
  EXPECT_NE(svg.find(",68.7 "), std::string::npos);
}

TEST(LineChart, CurvesWithUnequalCoordinatesAreRefused) {
  LineChart chart = loss_chart();
  chart.curves[0].y.pop_back();
  EXPECT_THROW(line_chart_svg(chart), InternalError);
  EXPECT_THROW(line_chart_text(chart, 40, 10), InternalError);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

TEST(LineChartText, DrawsTheCurveBetweenLabelledAxes) {
  LineChart chart = loss_chart();
  chart.curves = {{"", {0, 10}, {0, 4}}};
  EXPECT_EQ(line_chart_text(chart, 24, 10),
            "          Loss\n"
            "nats\n"
            "4 ┤                 ⣀⠤⠒⠉\n"
            "  │            ⢀⡠⠤⠒⠉\n"
            "2 ┤        ⢀⡠⠔⠊⠁\n"
            "  │    ⣀⠤⠒⠊⠁\n"
            "0 ┤⣀⠤⠒⠉\n"
            "  └┬───────────────────┬\n"
            "   0                  10\n"
            "          step\n");
}

TEST(LineChartText, StaysWithinItsSize) {
  for (const int width : {24, 37, 80}) {
    for (const int height : {8, 9, 24}) {
      const auto lines = lines_of(line_chart_text(loss_chart(), width, height));
      EXPECT_EQ(lines.size(), static_cast<size_t>(height));
      for (const std::string& line : lines) {
        EXPECT_LE(text_width(line), static_cast<size_t>(width)) << line;
      }
    }
  }
}

TEST(LineChartText, TooSmallSizesAreRaised) {
  EXPECT_EQ(lines_of(line_chart_text(loss_chart(), -5, 0)).size(), 8u);
}

TEST(LineChartText, ShowsOnlyTheFirstCurve) {
  LineChart chart = loss_chart();
  const std::string before = line_chart_text(chart, 60, 12);
  chart.curves.push_back({"other", {0, 100}, {-50, 50}});
  chart.marks.push_back({1000, "far"});
  EXPECT_EQ(line_chart_text(chart, 60, 12), before);
}

TEST(LineChartText, BreaksAtNonFinitePoints) {
  LineChart chart;
  chart.curves = {{"", {0, 1, 2, 3, 4}, {1, 1, kNaN, 1, 1}}};
  const std::string text = line_chart_text(chart, 40, 8);
  EXPECT_NE(text.find("⠉          "), std::string::npos) << text;
  EXPECT_NE(text.find("          ⠉"), std::string::npos) << text;
}

TEST(LineChartText, EmptyChartsSaySo) {
  EXPECT_NE(line_chart_text({}, 40, 10).find("no data"), std::string::npos);
  LineChart chart = loss_chart();
  chart.log_x = true;
  chart.curves = {{"", {0, -1}, {1, 2}}};
  EXPECT_NE(line_chart_text(chart, 40, 10).find("no data"), std::string::npos);
}

TEST(LineChartText, LongLabelsAreCut) {
  LineChart chart = loss_chart();
  chart.title = std::string(200, 'x');
  chart.curves = {{"", {1e15, 1e15 + 1e6}, {1e15, 1e15 + 1e6}}};
  for (const std::string& line : lines_of(line_chart_text(chart, 24, 10))) {
    EXPECT_LE(text_width(line), 24u) << line;
  }
}

}  // namespace
}  // namespace penstock::report
