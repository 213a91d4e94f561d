#include "penstock/program/program_json.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/plan/exchanges.h"
#include "penstock/program/program_text.h"

#include "program/asynchronous_program.h"
#include "program/everything_program.h"
#include "program/replicated_program.h"
#include "support/error_text.h"
#include "support/temp_folder.h"

namespace penstock::program {
namespace {

std::string json_error(std::string_view json) {
  return test::error_text<ConfigError>([&] { parse_program_json(json, "p.json"); });
}

const char* const kTwoRanks =
    R"({"penstock_program":2,
"micro_batches":2,
"mesh":{"pipeline":2},
"groups":[
{"name":"all","axes":["data","pipeline"]}
],
"layers":[
{"name":"a \"b\"","modes":["all","few+output"]},
{"name":"","modes":[]}
],
"units":[
{"name":"a","layers":[0]}
],
"ranks":[
{"limit":4096,
"hold":[["m0",8],["o0",16,"/host"],["k0",3,"","pages"]],
"given":[["x0.0",4],["t.1",4]],
"instructions":[
{"op":"forward","layer":0,"mb":0,"keep":"few","reads":["x0.0","m0"],"makes":[["x1.0",8],["s0.0",16]],"frees":[],"on":"copy:1","seconds":1e-05,"working":32},
{"op":"forward","layer":0,"mb":0,"keep":"nothing","reads":["x0.0"],"makes":[["x1.0#2",8]],"frees":["x1.0"],"on":"disk:1","seconds":2,"working":9},
{"op":"loss","mb":1,"reads":["t.1"],"makes":[["d2.1",8]],"frees":["t.1"],"on":"compute","seconds":0.1,"working":8},
{"op":"drop","frees":["x1.0#2"]},
{"op":"backward","layer":1,"mb":1,"reads":["d2.1","s0.0"],"makes":[],"frees":["d2.1","s0.0"],"on":"compute","seconds":0,"working":0},
{"op":"step","units":[0],"updates":["m0","o0"],"on":"host","seconds":0.3333333333333333,"working":9000000000000000000}
]},
{"limit":null,"host":5,
"hold":[],
"given":[["x0.0",4]],
"instructions":[
{"op":"send","layer":0,"mb":0,"reads":["x0.0"],"frees":["x0.0"],"on":"link:0","seconds":0.5,"working":0,"sends":4},
{"op":"receive","layer":2,"mb":1,"makes":[["d2.1",4]],"on":"inlet:0","working":4},
{"op":"backward-input","layer":1,"mb":1,"reads":["d2.1"],"makes":[["w1.1",6]],"frees":[],"on":"compute","seconds":1,"working":6},
{"op":"backward-weight","layer":1,"mb":1,"reads":["w1.1"],"makes":[],"frees":["w1.1"],"on":"compute","seconds":2,"working":0},
{"op":"gather","group":0,"on":"compute","seconds":0,"working":0}
]}
]}
)";

const char* const kTwoRanksAsText =
    R"(penstock-program 2
micro-batches 2
mesh pipeline=2
group 0 "all" axes=data,pipeline
layer 0 "a \"b\"" modes=all,few+output
layer 1 "" modes=-
unit 0 "a" layers=0
rank 0 limit=4096
hold m0:8 o0:16/host
hold k0:3 "pages"
given x0.0:4 t.1:4
forward layer=0 mb=0 keep=few reads=x0.0,m0 makes=x1.0:8,s0.0:16 frees=- on=copy:1 seconds=1e-05 working=32
forward layer=0 mb=0 keep=nothing reads=x0.0 makes=x1.0#2:8 frees=x1.0 on=disk:1 seconds=2 working=9
loss mb=1 reads=t.1 makes=d2.1:8 frees=t.1 on=compute seconds=0.1 working=8
drop frees=x1.0#2
backward layer=1 mb=1 reads=d2.1,s0.0 makes=- frees=d2.1,s0.0 on=compute seconds=0 working=0
step units=0 updates=m0,o0 on=host seconds=0.3333333333333333 working=9000000000000000000
rank 1 limit=none host=5
given x0.0:4
send layer=0 mb=0 reads=x0.0 frees=x0.0 on=link:0 seconds=0.5 working=0 sends=4
receive layer=2 mb=1 makes=d2.1:4 on=inlet:0 working=4
backward-input layer=1 mb=1 reads=d2.1 makes=w1.1:6 frees=- on=compute seconds=1 working=6
backward-weight layer=1 mb=1 reads=w1.1 makes=- frees=w1.1 on=compute seconds=2 working=0
gather group=0 on=compute seconds=0 working=0
)";

