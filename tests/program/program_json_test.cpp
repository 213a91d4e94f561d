#include "penstock/program/program_json.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/plan/shard.h"
#include "penstock/program/program_text.h"

#include "program/asynchronous_program.h"
#include "program/replicated_program.h"
#include "support/error_text.h"
#include "support/temp_folder.h"

namespace penstock::program {
namespace {

std::string json_error(std::string_view json) {
  return test::error_text<ConfigError>([&] { parse_program_json(json, "p.json"); });
}

const char* const kTwoRanks =
    R"({"penstock_program":1,
"micro_batches":2,
"layers":[
{"name":"a \"b\"","ways":["all","few+output"]},
{"name":"","ways":[]}
],
"ranks":[
{"limit":4096,
"residents":[["parameters",8],["state",16]],
"given":[["x0.0",4],["t.1",4]],
"instructions":[
{"op":"clear","on":"compute","seconds":0.0012,"working":0},
{"op":"forward","layer":0,"mb":0,"keep":"few","reads":["x0.0"],"makes":[["x1.0",8],["s0.0",16]],"frees":[],"on":"copy:1","seconds":1e-05,"working":32},
{"op":"forward","layer":0,"mb":0,"keep":"nothing","reads":["x0.0"],"makes":[["x1.0#2",8]],"frees":["x1.0"],"on":"link:1","seconds":2,"working":9},
{"op":"loss","mb":1,"reads":["t.1"],"makes":[["d2.1",8]],"frees":["t.1"],"on":"compute","seconds":0.1,"working":8},
{"op":"drop","frees":["x1.0#2"]},
{"op":"backward","layer":1,"mb":1,"reads":["d2.1","s0.0"],"makes":[],"frees":["d2.1","s0.0"],"on":"compute","seconds":0,"working":0},
{"op":"step","on":"compute","seconds":0.3333333333333333,"working":9000000000000000000}
]},
{"limit":null,
"residents":[],
"given":[["x0.0",4]],
"instructions":[
{"op":"send","layer":0,"mb":0,"reads":["x0.0"],"frees":["x0.0"],"on":"link:0","seconds":0.5,"working":0},
{"op":"receive","layer":2,"mb":1,"makes":[["d2.1",4]],"on":"inlet:0","working":4},
{"op":"backward-input","layer":1,"mb":1,"reads":["d2.1"],"makes":[["w1.1",6]],"frees":[],"on":"compute","seconds":1,"working":6},
{"op":"backward-weight","layer":1,"mb":1,"reads":["w1.1"],"makes":[],"frees":["w1.1"],"on":"compute","seconds":2,"working":0}
]}
]}
)";

const char* const kTwoRanksAsText =
    R"(penstock-program 1
micro-batches 2
layer 0 "a \"b\"" ways=all,few+output
layer 1 "" ways=-
rank 0 limit=4096
resident 8 "parameters"
resident 16 "state"
given x0.0:4 t.1:4
clear on=compute seconds=0.0012 working=0
forward layer=0 mb=0 keep=few reads=x0.0 makes=x1.0:8,s0.0:16 frees=- on=copy:1 seconds=1e-05 working=32
forward layer=0 mb=0 keep=nothing reads=x0.0 makes=x1.0#2:8 frees=x1.0 on=link:1 seconds=2 working=9
loss mb=1 reads=t.1 makes=d2.1:8 frees=t.1 on=compute seconds=0.1 working=8
drop frees=x1.0#2
backward layer=1 mb=1 reads=d2.1,s0.0 makes=- frees=d2.1,s0.0 on=compute seconds=0 working=0
step on=compute seconds=0.3333333333333333 working=9000000000000000000
rank 1 limit=none
given x0.0:4
send layer=0 mb=0 reads=x0.0 frees=x0.0 on=link:0 seconds=0.5 working=0
receive layer=2 mb=1 makes=d2.1:4 on=inlet:0 working=4
backward-input layer=1 mb=1 reads=d2.1 makes=w1.1:6 frees=- on=compute seconds=1 working=6
backward-weight layer=1 mb=1 reads=w1.1 makes=- frees=w1.1 on=compute seconds=2 working=0
)";

// The error of kTwoRanks with one part put in place of another.
std::string changed_error(const std::string& part, const std::string& replacement) {
  std::string json = kTwoRanks;
  json.replace(json.find(part), part.size(), replacement);
  return json_error(json);
}

