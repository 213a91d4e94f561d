#include "penstock/report/timeline_html.h"

#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/report/timeline_page.h"

#include "report/pipeline_example.h"
#include "report/step_example.h"
#include "report/xml_checks.h"

namespace penstock::report {
namespace {

using nlohmann::json;
using program::Program;
using program::Timeline;

// What a browser would take for the data: all up to the next end of a script, in any case.
std::string embedded_text(const std::string& html) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t from = html.find(begin) + begin.size();
  return html.substr(from, html.find("</", from) - from);
}

json embedded_data(const std::string& html) {
  return json::parse(embedded_text(html));
}

TEST(TimelineHtml, HoldsTheNumbersPutIn) {
  const Program program = example_program({.ranks = 2});
  const Timeline predicted = program::simulate(program);
  const Timeline measured = example_measurement(program);
  const json data = embedded_data(timeline_html({"A step", program, predicted, &measured}));
  EXPECT_EQ(data["title"], "A step");
  EXPECT_EQ(data["micro_batches"], 2);
  EXPECT_EQ(data["step"]["predicted"], std::llround(predicted.seconds * 1e9));
  EXPECT_EQ(data["step"]["measured"], std::llround(measured.seconds * 1e9));
  ASSERT_EQ(data["ranks"].size(), 2u);
  for (size_t r = 0; r < 2; ++r) {
    const json& rank = data["ranks"][r];
    EXPECT_EQ(rank["limit"], program.ranks[r].limit_bytes);
    EXPECT_EQ(rank["values"]["names"], program::value_names(program.ranks[r]));
    for (const auto& [side, timeline] :
         {std::pair{"predicted", &predicted}, {"measured", &measured}}) {
      const json& times = rank["sides"][side];
      const program::RankTimeline& own = timeline->ranks[r];
      ASSERT_EQ(times["start"].size(), own.spans.size());
      for (size_t i = 0; i < own.spans.size(); ++i) {
        EXPECT_EQ(times["start"][i], std::llround(own.spans[i].start * 1e9));
        EXPECT_EQ(times["duration"][i],
                  std::llround((own.spans[i].end - own.spans[i].start) * 1e9));
      }
      ASSERT_EQ(times["memory_at"].size(), own.memory.size());
      for (size_t i = 0; i < own.memory.size(); ++i) {
        EXPECT_EQ(times["memory_bytes"][i], own.memory[i].bytes);
      }
      EXPECT_EQ(times["peak"], own.peak_bytes);
    }
  }
}

TEST(TimelineHtml, HoldsWhatInstructionsAreAndUse) {
  const Program program = example_program({});
  const Timeline predicted = program::simulate(program);
  const json data = embedded_data(timeline_html({"", program, predicted}));
  EXPECT_FALSE(data["step"].contains("measured"));
  const json& columns = data["ranks"][0]["instructions"];
  const auto& instructions = program.ranks[0].instructions;
  ASSERT_EQ(columns["op"].size(), instructions.size());
  for (size_t i = 0; i < instructions.size(); ++i) {
    EXPECT_EQ(data["ops"][columns["op"][i].get<size_t>()], program::op_name(instructions[i].op));
    EXPECT_EQ(columns["layer"][i], instructions[i].layer);
    EXPECT_EQ(columns["micro_batch"][i], instructions[i].micro_batch);
    EXPECT_EQ(columns["keep"][i], instructions[i].keep);
    EXPECT_EQ(columns["units"][i], instructions[i].units);
    EXPECT_EQ(columns["group"][i], instructions[i].group);
    EXPECT_EQ(columns["reads"][i], instructions[i].reads);
    EXPECT_EQ(columns["makes"][i], instructions[i].makes);
    EXPECT_EQ(columns["sets"][i], instructions[i].sets);
    EXPECT_EQ(columns["updates"][i], instructions[i].updates);
    EXPECT_EQ(columns["frees"][i], instructions[i].frees);
  }
  EXPECT_EQ(data["layers"][0]["kept"], "2 x all, 2 x nothing");
  EXPECT_EQ(data["layers"][0]["again"], 2);
  EXPECT_EQ(data["layers"][5]["again"], 0);
}

TEST(TimelineHtml, KnowsTheLanesBetweenRanks) {
  const Program program = pipeline_program(2);
  const Timeline predicted = program::simulate(program);
  const json data = embedded_data(timeline_html({"", program, predicted}));
  const json& rank = data["ranks"][1];
  EXPECT_EQ(rank["resources"], (json{"compute", "link to rank 0", "inlet from rank 0"}));
  const std::vector<std::pair<std::string, bool>> lanes = {
      {"rank 1", false}, {"to rank 0", true}, {"from rank 0", true}};
  ASSERT_EQ(rank["lanes"].size(), lanes.size());
  for (size_t i = 0; i < lanes.size(); ++i) {
    EXPECT_EQ(rank["lanes"][i]["name"], lanes[i].first);
    EXPECT_EQ(rank["lanes"][i]["is_low"], lanes[i].second);
    EXPECT_EQ(rank["lanes"][i]["is_empty"], false);
  }
  const auto& instructions = program.ranks[1].instructions;
  for (size_t i = 0; i < instructions.size(); ++i) {
    const size_t op = rank["instructions"]["op"][i];
    EXPECT_EQ(data["ops"][op], program::op_name(instructions[i].op));
  }
  EXPECT_EQ(data["sums"]["transfers"][0]["name"], "send");
  EXPECT_GT(data["computing"]["predicted"], 0.5);
  EXPECT_LT(data["computing"]["predicted"], 1);
}

TEST(TimelineHtml, TheHeadingIsWhatWasMeasured) {
  const Program program = example_program({});
  const Timeline predicted = program::simulate(program);
  const Timeline measured = example_measurement(program);
  const std::string html = timeline_html({"A step", program, predicted, &measured});
  EXPECT_EQ(embedded_data(html)["heading"], "A step; step 128.2 ms measured");
  EXPECT_NE(html.find("<title>A step; step 128.2 ms measured</title>"), std::string::npos);
  EXPECT_EQ(embedded_data(timeline_html({"A step", program, predicted}))["heading"],
            "A step; step 124.0 ms predicted");
}

TEST(TimelineHtml, LanesThatDoNothingAreKnown) {
  Program program = pipeline_program(2);
  program.ranks[0].instructions.push_back(
      {.op = program::Op::Drop, .resource = {program::ResourceKind::Disk, 0}});
  const Timeline predicted = program::simulate(program);
  const json data = embedded_data(timeline_html({"", program, predicted}));
  for (const json& lane : data["ranks"][0]["lanes"]) {
    EXPECT_EQ(lane["is_empty"], lane["name"] == "disk 0") << lane;
  }
}

TEST(TimelineHtml, HasTheBubblesOfEachRank) {
  const Program program = pipeline_program(4);
  const Timeline predicted = program::simulate(program);
  const json data = embedded_data(timeline_html({"", program, predicted}));
  const json& bubbles = data["ranks"][0]["sides"]["predicted"]["bubbles"];
  EXPECT_EQ(bubbles["share"], " (23.2% idle)");
  ASSERT_EQ(bubbles["start"].size(), 4u);
  EXPECT_EQ(bubbles["start"][0], 12'000'000);
  EXPECT_EQ(bubbles["end"][0], 22'000'000);
}

TEST(TimelineHtml, HasWhatIsAliveAtThePeakOfEachRank) {
  const Program program = pipeline_program(2);
  const Timeline predicted = program::simulate(program);
  const json data = embedded_data(timeline_html({"", program, predicted}));
  for (size_t r = 0; r < 2; ++r) {
    const json& peak = data["ranks"][r]["alive_at_peak"];
    EXPECT_EQ(peak["bytes"], predicted.ranks[r].peak_bytes);
    EXPECT_EQ(peak["instruction"], predicted.ranks[r].peak_instruction);
    EXPECT_EQ(peak["values"][0], (json{"k0", "fixed", "parameters", -1, 60 * kExampleMiB}));
  }
}

TEST(TimelineHtml, SaysWhatNamesOfValuesMean) {
  const Program program = pipeline_program(2);
  const Timeline predicted = program::simulate(program);
  const json names = embedded_data(timeline_html({"", program, predicted}))["names"];
  EXPECT_EQ(names[0], (json{"3.0", "in a bar: layer 3, micro-batch 0"}));
  EXPECT_EQ(names[1], (json{"x3.0", "what enters layer 3, micro-batch 0"}));
}

// A button or a box is reached by keys, without any script of ours.
TEST(TimelineHtml, RanksAreChosenByBoxes) {
  const std::string_view page = timeline_page(), script = timeline_tables_script();
  EXPECT_NE(page.find("<fieldset class=\"ranks\" hidden>"), std::string_view::npos);
  EXPECT_NE(page.find("<button class=\"all\">All</button>"), std::string_view::npos);
  EXPECT_NE(script.find("box.type = 'checkbox'"), std::string_view::npos);
  EXPECT_NE(script.find("showRank(r, box.checked)"), std::string_view::npos);
}

TEST(TimelineHtml, NamesCannotBreakOut) {
  const std::string hostile = "</script><b>\"'`&\\ <!-- @DATA@ \xE2\x80\xA8 \x01 @SCRIPT@";
  Program program = example_program({});
  program.layers[1].name = program.layers[1].modes[0].name = hostile;
  program.ranks[0].labels[0] = hostile;
  const Timeline predicted = program::simulate(program);
  const std::string html = timeline_html({hostile, program, predicted});
  const std::string plain = timeline_html({"", example_program({}), predicted});
  EXPECT_EQ(count_of(html, "</script"), count_of(plain, "</script"));
  EXPECT_EQ(html.find("<b>"), std::string::npos);
  EXPECT_EQ(count_of(html, "<!--"), 0u);
  const json data = embedded_data(html);
  EXPECT_EQ(data["title"], hostile);
  EXPECT_EQ(data["layers"][1]["name"], hostile);
  EXPECT_EQ(data["layers"][1]["modes"][0], hostile);
  EXPECT_EQ(data["ranks"][0]["residents"][0]["name"], hostile);
}

TEST(TimelineHtml, NamesThatAreNoUtf8AreReplaced) {
  Program program = example_program({});
  program.layers[0].name =
      "a\xFF"
      "b";
  const Timeline predicted = program::simulate(program);
  const json data = embedded_data(timeline_html({"\xFE", program, predicted}));
  EXPECT_EQ(data["layers"][0]["name"],
            "a\xEF\xBF\xBD"
            "b");
}

TEST(TimelineHtml, LoadsNothing) {
  const Program program = example_program({});
  const Timeline predicted = program::simulate(program);
  const std::string html = timeline_html({"A step", program, predicted});
  for (const char* way_out :
       {"http://", "https://", "src=", "href=", "url(", "@import", "<link", "<img", "fetch("}) {
    EXPECT_EQ(html.find(way_out), std::string::npos) << way_out;
  }
  EXPECT_NE(html.find("default-src 'none'"), std::string::npos);
}

TEST(TimelineHtml, NoTextBecomesMarkup) {
  for (const std::string_view script : {timeline_chart_script(),
                                        timeline_pointer_script(),
                                        timeline_tables_script(),
                                        timeline_steps_script()}) {
    for (const char* way_in : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"}) {
      EXPECT_EQ(script.find(way_in), std::string_view::npos) << way_in;
    }
    // What would end the script element.
    EXPECT_EQ(script.find("</"), std::string_view::npos);
  }
}

TEST(TimelineHtml, EmptyProgramsHaveAPage) {
  Program program;
  program.ranks.resize(1);
  const Timeline predicted = program::simulate(program);
  const json data = embedded_data(timeline_html({"", program, predicted}));
  EXPECT_EQ(data["ranks"][0]["sides"]["predicted"]["start"], json::array());
  EXPECT_EQ(embedded_data(timeline_html({"", Program(), Timeline()}))["ranks"], json::array());
}

TEST(TimelineHtml, TimelinesOfOtherProgramsAreRefused) {
  const Timeline other = program::simulate(example_program({.layers = 4}));
  EXPECT_THROW(timeline_html({"", example_program({}), other}), InternalError);
}

}  // namespace
}  // namespace penstock::report