// The error of kTwoRanks with one part put in place of another.
std::string changed_error(const std::string& part, const std::string& replacement) {
  std::string json = kTwoRanks;
  EXPECT_NE(json.find(part), std::string::npos) << part;
  json.replace(json.find(part), part.size(), replacement);
  return json_error(json);
}

TEST(ProgramJson, SaysWhatTheTextSays) {
  const Program program = parse_program(kTwoRanksAsText, "p.txt");
  EXPECT_EQ(program_json(program), kTwoRanks);
  EXPECT_EQ(parse_program_json(kTwoRanks, "p.json"), program);
}

TEST(ProgramJson, EverythingReadsBack) {
  const Program program = parse_program(test::everything_text(), "p.txt");
  const std::string json = program_json(program);
  EXPECT_EQ(parse_program_json(json, "p.json"), program);
  const auto expect_has = [&](const std::string& part) {
    EXPECT_NE(json.find(part), std::string::npos) << part << "\n" << json;
  };
  expect_has(
      "{\"penstock_program\":2,\n\"micro_batches\":4,\n\"updates\":2,\n\"mixes_weights\":true,\n"
      "\"mesh\":{\"data\":2,\"pipeline\":2,\"tensor\":2,\"context\":2},\n\"shard\":\"optimizer\",\n"
      "\"apart\":true,\n\"groups\":[\n{\"name\":\"data\",\"axes\":[\"data\"]},\n"
      "{\"name\":\"wte\",\"axes\":[\"pipeline\"],\"stages\":[0,1]},\n");
  expect_has(
      "{\"name\":\"table\",\"layers\":[0,1,3],\"forward\":[0,1],\"weight\":[1],\"shared\":true,"
      "\"elements\":64},\n");
  expect_has(
      "{\"limit\":629145600,\"host\":2000,\"disk\":3000,\n\"hold\":[[\"m0\",8,\"@0-4+6-8\"],"
      "[\"c0\",4],[\"a0\",8,\"/host\"],[\"b1.3\",8,\"@1-2/disk\"],[\"o0\",16,\"@0-4+6-8/host\"],"
      "[\"o1\",0],[\"e0\",3,\"\",\"history\"],[\"k1\",5,\"/disk\",\"the \\\"cache\\\"\"],"
      "[\"k2\",0,\"\",\"\"],[\"m2\",1],[\"A1\",6,\"/"
      "host\"],[\"A2\",5]],\n\"given\":[[\"x0.0\",4],[\"t.3\",1,\"/host\"]],\n");
  expect_has(
      "{\"op\":\"reduce\",\"units\":[0,1,2],\"mb\":2,\"group\":0,\"to\":\"scatter\","
      "\"reads\":[\"m0\"],\"makes\":[[\"p0.2\",1]],\"sets\":[\"c0\"],\"updates\":[\"a0\"],"
      "\"frees\":[\"p0.2\"],\"on\":\"line:0\",\"seconds\":0.25,\"working\":1,"
      "\"sends\":9000000000000000000},\n");
}

TEST(ProgramJson, EmptyProgram) {
  EXPECT_EQ(program_json({}),
            "{\"penstock_program\":2,\n\"micro_batches\":1,\n\"layers\":[],\n\"ranks\":[]}\n");
  EXPECT_EQ(parse_program_json(program_json({}), "p.json"), Program{});
}

TEST(ProgramJson, OrderOfKeysAndBlanksAreFree) {
  const Program program = parse_program_json(
      R"( {"ranks": [ {"instructions": [ {"frees": ["x0.0"], "op": "drop"} ],
           "given": [ ["x0.0", 4] ], "hold": [], "limit": null} ],
           "layers": [], "micro_batches": 1, "penstock_program": 2})",
      "p.json");
  EXPECT_EQ(program.ranks[0].instructions[0].frees, std::vector<ValueId>{0});
}

