#include "penstock/report/comparison.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/plan/bare_pipeline.h"

#include "report/pipeline_example.h"
#include "report/step_example.h"
#include "report/xml_checks.h"

namespace penstock::report {
namespace {

using program::Program;
using program::Timeline;

// One that recomputes nothing, and one that recomputes three layers of each micro-batch.
struct Examples {
  Program keeps = example_program({.recomputed = 0}), recomputes = example_program({});
  Timeline keeps_timeline = program::simulate(keeps);
  Timeline recomputes_timeline = program::simulate(recomputes);
  StepPicture a = {"keeps", keeps, keeps_timeline};
  StepPicture b = {"recomputes", recomputes, recomputes_timeline};
};

const std::vector<std::string>& row_of(const DifferenceTable& table, const std::string& name) {
  static const std::vector<std::string> kNone;
  for (const std::vector<std::string>& row : table.rows) {
    if (row[0] == name) {
      return row;
    }
  }
  return kNone;
}

using Row = std::vector<std::string>;

TEST(Comparison, FiguresAreThoseOfTheProgram) {
  const Examples examples;
  const StepFigures figures = figures_of(examples.b);
  EXPECT_DOUBLE_EQ(figures.seconds, examples.recomputes_timeline.seconds);
  EXPECT_EQ(figures.peak_bytes,
            (std::vector<int64_t>{examples.recomputes_timeline.ranks[0].peak_bytes}));
  EXPECT_EQ(figures.recomputed_forwards, 6);
  EXPECT_EQ(figures.sent_bytes, 0);
  EXPECT_EQ(figures.instructions[static_cast<size_t>(program::Op::Forward)], 2 * (6 + 3));
  EXPECT_EQ(static_cast<size_t>(figures.num_instructions()),
            examples.recomputes.ranks[0].instructions.size());
  EXPECT_EQ(figures.bubble, 0);
}

TEST(Comparison, TableHasWhatDiffersAndByHowMuch) {
  const Examples examples;
  const DifferenceTable table = difference_table(examples.a, examples.b);
  EXPECT_EQ(table.headings, (Row{"", "A", "B", "B - A", "B / A"}));
  EXPECT_EQ(row_of(table, "step"), (Row{"step", "110.0 ms", "124.0 ms", "+14.0 ms", "1.13"}));
  EXPECT_EQ(row_of(table, "recomputed forwards"),
            (Row{"recomputed forwards", "0", "6", "+6", "-"}));
  EXPECT_EQ(row_of(table, "of them loss"), (Row{"of them loss", "2", "2", "same", "1.00"}));
  EXPECT_EQ(row_of(table, "peak of rank 0")[2], "537.0 MiB");
  EXPECT_EQ(row_of(table, "of them send"), Row());  // none in either
  const DifferenceTable back = difference_table(examples.b, examples.a);
  EXPECT_EQ(row_of(back, "step"), (Row{"step", "124.0 ms", "110.0 ms", "-14.0 ms", "0.89"}));
}

TEST(Comparison, RoundingIsNoDifference) {
  Examples examples;
  Timeline close = examples.keeps_timeline;
  close.seconds *= 1 + 1e-12;
  const DifferenceTable table = difference_table(examples.a, {"close", examples.keeps, close});
  EXPECT_EQ(row_of(table, "step"), (Row{"step", "110.0 ms", "110.0 ms", "same", "1.00"}));
  EXPECT_EQ(row_of(table, "bubble"), Row());  // 0 in both
  close.seconds *= 1 + 1e-6;
  const DifferenceTable apart = difference_table(examples.a, {"apart", examples.keeps, close});
  EXPECT_EQ(row_of(apart, "step")[3].substr(0, 1), "+");
}

TEST(Comparison, RanksOfOneAloneAreSaidToBe) {
  const Examples examples;
  const Program pipeline = pipeline_program(2);
  const Timeline timeline = program::simulate(pipeline);
  const DifferenceTable table = difference_table(examples.a, {"pipeline", pipeline, timeline});
  EXPECT_EQ(row_of(table, "peak of rank 1"),
            (Row{"peak of rank 1", "no such rank", row_of(table, "peak of rank 1")[2], "-", "-"}));
  EXPECT_EQ(row_of(table, "sent by all ranks")[2], "128 B");
}

TEST(Comparison, TextNamesBoth) {
  const Examples examples;
  const std::string text = comparison_text(examples.a, examples.b);
  EXPECT_EQ(text.find("A: keeps\nB: recomputes\n\n"), 0u);
  EXPECT_NE(text.find("\nrecomputed forwards "), std::string::npos) << text;
}

TEST(Comparison, TheSvgHasBothOnTheSameAxes) {
  const Examples examples;
  const std::string svg = comparison_svg(examples.a, examples.b);
  EXPECT_TRUE(is_well_formed(svg));
  EXPECT_EQ(count_of(svg, "<svg "), 3u);
  EXPECT_EQ(count_of(svg, ">A: keeps<"), 1u);
  EXPECT_EQ(count_of(svg, ">B: recomputes<"), 1u);
  // A ends before its axis does, as B is longer: its axis goes to 120 ms, too.
  EXPECT_EQ(count_of(svg, ">120</text>"), 2u);
}

TEST(Comparison, ThePageHasBothAndWhatDiffers) {
  const Examples examples;
  const std::string html = comparison_html(examples.a, examples.b);
  const std::string begin = "id=\"data\">";
  const size_t from = html.find(begin) + begin.size();
  const auto data = nlohmann::json::parse(html.substr(from, html.find("</script", from) - from));
  ASSERT_EQ(data["steps"].size(), 2u);
  EXPECT_EQ(data["steps"][0]["heading"], "A: keeps; step 110.0 ms predicted");
  EXPECT_EQ(data["steps"][1]["heading"], "B: recomputes; step 124.0 ms predicted");
  for (const auto& step : data["steps"]) {
    EXPECT_EQ(step["shown"]["time"], 124'000'000);
    EXPECT_EQ(step["shown"]["bytes"], 1024 * kExampleMiB);
  }
  EXPECT_EQ(data["differences"]["rows"][0][0], "step");
}

TEST(Comparison, TitlesCannotBreakOut) {
  Examples examples;
  examples.a.title = "</script><b>\"&";
  EXPECT_TRUE(is_well_formed(comparison_svg(examples.a, examples.b)));
  EXPECT_EQ(comparison_html(examples.a, examples.b).find("<b>"), std::string::npos);
}

TEST(Comparison, OfBareNumbersHasNoBytes) {
  const auto pipeline = [](const char* kind) {
    return plan::run_bare_pipeline(schedule::parse_kind(kind),
                                   {.ranks = 4, .micro_batches = 8},
                                   {.forward = 1, .backward_input = 1, .backward_weight = 1});
  };
  const plan::BarePipeline a = pipeline("gpipe"), b = pipeline("zb-h1");
  const StepPicture first{"gpipe", a.program, a.timeline}, second{"zb-h1", b.program, b.timeline};
  const DifferenceTable table = difference_table(first, second);
  EXPECT_EQ(row_of(table, "step"), (Row{"step", "33", "27", "-6", "0.82"}));
  EXPECT_EQ(row_of(table, "bubble"), (Row{"bubble", "27.3%", "11.1%", "-16.2%", "0.41"}));
  EXPECT_EQ(row_of(table, "peak of rank 0"), Row());
  EXPECT_THROW(comparison_svg(first, Examples().b), InternalError);
}

}  // namespace
}  // namespace penstock::report