TEST(ProgramJson, SaysWhatTheTextSays) {
  const Program program = parse_program(kTwoRanksAsText, "p.txt");
  EXPECT_EQ(program_json(program), kTwoRanks);
  EXPECT_EQ(parse_program_json(kTwoRanks, "p.json"), program);
}

TEST(ProgramJson, EmptyProgram) {
  EXPECT_EQ(program_json({}),
            "{\"penstock_program\":1,\n\"micro_batches\":1,\n\"layers\":[],\n\"ranks\":[]}\n");
  EXPECT_EQ(parse_program_json(program_json({}), "p.json"), Program{});
}

TEST(ProgramJson, OrderOfKeysAndBlanksAreFree) {
  const Program program = parse_program_json(
      R"( {"ranks": [ {"instructions": [ {"frees": ["x0.0"], "op": "drop"} ],
           "given": [ ["x0.0", 4] ], "residents": [], "limit": null} ],
           "layers": [], "micro_batches": 1, "penstock_program": 1})",
      "p.json");
  EXPECT_EQ(program.ranks[0].instructions[0].frees, std::vector<ValueId>{0});
}

TEST(ProgramJson, NamesAndNumbersReadBackExactly) {
  using Limits = std::numeric_limits<double>;
  for (const double seconds : {0.1 + 0.2, 1.0 / 3, 1e300, Limits::denorm_min(), 1e23, 5e15}) {
    const Program program{.layers = {{"a\nb\x01\x7F größe \"", {{"all"}}}},
                          .ranks = {{.residents = {{"\\\t", 3}},
                                     .instructions = {{.op = Op::Clear, .seconds = seconds}}}}};
    EXPECT_EQ(parse_program_json(program_json(program), "p.json"), program) << seconds;
  }
}