TEST(ProgramJson, NamesAndNumbersReadBackExactly) {
  using Limits = std::numeric_limits<double>;
  for (const double seconds : {0.1 + 0.2, 1.0 / 3, 1e300, Limits::denorm_min(), 1e23, 5e15}) {
    Program program{.layers = {{"a\nb\x01\x7F größe \"", {{"all"}}}},
                    .ranks = {{.instructions = {{.op = Op::Step, .seconds = seconds}}}}};
    program.ranks[0].hold({.kind = ValueKind::Fixed, .bytes = 3}, "\\\t");
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
  expect_refusal({.layers = {{"a", {{"\xFF"}}}}}, "save mode ");
  for (const double seconds : {HUGE_VAL, std::nan(""), -1.0}) {
    expect_refusal({.ranks = {{.instructions = {{.op = Op::Step, .seconds = seconds}}}}},
                   "seconds ");
  }
  expect_refusal({.ranks = {{.limit_bytes = -1}}}, "limit \"-1\"");
  program = parse_program(kTwoRanksAsText, "p.txt");
  program.ranks[0].labels.clear();
  expect_refusal(program, "no label 0");
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
  EXPECT_EQ(changed_error("\"op\":\"loss\"", "\"op\":\"loss\",\"op\":\"step\""),
            "p.json: repeats the key \"op\"");
}

TEST(ProgramJsonError, WrongVersion) {
  EXPECT_EQ(json_error("{\"penstock_program\": 3, \"other\": 1}"),
            "p.json: version \"3\"; this Penstock reads version 2");
  EXPECT_EQ(json_error("{\"penstock_program\": 1, \"micro_batches\": 1, \"ranks\": []}"),
            "p.json: version \"1\"; this Penstock reads version 2");
  EXPECT_EQ(json_error("{\"penstock_program\": \"2\"}"),
            "p.json: penstock_program is a JSON string; it should be a number");
  EXPECT_EQ(json_error("{}"), "p.json: key penstock_program is missing");
}

TEST(ProgramJson, ReplicasAndUnitsReadBack) {
  for (const Shard shard : kShards) {
    const Program program = test::replicated_program(shard, 2);
    EXPECT_EQ(parse_program_json(program_json(program), "p.json"), program);
  }
}

TEST(ProgramJson, ReplicasThatMoveApartReadBack) {
  const Program program = test::exchanging_program(Shard::None, {.reduces = false}, 2);
  std::string json = program_json(program);
  const std::string said = "\n\"shard\":\"none\",\n\"apart\":true,\n\"groups\":[\n";
  ASSERT_NE(json.find(said), std::string::npos) << json;
  EXPECT_TRUE(program.is_apart);
  EXPECT_EQ(parse_program_json(json, "p.json"), program);
  json.replace(json.find("true"), 4, "false");
  EXPECT_FALSE(parse_program_json(json, "p.json").is_apart);
  json.replace(json.find("false"), 5, "1");
  EXPECT_EQ(json_error(json), "p.json: apart is a JSON number; it should be true or false");
}

TEST(ProgramJson, WhatReplicasExchangeReadsBack) {
  using enum plan::UpdateForm::Average;
  const Program program = test::exchanging_program(
      Shard::Optimizer,
      {.reduces = false, .average = Gradients, .fills_alive = true, .lengths = 1});
  const std::string json = program_json(program);
  const std::string said =
      "{\"op\":\"exchange\",\"group\":0,\"reads\":[\"r.0\"],\"updates\":[\"o0\",\"o1\",\"o2\","
      "\"a0\",\"a1\",\"a2\"],\"frees\":[\"r.0\"],\"on\":\"compute\",\"seconds\":0,\"working\":0,"
      "\"sends\":14},\n";
  EXPECT_NE(json.find(said), std::string::npos) << json;
  EXPECT_EQ(parse_program_json(json, "p.json"), program);
}

// What is left out of the text may be said here: no sharding, weights that layers do not share.
TEST(ProgramJson, FlagsMayBeFalse) {
  std::string json = kTwoRanks;
  json.replace(json.find("\"layers\":[0]"), 12, "\"layers\":[0],\"shared\":false");
  json.replace(json.find("\"groups\""), 8, "\"shard\":\"none\",\"apart\":false,\"groups\"");
  EXPECT_EQ(parse_program_json(json, "p.json"), parse_program(kTwoRanksAsText, "p.txt"));
}

TEST(ProgramJsonError, MeshShardGroupsAndUnits) {
  const std::string json = program_json(test::replicated_program(Shard::Parameters));
  const auto error = [&](const std::string& part, const std::string& replacement) {
    std::string text = json;
    EXPECT_NE(text.find(part), std::string::npos) << part;
    text.replace(text.find(part), part.size(), replacement);
    return json_error(text);
  };
  EXPECT_EQ(error("\"mesh\":{\"data\":2},\n", ""),
            "p.json: the program has 2 ranks, and its mesh 1");
  EXPECT_EQ(error("{\"data\":2}", "[2]"), "p.json: mesh is a JSON array; it should be an object");
  EXPECT_EQ(error("{\"data\":2}", "{\"dat\":2}"),
            "p.json: unknown axis \"dat\"; did you mean data? (known: data, pipeline, tensor, "
            "context)");
  EXPECT_EQ(error("{\"data\":2}", "{\"data\":\"2\"}"),
            "p.json: data is a JSON string; it should be a number");
  EXPECT_EQ(error("{\"data\":2}", "{\"data\":2,\"data\":2}"), "p.json: repeats the key \"data\"");
  EXPECT_EQ(error("\"shard\":\"parameters\"", "\"apart\":true"), "p.json: key shard is missing");
  EXPECT_EQ(error("\"shard\":\"parameters\"", "\"shard\":\"none\",\"step_reduces\":true"),
            "p.json: unknown key of a program \"step_reduces\" (known: penstock_program, "
            "micro_batches, updates, mixes_weights, mesh, shard, apart, groups, layers, "
            "carried, units, ranks)");
  EXPECT_EQ(error("\"shard\":\"parameters\"", "\"shard\":3"),
            "p.json: shard is a JSON number; it should be a string");
  EXPECT_EQ(error("\"groups\":[", "\"groups\":[3,"),
            "p.json: group 0: a group is a JSON number; it should be an object");
  EXPECT_EQ(error("\"axes\":[\"data\"]", "\"axis\":[\"data\"]"),
            "p.json: group 0: unknown key of a group \"axis\"; did you mean axes? (known: name, "
            "axes, stages)");
  EXPECT_EQ(error("\"axes\":[\"data\"]", "\"axes\":[\"date\"]"),
            "p.json: group 0: unknown axis \"date\"; did you mean data? (known: data, pipeline, "
            "tensor, context)");
  EXPECT_EQ(error("\"axes\":[\"data\"]", "\"axes\":\"data\""),
            "p.json: group 0: axes is a JSON string; it should be an array");
  EXPECT_EQ(error("\"axes\":[\"data\"]", "\"axes\":[\"data\"],\"stages\":[1]"),
            "p.json: group 0: stage 1 is out of range; the mesh has 1");
  EXPECT_EQ(error("\"axes\":[\"data\"]", "\"axes\":[\"data\"],\"stages\":[\"0\"]"),
            "p.json: group 0: an item of stages is a JSON string; it should be a number");
  EXPECT_EQ(error("\"units\":[", "\"units\":[3,"),
            "p.json: unit 0: a unit is a JSON number; it should be an object");
  EXPECT_EQ(error("{\"name\":\"b\",\"layers\":[1]", "{\"name\":\"b\",\"layer\":[1]"),
            "p.json: unit 1: unknown key of a unit \"layer\"; did you mean layers? (known: name, "
            "layers, forward, weight, shared, frozen, elements)");
  EXPECT_EQ(error("\"layers\":[1]", "\"layers\":[1],\"forward\":1"),
            "p.json: unit 1: forward is a JSON number; it should be an array");
  EXPECT_EQ(error("\"layers\":[1]", "\"layers\":[\"1\"]"),
            "p.json: unit 1: an item of layers is a JSON string; it should be a number");
  EXPECT_EQ(error("\"layers\":[1]", "\"layers\":[3]"),
            "p.json: unit 1: layer 3 is out of range; the program has 2");
  EXPECT_EQ(error("\"shared\":true", "\"shared\":\"yes\""),
            "p.json: unit 2: shared is a JSON string; it should be true or false");
  EXPECT_EQ(error("\"elements\":20", "\"elements\":-1"),
            "p.json: unit 1: elements \"-1\" is no whole number from 0 to 9223372036854775807");
}

TEST(ProgramJsonError, HeldValues) {
  const std::string rank = "p.json: rank 0: ";
  const std::string no_item = "; it should be an array of a name and its bytes";
  EXPECT_EQ(changed_error("[\"m0\",8]", "[\"m0\"]"),
            rank + "an item of hold is a JSON array" + no_item);
  EXPECT_EQ(changed_error("[\"m0\",8]", "[\"m0\",8,\"\",\"\",\"\"]"),
            rank + "an item of hold is a JSON array" + no_item);
  EXPECT_EQ(changed_error("[\"m0\",8]", "\"m0:8\""),
            rank + "an item of hold is a JSON string" + no_item);
  EXPECT_EQ(changed_error("[\"m0\",8]", "[\"m0\",8,4]"),
            rank + "an item of hold is a JSON number; it should be a string");
  // Words are not put together to others: these are no 800 bytes.
  EXPECT_EQ(changed_error("[\"m0\",8]", "[\"m0\",8,\"00\"]"),
            rank +
                "an item of hold has \"00\" after its bytes; slices (@0-64) and a tier (/host) "
                "stand there");
  EXPECT_EQ(changed_error("[\"x0.0\",4]", "[\"x0.0\",4,\"host\"]"),
            rank +
                "an item of given has \"host\" after its bytes; slices (@0-64) and a tier "
                "(/host) stand there");
  EXPECT_EQ(changed_error("\"/host\"", "\"/hst\""),
            rank + "unknown tier \"hst\"; did you mean host? (known: host, disk)");
  EXPECT_EQ(changed_error("\"/host\"", "\"@4\""),
            rank + "slice \"4\" of o0 is not written FIRST-END");
  EXPECT_EQ(changed_error("\"\",\"pages\"", "\"\",3"),
            rank + "a label is a JSON number; it should be a string");
  EXPECT_EQ(changed_error("\"k0\"", "\"k1\""), rank + "label \"1\" is out of order; the next is 0");
  EXPECT_EQ(changed_error("[\"m0\",8]", "[\"m0\",8,\"\",\"weights\"]"),
            rank + "value \"m0:8\" has no label; e and k have");
  EXPECT_EQ(changed_error("[\"m0\",8]", "[\"x0.0\",8]"),
            rank +
                "value \"x0.0:8\" is not held from step to step; weights, gradients, state and "
                "what never moves are");
}

TEST(ProgramJsonError, UnknownAndMissingKeys) {
  EXPECT_EQ(
      changed_error("\"micro_batches\"", "\"microbatches\""),
      "p.json: unknown key of a program \"microbatches\"; did you mean micro_batches? (known: "
      "penstock_program, micro_batches, updates, mixes_weights, mesh, shard, apart, groups, "
      "layers, carried, units, ranks)");
  EXPECT_EQ(changed_error("\"micro_batches\":2,\n", ""), "p.json: key micro_batches is missing");
  EXPECT_EQ(
      changed_error("\"modes\":[]", "\"mode\":[]"),
      "p.json: layer 1: unknown key of a layer \"mode\"; did you mean modes? (known: name, modes)");
  EXPECT_EQ(changed_error(",\"modes\":[]", ""), "p.json: layer 1: key modes is missing");
  EXPECT_EQ(changed_error("\"limit\":null", "\"limits\":null"),
            "p.json: rank 1: unknown key of a rank \"limits\"; did you mean limit? (known: limit, "
            "host, disk, hold, given, instructions)");
  EXPECT_EQ(changed_error("\"limit\":null,", ""), "p.json: rank 1: key limit is missing");
  EXPECT_EQ(changed_error("\"hold\":[],\n", ""), "p.json: rank 1: key hold is missing");
  EXPECT_EQ(changed_error("\"op\":\"loss\",", ""),
            "p.json: instruction 2 of rank 0: key op is missing");
}

TEST(ProgramJsonError, WrongTypes) {
  EXPECT_EQ(json_error("[]"), "p.json: the file is a JSON array; it should be an object");
  EXPECT_EQ(changed_error("\"micro_batches\":2", "\"micro_batches\":\"2\""),
            "p.json: micro_batches is a JSON string; it should be a number");
  EXPECT_EQ(changed_error("{\"name\":\"\",\"modes\":[]}", "5"),
            "p.json: layer 1: a layer is a JSON number; it should be an object");
  EXPECT_EQ(changed_error("\"name\":\"\"", "\"name\":null"),
            "p.json: layer 1: name is a JSON null; it should be a string");
  EXPECT_EQ(changed_error("\"modes\":[]", "\"modes\":{}"),
            "p.json: layer 1: modes is a JSON object; it should be an array");
  EXPECT_EQ(changed_error("\"modes\":[]", "\"modes\":[1]"),
            "p.json: layer 1: an item of modes is a JSON number; it should be a string");
  EXPECT_EQ(changed_error("\"limit\":4096", "\"limit\":\"none\""),
            "p.json: rank 0: limit is a JSON string; it should be a number");
  EXPECT_EQ(changed_error("\"host\":5", "\"host\":\"5\""),
            "p.json: rank 1: host is a JSON string; it should be a number");
  EXPECT_EQ(changed_error("\"hold\":[]", "\"hold\":{}"),
            "p.json: rank 1: hold is a JSON object; it should be an array");
  EXPECT_EQ(changed_error("\"units\":[0],\"updates\"", "\"units\":0,\"updates\""),
            "p.json: instruction 5 of rank 0: units is a JSON number; it should be an array");
  EXPECT_EQ(changed_error("\"units\":[0],\"updates\"", "\"units\":[\"0\"],\"updates\""),
            "p.json: instruction 5 of rank 0: an item of units is a JSON string; it should be a "
            "number");
  EXPECT_EQ(changed_error("[\"t.1\",4]", "[\"t.1\",\"4\"]"),
            "p.json: rank 0: an item of given is a JSON string; it should be a number");
  EXPECT_EQ(
      changed_error("{\"op\":\"drop\",\"frees\":[\"x1.0#2\"]}", "null"),
      "p.json: instruction 3 of rank 0: an instruction is a JSON null; it should be an object");
  EXPECT_EQ(changed_error("\"layer\":0", "\"layer\":true"),
            "p.json: instruction 0 of rank 0: layer is a JSON boolean; it should be a number");
  EXPECT_EQ(changed_error("\"keep\":\"few\"", "\"keep\":1"),
            "p.json: instruction 0 of rank 0: keep is a JSON number; it should be a string");
  EXPECT_EQ(changed_error("\"reads\":[\"x0.0\",\"m0\"]", "\"reads\":\"x0.0\""),
            "p.json: instruction 0 of rank 0: reads is a JSON string; it should be an array");
  EXPECT_EQ(
      changed_error("\"makes\":[[\"x1.0\",8]", "\"makes\":[\"x1.0:8\""),
      "p.json: instruction 0 of rank 0: an item of makes is a JSON string; it should be an array "
      "of a name and its bytes");
}

// program_text_test.cpp has the checks behind both forms; here, that they are asked and that they
// name the place.
TEST(ProgramJsonError, WordsWithoutMeaning) {
  const std::string first = "p.json: instruction 0 of rank 0: ";
  EXPECT_EQ(
      changed_error("\"op\":\"loss\"", "\"op\":\"los\""),
      "p.json: instruction 2 of rank 0: unknown word \"los\"; did you mean loss? (known: forward, "
      "loss, backward, backward-input, backward-weight, send, receive, drop, stash, gather, "
      "reduce, add, sketch, squares, decide, prepare, exchange, merge, step)");
  EXPECT_EQ(changed_error("\"mb\":0", "\"mp\":0"),
            first +
                "unknown field of forward \"mp\"; did you mean mb? (known: layer, mb, keep, reads, "
                "makes, sets, updates, frees, on, seconds, working)");
  EXPECT_EQ(changed_error("\"mb\":0,", ""), first + "field mb is missing; forward needs it");
  EXPECT_EQ(changed_error("\"layer\":0", "\"layer\":2"),
            first + "layer 2 is out of range; the program has 2");
  EXPECT_EQ(changed_error("\"layer\":0", "\"layer\":0.0"),
            first + "layer \"0.0\" is no whole number from 0 to 2147483647");
  EXPECT_EQ(
      changed_error("\"keep\":\"few\"", "\"keep\":\"fw\""),
      first + "unknown save mode of layer 0 \"fw\"; did you mean few? (known: nothing, all, few)");
  EXPECT_EQ(
      changed_error("\"on\":\"copy:1\"", "\"on\":\"copy\""),
      first +
          "on \"copy\" is no resource; compute, host, copy:N, disk:N, link:N, inlet:N, line:N are");
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
  EXPECT_EQ(changed_error("\"reads\":[\"t.1\"]", "\"reads\":[\"t.0,t.1\"]"),
            "p.json: instruction 2 of rank 0: value \"t.0,t.1\" is neither held, given nor made in "
            "this rank");
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
            "p.json: layer 0: save mode all is repeated; those of a layer have different names");
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
