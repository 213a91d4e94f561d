#include "penstock/program/program_reader.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/quote.h"
#include "penstock/program/program_fields.h"
#include "penstock/program/value_name.h"

namespace penstock::program {

namespace {

constexpr size_t kMaxWayName = 64;
constexpr double kMaxSeconds = 1e300;             // so that sums stay finite
constexpr int64_t kMaxExtent = int64_t{1} << 24;  // layers times micro-batches
constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max();

std::vector<std::string> field_names(Op op) {
  std::vector<std::string> names;
  for (const FieldRule& rule : kFields) {
    if ((rule.taken_by & bit(op)) != 0) {
      names.emplace_back(rule.name);
    }
  }
  return names;
}

const Field* find_field(const std::vector<Field>& fields, std::string_view name) {
  const auto found = std::find_if(
      fields.begin(), fields.end(), [&](const Field& field) { return field.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

}  // namespace

void ProgramReader::fail(const std::string& what) const {
  throw ConfigError(cat(place_, ": ", what));
}

void ProgramReader::fail_unknown(const std::string& what,
                                 std::string_view word,
                                 const std::vector<std::string>& known) const {
  constexpr size_t longest_slip = 40;  // the search takes time by the word's length
  const std::string suggestion = word.size() > longest_slip ? "" : nearest(word, known);
  fail(cat("unknown ",
           what,
           " ",
           in_quotes(word),
           suggestion.empty() ? "" : cat("; did you mean ", suggestion, "?"),
           " (known: ",
           join(known, ", "),
           ")"));
}

void ProgramReader::check_size(size_t bytes) const {
  if (bytes > kMaxProgramBytes) {
    fail(cat(bytes, " bytes are too long for a program; up to ", kMaxProgramBytes, " are read"));
  }
}

void ProgramReader::read_version(std::string_view version) const {
  if (version != std::to_string(kProgramVersion)) {
    fail(cat("version ", in_quotes(version), "; this Penstock reads version ", kProgramVersion));
  }
}

void ProgramReader::read_micro_batches(std::string_view number) {
  program_.micro_batches = count("micro-batches", number, 1);
  check_extent();
}

void ProgramReader::read_updates(std::string_view number, bool mixes_weights) {
  program_.updates = count("updates", number, 1);
  if (program_.micro_batches % program_.updates != 0) {
    fail(cat(program_.updates,
             " updates do not divide ",
             program_.micro_batches,
             " micro-batches; every update takes as many"));
  }
  program_.mixes_weights = mixes_weights;
}

void ProgramReader::read_replicas(std::string_view number,
                                  std::string_view shard,
                                  bool step_reduces) {
  program_.replicas = count("replicas", number, 1);
  program_.step_reduces = step_reduces;
  std::vector<std::string> known;
  for (const Shard one : kShards) {
    if (shard_name(one) == shard) {
      program_.shard = one;
      return;
    }
    known.emplace_back(shard_name(one));
  }
  fail_unknown("shard", shard, known);
}

void ProgramReader::read_unit(const std::string& name,
                              const std::vector<std::string>& layers,
                              const std::vector<std::string>& forward_only) {
  const auto read = [&](const std::vector<std::string>& words) {
    std::vector<int32_t> numbers;
    for (const std::string& word : words) {
      const int32_t layer = count("layer", word);
      check_layer(layer, program_.loss_index() + 1);  // the loss has parameters, too
      if (!numbers.empty() && layer <= numbers.back()) {
        fail(cat("layer ", layer, " comes after ", numbers.back(), "; a unit's layers count up"));
      }
      numbers.push_back(layer);
    }
    return numbers;
  };
  program_.units.push_back({name, read(layers), read(forward_only)});
}

void ProgramReader::read_layer(const std::string& name, const std::vector<std::string>& ways) {
  LayerInfo layer{name, {}};
  std::map<std::string, int32_t> indices;
  for (const std::string& word : ways) {
    Way added = way(word);
    if (!indices.emplace(added.name, static_cast<int32_t>(indices.size())).second) {
      fail(cat("way ", added.name, " is repeated; a layer's ways have different names"));
    }
    layer.ways.push_back(std::move(added));
  }
  program_.layers.push_back(std::move(layer));
  ways_.push_back(std::move(indices));
  check_extent();
}

void ProgramReader::read_rank(std::string_view limit) {
  finish_rank();
  const int64_t limit_bytes = limit == kNoLimit ? 0 : bytes("limit", limit, 1);
  program_.ranks.push_back({.limit_bytes = limit_bytes});
}

void ProgramReader::read_resident(const std::string& name, std::string_view size) {
  Resident resident{name, bytes("bytes of a resident", size)};
  count_bytes(resident.bytes);
  program_.ranks.back().residents.push_back(std::move(resident));
}

void ProgramReader::read_given(std::string_view size) {
  program_.ranks.back().given.push_back(add_value(size));
}

Op ProgramReader::read_op(std::string_view word, std::initializer_list<const char*> others) const {
  for (const Op op : kOps) {
    if (op_name(op) == word) {
      return op;
    }
  }
  std::vector<std::string> known(others.begin(), others.end());
  for (const Op op : kOps) {
    known.emplace_back(op_name(op));
  }
  fail_unknown("word", word, known);
}

Field ProgramReader::read_field(Op op,
                                std::string_view name,
                                const std::vector<Field>& earlier) const {
  if (find_field(earlier, name) != nullptr) {
    fail(cat("field ", name, " is repeated; it is allowed once"));
  }
  for (const FieldRule& rule : kFields) {
    if (rule.name == name && (rule.taken_by & bit(op)) != 0) {
      return {std::string(name), rule.type, {}};
    }
  }
  fail_unknown(cat("field of ", op_name(op)), name, field_names(op));
}

void ProgramReader::read_instruction(Op op, const std::vector<Field>& fields) {
  check_complete(op, fields);
  std::vector<Instruction>& instructions = program_.ranks.back().instructions;
  Instruction instruction = scalars(op, fields);
  most_working_bytes_ = std::max(most_working_bytes_, instruction.working_bytes);
  count_bytes(0);
  if ((kTransfer & bit(op)) != 0) {
    check_transfer(instruction, fields);
  }
  for (const Field& field : fields) {
    if (field.type == FieldType::Sizes) {
      for (const std::string& size : field.words) {
        instruction.makes.push_back(add_value(size));
      }
    } else if (field.type == FieldType::Names) {
      const auto list = field.name == "reads" ? &Instruction::reads : &Instruction::frees;
      for (const std::string& used : field.words) {
        uses_.push_back({instructions.size(), list, used});
      }
    }
  }
  instructions.push_back(std::move(instruction));
  places_.push_back(place_);
}

Program ProgramReader::finish() {
  finish_rank();
  for (const auto& [peer, place] : later_peers_) {
    if (peer >= program_.ranks.size()) {
      set_place(place);
      fail(cat("rank ", peer, " is out of range; the program has ", program_.ranks.size()));
    }
  }
  return std::move(program_);
}

void ProgramReader::check_number(std::string_view what,
                                 std::string_view number,
                                 size_t expected) const {
  if (number != std::to_string(expected)) {
    fail(cat(what, " ", in_quotes(number), " is out of order; the next is ", expected));
  }
}

int64_t ProgramReader::bytes(const std::string& what, std::string_view word, int64_t least) const {
  return integer(what, word, least, kMaxBytes);
}

int32_t ProgramReader::count(const std::string& what, std::string_view word, int32_t least) const {
  return static_cast<int32_t>(integer(what, word, least, std::numeric_limits<int32_t>::max()));
}

int64_t ProgramReader::integer(const std::string& what,
                               std::string_view word,
                               int64_t least,
                               int64_t most) const {
  int64_t number = 0;
  const char* end = word.data() + word.size();
  const auto [rest, error] = std::from_chars(word.data(), end, number);
  if (error != std::errc() || rest != end || number < least || number > most) {
    fail(cat(what, " ", in_quotes(word), " is no whole number from ", least, " to ", most));
  }
  return number;
}

double ProgramReader::seconds(const std::string& word) const {
  double number = 0;
  const char* end = word.data() + word.size();
  const auto [rest, error] = std::from_chars(word.data(), end, number);
  if (error != std::errc() || rest != end || !(number >= 0 && number <= kMaxSeconds)) {
    fail(cat("seconds ", in_quotes(word), " is no number from 0 to 1e300"));
  }
  return number;
}

Resource ProgramReader::resource(const std::string& word) const {
  std::string_view rest = word;
  if (rest == "compute") {
    return {};
  }
  if (rest == kToReplicas) {
    return {ResourceKind::Replicas};
  }
  constexpr std::array numbered = {std::pair{"copy", ResourceKind::Copy},
                                   std::pair{"link", ResourceKind::Link},
                                   std::pair{"inlet", ResourceKind::Inlet}};
  const size_t colon = std::min(word.find(':'), word.size());
  for (const auto& [name, kind] : numbered) {
    if (colon < word.size() && rest.substr(0, colon) == name) {
      return {kind, count(name, rest.substr(colon + 1))};
    }
  }
  fail(cat("on ",
           in_quotes(word),
           " is no resource; compute, copy:N, link:N, inlet:N and replicas are"));
}

Way ProgramReader::way(const std::string& word) const {
  Way result{word, word.ends_with(kNeedsOutput)};
  if (result.needs_output) {
    result.name.resize(word.size() - kNeedsOutput.size());
  }
  if (!is_way_name(result.name)) {
    fail(cat("way ",
             in_quotes(word),
             " is no name; up to ",
             kMaxWayName,
             " letters, digits, _ and - are allowed (but not - and ",
             kNoWay,
             "), then ",
             kNeedsOutput,
             " or not"));
  }
  return result;
}

int32_t ProgramReader::way_index(int32_t layer, const std::string& name) const {
  if (name == kNoWay) {
    return kKeepNothing;
  }
  const auto& indices = ways_[static_cast<size_t>(layer)];
  if (const auto found = indices.find(name); found != indices.end()) {
    return found->second;
  }
  std::vector<std::string> known = {std::string(kNoWay)};
  for (const Way& way : program_.layers[static_cast<size_t>(layer)].ways) {
    known.push_back(way.name);
  }
  fail_unknown(cat("way of layer ", layer), name, known);
}

// Whoever checks or draws a program has a place for each layer and micro-batch; a short file must
// not ask for more memory than there is.
void ProgramReader::check_extent() const {
  const int64_t layers = std::max(program_.loss_index(), 1);
  if (layers * program_.micro_batches > kMaxExtent) {
    fail(cat("layers times micro-batches are ",
             layers * program_.micro_batches,
             "; up to ",
             kMaxExtent,
             " are allowed"));
  }
}

void ProgramReader::check_layer(int32_t layer, int32_t end) const {
  if (layer >= end) {
    fail(cat("layer ", layer, " is out of range; the program has ", program_.loss_index()));
  }
}

void ProgramReader::check_unit(int32_t unit) const {
  if (static_cast<size_t>(unit) >= program_.units.size()) {
    fail(cat("unit ", unit, " is out of range; the program has ", program_.units.size()));
  }
}

void ProgramReader::check_micro_batch(int32_t micro_batch) const {
  if (micro_batch >= program_.micro_batches) {
    fail(cat(
        "micro-batch ", micro_batch, " is out of range; the program has ", program_.micro_batches));
  }
}

void ProgramReader::check_complete(Op op, const std::vector<Field>& fields) const {
  for (const FieldRule& rule : kFields) {
    if ((rule.needed_by & bit(op)) != 0 && find_field(fields, rule.name) == nullptr) {
      fail(cat("field ", rule.name, " is missing; ", op_name(op), " needs it"));
    }
  }
}

// A send or receive is of one value, and its line leads to another rank.
void ProgramReader::check_transfer(const Instruction& instruction,
                                   const std::vector<Field>& fields) {
  const bool is_send = instruction.op == Op::Send;
  const char* verb = is_send ? "reads" : "makes";
  if (const size_t values = find_field(fields, verb)->words.size(); values != 1) {
    fail(cat(op_name(instruction.op), " ", verb, " ", values, " values; it takes exactly one"));
  }
  const Resource& line = instruction.resource;
  if (line.kind != (is_send ? ResourceKind::Link : ResourceKind::Inlet)) {
    fail(cat(op_name(instruction.op),
             " is on ",
             spell_resource(line),
             "; it should be on ",
             is_send ? "link:N, where N receives" : "inlet:N, where N sends"));
  }
  const auto peer = static_cast<size_t>(line.index);
  const size_t own = program_.ranks.size() - 1;
  if (peer == own) {
    fail(cat(spell_resource(line), " leads to rank ", own, " itself; the peer is another rank"));
  }
  if (peer > own) {
    later_peers_.push_back({peer, place_});
  }
}

Instruction ProgramReader::scalars(Op op, const std::vector<Field>& fields) const {
  Instruction result{.op = op};
  if (const Field* field = find_field(fields, "layer")) {
    result.layer = count("layer", field->words[0]);
    // What enters the loss can be sent, too.
    check_layer(result.layer, program_.loss_index() + ((kTransfer & bit(op)) != 0 ? 1 : 0));
  }
  if (const Field* field = find_field(fields, "unit")) {
    result.layer = count("unit", field->words[0]);
    check_unit(result.layer);
  }
  if (const Field* field = find_field(fields, "mb")) {
    result.micro_batch = count("mb", field->words[0]);
    check_micro_batch(result.micro_batch);
  }
  if (const Field* field = find_field(fields, "keep")) {
    result.keep = way_index(result.layer, field->words[0]);
  }
  if (const Field* field = find_field(fields, "on")) {
    result.resource = resource(field->words[0]);
  }
  if (const Field* field = find_field(fields, "seconds")) {
    result.seconds = seconds(field->words[0]);
  }
  if (const Field* field = find_field(fields, "working")) {
    result.working_bytes = bytes("working", field->words[0]);
  }
  return result;
}

Value ProgramReader::new_value(const std::string& name) const {
  const auto parsed = parse_value_name(name, program_.loss_index());
  if (!parsed) {
    fail(cat("value ",
             in_quotes(name),
             " is no name like x3.0, s3.0, d3.0, w3.0, p3.0, g3.0, r3.0, t.0, v.0 or x3.0#2"));
  }
  const bool is_of_a_layer =
      parsed->kind == ValueKind::Saved || parsed->kind == ValueKind::WeightWork;
  if (is_of_a_unit(parsed->kind)) {
    check_unit(parsed->layer);
  } else {
    check_layer(parsed->layer, program_.loss_index() + (is_of_a_layer ? 0 : 1));
  }
  check_micro_batch(parsed->micro_batch);
  if (ids_.contains(name)) {
    fail(cat("value ", name, " is made or given twice; the next making is #", parsed->making + 1));
  }
  if (parsed->making > 1) {
    const int32_t before = parsed->making - 1;
    const std::string earlier = before == 1 ? "" : cat("#", before);
    if (!ids_.contains(cat(parsed->first, earlier))) {
      fail(cat("value ", name, " comes before ", parsed->first, earlier, "; makings count up"));
    }
  }
  return {parsed->kind, parsed->layer, parsed->micro_batch, 0};
}

ValueId ProgramReader::add_value(std::string_view size) {
  const size_t colon = size.find(':');
  if (colon == std::string_view::npos) {
    fail(cat("value ", in_quotes(size), " comes without its bytes; write NAME:BYTES"));
  }
  const std::string name(size.substr(0, colon));
  Value added = new_value(name);
  added.bytes = bytes(cat("bytes of ", name), size.substr(colon + 1));
  count_bytes(added.bytes);
  std::vector<Value>& values = program_.ranks.back().values;
  const auto id = static_cast<ValueId>(values.size());
  values.push_back(added);
  ids_.emplace(name, id);
  return id;
}

// Keeps every sum that a replay can come to within 63 bits.
void ProgramReader::count_bytes(int64_t added) {
  if (added > kMaxBytes - held_bytes_ - most_working_bytes_) {
    fail(cat("the bytes of this rank add up to more than ", kMaxBytes));
  }
  held_bytes_ += added;
}

void ProgramReader::finish_rank() {
  for (const Use& use : uses_) {
    const auto found = ids_.find(use.value);
    if (found == ids_.end()) {
      set_place(places_[use.instruction]);
      fail(cat("value ", in_quotes(use.value), " is neither made nor given in this rank"));
    }
    (program_.ranks.back().instructions[use.instruction].*use.list).push_back(found->second);
  }
  ids_.clear();
  uses_.clear();
  places_.clear();
  held_bytes_ = 0;
  most_working_bytes_ = 0;
}

}  // namespace penstock::program