TEST(ProgramJson, WhatCannotBeReadBackIsNotWritten) {
  const auto expect_refusal = [](const Program& program, const std::string& part) {
    const std::string message = test::error_text<InternalError>([&] { program_json(program); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  Program program = parse_program(kTwoRanksAsText, "p.txt");
  std::swap(program.ranks[0].given[0], program.ranks[0].given[1]);
  expect_refusal(program, "not numbered");
  expect_refusal({.layers = {{"\xFF", {}}}}, "not UTF-8");
  expect_refusal({.layers = {{"a", {{"\xFF"}}}}}, "way ");
  for (const double seconds : {HUGE_VAL, std::nan(""), -1.0}) {
    expect_refusal({.ranks = {{.instructions = {{.op = Op::Clear, .seconds = seconds}}}}},
                   "seconds ");
  }
  expect_refusal({.ranks = {{.limit_bytes = -1}}}, "limit \"-1\"");
}

TEST(ProgramJson, SeveralUpdatesPrintAndReadBack) {
  Program program = test::asynchronous_program();
  for (const bool mixes_weights : {false, true}) {
    program.mixes_weights = mixes_weights;
    const std::string json = program_json(program);
    const std::string line =
        cat(",\n\"updates\":2,\n\"mixes_weights\":", mixes_weights ? "true" : "false", ",\n");
    EXPECT_NE(json.find(line), std::string::npos) << json;
    EXPECT_EQ(parse_program_json(json, "p.json"), program);
  }
}

TEST(ProgramJsonError, UpdatesThatAreNone) {
  const auto error = [](const std::string& part, const std::string& replacement) {
    std::string json = program_json(test::asynchronous_program());
    json.replace(json.find(part), part.size(), replacement);
    return json_error(json);
  };
  EXPECT_EQ(error("\"updates\":2", "\"updates\":3"),
            "p.json: 3 updates do not divide 2 micro-batches; every update takes as many");
  EXPECT_EQ(error("\"updates\":2", "\"updates\":\"2\""),
            "p.json: updates is a JSON string; it should be a number");
  EXPECT_EQ(error("\"mixes_weights\":false", "\"mixes_weights\":0"),
            "p.json: mixes_weights is a JSON number; it should be true or false");
  EXPECT_EQ(error("\"updates\":2,\n", ""), "p.json: key updates is missing");
  EXPECT_EQ(error(",\n\"mixes_weights\":false", ""), "p.json: key mixes_weights is missing");
}

TEST(ProgramJsonError, NotJson) {
  EXPECT_EQ(json_error(""), "p.json: is not valid JSON near byte 1");
  EXPECT_EQ(json_error("{\n\"a\": 1,\n}"), "p.json: is not valid JSON near byte 11");
  EXPECT_EQ(json_error("{\"a\": 1e999}"), "p.json: is not valid JSON: number out of range");
  EXPECT_EQ(json_error("{\"\xFF\": 1}"), "p.json: is not valid UTF-8");
  EXPECT_EQ(json_error(std::string_view("{}\0", 3)),
            "p.json: is not valid JSON: zero byte at byte 2");
}

TEST(ProgramJsonError, NestedTooDeep) {
  for (const size_t depth : {8, 10'000'000}) {
    EXPECT_EQ(json_error(std::string(depth, '[')), "p.json: is nested deeper than 7 levels");
  }
}

TEST(ProgramJsonError, RepeatedKeys) {
  EXPECT_EQ(changed_error("\"op\":\"clear\"", "\"op\":\"clear\",\"op\":\"step\""),
            "p.json: repeats the key \"op\"");
}

TEST(ProgramJsonError, WrongVersion) {
  EXPECT_EQ(json_error("{\"penstock_program\": 2, \"other\": 1}"),
            "p.json: version \"2\"; this Penstock reads version 1");
  EXPECT_EQ(json_error("{}"), "p.json: key penstock_program is missing");
}

TEST(ProgramJson, ReplicasAndUnitsReadBack) {
  const Program program = test::replicated_program(Shard::Parameters, 2);
  const std::string json = program_json(program);
  EXPECT_NE(json.find("\n\"replicas\":2,\n\"shard\":\"parameters\",\n\"units\":[\n"
                      "{\"name\":\"a\",\"layers\":[0]},\n"),
            std::string::npos)
      << json;
  EXPECT_EQ(parse_program_json(json, "p.json"), program);
}

TEST(ProgramJson, LayersThatNeedWeightsForwardAloneReadBack) {
  Program program = test::replicated_program(Shard::Parameters, 2);
  program.units[2].forward_only = {0};
  const std::string json = program_json(program);
  EXPECT_NE(json.find("{\"name\":\"table\",\"layers\":[0,2],\"forward\":[0]}"), std::string::npos)
      << json;
  EXPECT_EQ(parse_program_json(json, "p.json"), program);
}

TEST(ProgramJson, AStepThatReducesReadsBack) {
  const Program program = plan::without_reduces(test::replicated_program(Shard::Optimizer, 2));
  std::string json = program_json(program);
  const std::string said = "\n\"shard\":\"optimizer\",\n\"step_reduces\":true,\n\"units\":[\n";
  ASSERT_NE(json.find(said), std::string::npos) << json;
  EXPECT_TRUE(program.step_reduces);
  EXPECT_EQ(parse_program_json(json, "p.json"), program);
  json.replace(json.find("true"), 4, "false");
  EXPECT_FALSE(parse_program_json(json, "p.json").step_reduces);
  json.replace(json.find("false"), 5, "1");
  EXPECT_EQ(json_error(json), "p.json: step_reduces is a JSON number; it should be true or false");
}

TEST(ProgramJsonError, ReplicasAndUnits) {
  const std::string json = program_json(test::replicated_program(Shard::Parameters));
  const auto error = [&](const std::string& part, const std::string& replacement) {
    std::string text = json;
    text.replace(text.find(part), part.size(), replacement);
    return test::error_text<ConfigError>([&] { parse_program_json(text, "p.json"); });
  };
  EXPECT_EQ(error("\"replicas\":2,\n", ""), "p.json: key replicas is missing");
  EXPECT_EQ(error("\"shard\":\"parameters\",\n", ""), "p.json: key shard is missing");
  EXPECT_EQ(error("\"shard\":\"parameters\"", "\"shard\":3"),
            "p.json: shard is a JSON number; it should be a string");
  EXPECT_EQ(error("\"units\":[", "\"units\":[3,"),
            "p.json: unit 0: a unit is a JSON number; it should be an object");
  EXPECT_EQ(error("{\"name\":\"b\",\"layers\":[1]}", "{\"name\":\"b\",\"layer\":[1]}"),
            "p.json: unit 1: unknown key of a unit \"layer\"; did you mean layers? (known: name, "
            "layers, forward)");
  EXPECT_EQ(error("\"layers\":[1]", "\"layers\":[1],\"forward\":1"),
            "p.json: unit 1: forward is a JSON number; it should be an array");
  EXPECT_EQ(error("\"layers\":[1]", "\"layers\":[\"1\"]"),
            "p.json: unit 1: an item of layers is a JSON string; it should be a number");
  EXPECT_EQ(error("\"layers\":[1]", "\"layers\":[3]"),
            "p.json: unit 1: layer 3 is out of range; the program has 2");
}

TEST(ProgramJsonError, UnknownAndMissingKeys) {
  EXPECT_EQ(
      changed_error("\"micro_batches\"", "\"microbatches\""),
      "p.json: unknown key of a program \"microbatches\"; did you mean micro_batches? (known: "
      "penstock_program, micro_batches, updates, mixes_weights, replicas, shard, step_reduces, "
      "units, layers, "
      "ranks)");
  EXPECT_EQ(changed_error("\"micro_batches\":2,\n", ""), "p.json: key micro_batches is missing");
  EXPECT_EQ(
      changed_error("\"ways\":[]", "\"way\":[]"),
      "p.json: layer 1: unknown key of a layer \"way\"; did you mean ways? (known: name, ways)");
  EXPECT_EQ(changed_error(",\"ways\":[]", ""), "p.json: layer 1: key ways is missing");
  EXPECT_EQ(changed_error("\"limit\":null", "\"limits\":null"),
            "p.json: rank 1: unknown key of a rank \"limits\"; did you mean limit? (known: limit, "
            "residents, given, instructions)");
  EXPECT_EQ(changed_error("\"limit\":null,\n", ""), "p.json: rank 1: key limit is missing");
  EXPECT_EQ(changed_error("\"op\":\"loss\",", ""),
            "p.json: instruction 3 of rank 0: key op is missing");
}

TEST(ProgramJsonError, WrongTypes) {
  EXPECT_EQ(json_error("[]"), "p.json: the file is a JSON array; it should be an object");
  EXPECT_EQ(changed_error("\"micro_batches\":2", "\"micro_batches\":\"2\""),
            "p.json: micro_batches is a JSON string; it should be a number");
  EXPECT_EQ(changed_error("{\"name\":\"\",\"ways\":[]}", "5"),
            "p.json: layer 1: a layer is a JSON number; it should be an object");
  EXPECT_EQ(changed_error("\"name\":\"\"", "\"name\":null"),
            "p.json: layer 1: name is a JSON null; it should be a string");
  EXPECT_EQ(changed_error("\"ways\":[]", "\"ways\":{}"),
            "p.json: layer 1: ways is a JSON object; it should be an array");
  EXPECT_EQ(changed_error("\"ways\":[]", "\"ways\":[1]"),
            "p.json: layer 1: an item of ways is a JSON number; it should be a string");
  EXPECT_EQ(changed_error("\"limit\":4096", "\"limit\":\"none\""),
            "p.json: rank 0: limit is a JSON string; it should be a number");
  EXPECT_EQ(
      changed_error("[\"state\",16]", "[\"state\"]"),
      "p.json: rank 0: an item of residents is a JSON array; it should be an array of a name and "
      "its bytes");
  EXPECT_EQ(changed_error("[\"t.1\",4]", "[\"t.1\",\"4\"]"),
            "p.json: rank 0: an item of given is a JSON string; it should be a number");
  EXPECT_EQ(
      changed_error("{\"op\":\"drop\",\"frees\":[\"x1.0#2\"]}", "null"),
      "p.json: instruction 4 of rank 0: an instruction is a JSON null; it should be an object");
  EXPECT_EQ(changed_error("\"layer\":0", "\"layer\":true"),
            "p.json: instruction 1 of rank 0: layer is a JSON boolean; it should be a number");
  EXPECT_EQ(changed_error("\"keep\":\"few\"", "\"keep\":1"),
            "p.json: instruction 1 of rank 0: keep is a JSON number; it should be a string");
  EXPECT_EQ(changed_error("\"reads\":[\"x0.0\"]", "\"reads\":\"x0.0\""),
            "p.json: instruction 1 of rank 0: reads is a JSON string; it should be an array");
  EXPECT_EQ(
      changed_error("\"makes\":[[\"x1.0\",8]", "\"makes\":[\"x1.0:8\""),
      "p.json: instruction 1 of rank 0: an item of makes is a JSON string; it should be an array "
      "of a name and its bytes");
}

// program_text_test.cpp has the checks behind both forms; here, that they are asked and that they
// name the place.
TEST(ProgramJsonError, WordsWithoutMeaning) {
  const std::string first = "p.json: instruction 1 of rank 0: ";
  EXPECT_EQ(
      changed_error("\"op\":\"clear\"", "\"op\":\"claer\""),
      "p.json: instruction 0 of rank 0: unknown word \"claer\"; did you mean clear? (known: clear, "
      "forward, loss, backward, backward-input, backward-weight, send, receive, drop, step, "
      "stash, gather, reduce)");
  EXPECT_EQ(changed_error("\"mb\":0", "\"mp\":0"),
            first +
                "unknown field of forward \"mp\"; did you mean mb? (known: layer, mb, keep, reads, "
                "makes, frees, on, seconds, working)");
  EXPECT_EQ(changed_error("\"mb\":0,", ""), first + "field mb is missing; forward needs it");
  EXPECT_EQ(changed_error("\"layer\":0", "\"layer\":2"),
            first + "layer 2 is out of range; the program has 2");
  EXPECT_EQ(changed_error("\"layer\":0", "\"layer\":0.0"),
            first + "layer \"0.0\" is no whole number from 0 to 2147483647");
  EXPECT_EQ(changed_error("\"keep\":\"few\"", "\"keep\":\"fw\""),
            first + "unknown way of layer 0 \"fw\"; did you mean few? (known: nothing, all, few)");
  EXPECT_EQ(
      changed_error("\"on\":\"copy:1\"", "\"on\":\"copy\""),
      first + "on \"copy\" is no resource; compute, copy:N, link:N, inlet:N and replicas are");
  EXPECT_EQ(changed_error("\"on\":\"inlet:0\"", "\"on\":\"inlet:2\""),
            "p.json: instruction 1 of rank 1: rank 2 is out of range; the program has 2");
  EXPECT_EQ(changed_error("[[\"d2.1\",4]]", "[[\"d2.1\",4],[\"w1.0\",4]]"),
            "p.json: instruction 1 of rank 1: receive makes 2 values; it takes exactly one");
  EXPECT_EQ(changed_error("\"w1.1\",6", "\"w2.1\",6"),
            "p.json: instruction 2 of rank 1: layer 2 is out of range; the program has 2");
  EXPECT_EQ(changed_error("\"seconds\":1e-05", "\"seconds\":-1"),
            first + "seconds \"-1\" is no number from 0 to 1e300");
  EXPECT_EQ(changed_error("\"working\":32", "\"working\":1e3"),
            first + "working \"1000.0\" is no whole number from 0 to 9223372036854775807");
  EXPECT_EQ(changed_error("[\"s0.0\",16]", "[\"s0.0\",18446744073709551615]"),
            first +
                "bytes of s0.0 \"18446744073709551615\" is no whole number from 0 to "
                "9223372036854775807");
  EXPECT_EQ(
      changed_error("\"reads\":[\"t.1\"]", "\"reads\":[\"t.0,t.1\"]"),
      "p.json: instruction 3 of rank 0: value \"t.0,t.1\" is neither made nor given in this rank");
  EXPECT_EQ(changed_error("[\"s0.0\",16]", "[\"x1.0\",16]"),
            first + "value x1.0 is made or given twice; the next making is #2");
  EXPECT_EQ(changed_error("\"t.1\",4", "\"t.2\",4"),
            "p.json: rank 0: micro-batch 2 is out of range; the program has 2");
  EXPECT_EQ(
      changed_error("\"t.1\",4", "\"t.1:4\",4"),
      "p.json: rank 0: bytes of t.1 \"4:4\" is no whole number from 0 to 9223372036854775807");
  EXPECT_EQ(changed_error("\"limit\":4096", "\"limit\":0"),
            "p.json: rank 0: limit \"0\" is no whole number from 1 to 9223372036854775807");
  EXPECT_EQ(changed_error("\"few+output\"", "\"all\""),
            "p.json: layer 0: way all is repeated; a layer's ways have different names");
}

TEST(ProgramJsonError, TooLong) {
  const test::TempFolder folder;
  const auto path = folder.path() / "long";
  write_text_file(path, "{");
  std::filesystem::resize_file(path, (size_t{64} << 20) + 1);
  const MappedFile file(path);
  EXPECT_EQ(json_error({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}),
            "p.json: 67108865 bytes are too long for a program; up to 67108864 are read");
}

}  // namespace
}  // namespace penstock::program
