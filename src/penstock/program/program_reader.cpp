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

constexpr size_t kMaxModeName = 64;
constexpr double kMaxSeconds = 1e300;  // so that sums stay finite
constexpr int32_t kMaxRanks = 1 << 16;
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
  program_.updates = count("updates", number, 0);
  if (!program_.is_evaluation() && program_.micro_batches % program_.updates != 0) {
    fail(cat(program_.updates,
             " updates do not divide ",
             program_.micro_batches,
             " micro-batches; every update takes as many"));
  }
  program_.mixes_weights = mixes_weights;
}

void ProgramReader::read_axis(std::string_view axis, std::string_view degree) {
  std::vector<std::string> known;
  for (const comm::Axis one : comm::kAxes) {
    if (comm::axis_name(one) == axis) {
      int32_t& place = one == comm::Axis::Data       ? program_.mesh.data
                       : one == comm::Axis::Pipeline ? program_.mesh.pipeline
                       : one == comm::Axis::Tensor   ? program_.mesh.tensor
                                                     : program_.mesh.context;
      place = static_cast<int32_t>(integer(std::string(axis), degree, 1, kMaxRanks));
      int64_t ranks = 1;
      for (const comm::Axis other : comm::kAxes) {
        ranks *= program_.mesh.degree(other);
      }
      if (ranks > kMaxRanks) {
        fail(cat("the mesh has ", ranks, " ranks; up to ", kMaxRanks, " are allowed"));
      }
      return;
    }
    known.emplace_back(comm::axis_name(one));
  }
  fail_unknown("axis", axis, known);
}

void ProgramReader::read_shard(std::string_view shard, bool is_apart) {
  program_.is_apart = is_apart;
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

void ProgramReader::read_group(const std::string& name,
                               const std::vector<std::string>& axes,
                               const std::vector<std::string>& stages) {
  comm::RankGroup group{.name = name};
  std::vector<std::string> known;
  for (const comm::Axis axis : comm::kAxes) {
    known.emplace_back(comm::axis_name(axis));
  }
  for (const std::string& word : axes) {
    const auto at = std::find(known.begin(), known.end(), word);
    if (at == known.end()) {
      fail_unknown("axis", word, known);
    }
    if (group.axes.contains(comm::kAxes[static_cast<size_t>(at - known.begin())])) {
      fail(cat("axis ", word, " is repeated; it is allowed once"));
    }
    group.axes = group.axes | comm::kAxes[static_cast<size_t>(at - known.begin())];
  }
  for (const std::string& word : stages) {
    const int32_t stage = count("stage", word);
    if (stage >= program_.mesh.pipeline) {
      fail(cat("stage ", stage, " is out of range; the mesh has ", program_.mesh.pipeline));
    }
    if (!group.stages.empty() && stage <= group.stages.back()) {
      fail(cat("stage ", stage, " comes after ", group.stages.back(), "; stages count up"));
    }
    group.stages.push_back(stage);
  }
  program_.groups.push_back(std::move(group));
}

std::vector<int32_t> ProgramReader::layer_list(const char* whose,
                                               const std::vector<std::string>& words) const {
  std::vector<int32_t> numbers;
  for (const std::string& word : words) {
    const int32_t layer = count("layer", word);
    check_layer(layer, program_.loss_index() + 1);  // the loss has parameters, too
    if (!numbers.empty() && layer <= numbers.back()) {
      fail(cat("layer ", layer, " comes after ", numbers.back(), "; ", whose, " count up"));
    }
    numbers.push_back(layer);
  }
  return numbers;
}

void ProgramReader::read_carried(const std::string& name, const CarriedWords& words) {
  program::Carried element{.name = name,
                           .readers = layer_list("the readers of an element", words.readers),
                           .has_gradient = words.has_gradient};
  if (!words.born.empty()) {
    element.born = count("born", words.born);
    check_layer(element.born, program_.loss_index());
  }
  program_.carried.push_back(std::move(element));
}

void ProgramReader::read_unit(const std::string& name, const UnitWords& words) {
  program_.units.push_back({.name = name,
                            .layers = layer_list("a unit's layers", words.layers),
                            .forward_only = layer_list("a unit's layers", words.forward_only),
                            .weight_too = layer_list("a unit's layers", words.weight_too),
                            .is_shared = words.is_shared,
                            .is_frozen = words.is_frozen,
                            .elements = bytes("elements", words.elements)});
}

void ProgramReader::read_layer(const std::string& name, const std::vector<std::string>& modes) {
  LayerInfo layer{name, {}};
  std::map<std::string, int32_t> indices;
  for (const std::string& word : modes) {
    SaveMode added = mode(word);
    if (!indices.emplace(added.name, static_cast<int32_t>(indices.size())).second) {
      fail(cat("save mode ", added.name, " is repeated; those of a layer have different names"));
    }
    layer.modes.push_back(std::move(added));
  }
  program_.layers.push_back(std::move(layer));
  modes_.push_back(std::move(indices));
  check_extent();
}

int64_t ProgramReader::limit(const std::string& what, const std::string& word) const {
  return word == kNoLimit ? 0 : bytes(what, word, 1);
}

void ProgramReader::read_rank(const Limits& limits) {
  finish_rank();
  program_.ranks.push_back({.limit_bytes = limit("limit", limits.device),
                            .host_limit_bytes = limit("host", limits.host),
                            .disk_limit_bytes = limit("disk", limits.disk)});
}

void ProgramReader::read_held(std::string_view size, const std::string& label) {
  const ValueId id = add_value(size);
  RankProgram& rank = program_.ranks.back();
  const Value& value = rank.value(id);
  const ValueKindInfo& info = info_of(value.kind);
  if (!info.is_persistent) {
    fail(cat("value ",
             in_quotes(size),
             " is not held from step to step; weights, gradients, state "
             "and what never moves are"));
  }
  if (info.has_label) {
    check_number("label", std::to_string(value.label), rank.labels.size());
    rank.labels.push_back(label);
  } else if (!label.empty()) {
    fail(cat("value ", in_quotes(size), " has no label; e and k have"));
  }
  rank.persistent.push_back(id);
}

void ProgramReader::read_given(std::string_view size) {
  program_.ranks.back().given.push_back(add_value(size));
}

Op ProgramReader::read_op(std::string_view word, std::initializer_list<const char*> others) const {
  for (size_t op = 0; op < kNumOps; ++op) {
    if (op_name(static_cast<Op>(op)) == word) {
      return static_cast<Op>(op);
    }
  }
  std::vector<std::string> known(others.begin(), others.end());
  for (size_t op = 0; op < kNumOps; ++op) {
    known.emplace_back(op_name(static_cast<Op>(op)));
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
  if (instruction.sent_bytes > kMaxBytes - sent_bytes_) {
    fail(cat("the bytes that this rank sends add up to more than ", kMaxBytes));
  }
  sent_bytes_ += instruction.sent_bytes;
  if ((kTransfer & bit(op)) != 0) {
    check_transfer(instruction, fields);
  }
  for (const Field& field : fields) {
    if (field.type == FieldType::Sizes) {
      for (const std::string& size : field.words) {
        instruction.makes.push_back(add_value(size));
      }
    } else if (field.type == FieldType::Names) {
      const auto list = field.name == "reads"     ? &Instruction::reads
                        : field.name == "sets"    ? &Instruction::sets
                        : field.name == "updates" ? &Instruction::updates
                                                  : &Instruction::frees;
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
  if (!program_.ranks.empty() &&
      static_cast<size_t>(program_.mesh.ranks()) != program_.ranks.size()) {
    fail(cat(
        "the program has ", program_.ranks.size(), " ranks, and its mesh ", program_.mesh.ranks()));
  }
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
  const std::string_view rest = word;
  const size_t colon = std::min(word.find(':'), word.size());
  std::vector<std::string> known;
  for (size_t kind = 0; kind < kNumResourceKinds; ++kind) {
    const ResourceRule& rule = kResources[kind];
    if (rest.substr(0, colon) == rule.name && rule.has_index == (colon < word.size())) {
      return {static_cast<ResourceKind>(kind),
              rule.has_index ? count(std::string(rule.name), rest.substr(colon + 1)) : 0};
    }
    known.push_back(cat(rule.name, rule.has_index ? ":N" : ""));
  }
  fail(cat("on ", in_quotes(word), " is no resource; ", join(known, ", "), " are"));
}

SaveMode ProgramReader::mode(const std::string& word) const {
  SaveMode result{word, word.ends_with(kNeedsOutput)};
  if (result.needs_output) {
    result.name.resize(word.size() - kNeedsOutput.size());
  }
  if (!is_mode_name(result.name)) {
    fail(cat("save mode ",
             in_quotes(word),
             " is no name; up to ",
             kMaxModeName,
             " letters, digits, _ and - are allowed (but not - and ",
             kNoMode,
             "), then ",
             kNeedsOutput,
             " or not"));
  }
  return result;
}

int32_t ProgramReader::mode_index(int32_t layer, const std::string& name) const {
  if (name == kNoMode) {
    return kKeepNothing;
  }
  const auto& indices = modes_[static_cast<size_t>(layer)];
  if (const auto found = indices.find(name); found != indices.end()) {
    return found->second;
  }
  std::vector<std::string> known = {std::string(kNoMode)};
  for (const SaveMode& one : program_.layers[static_cast<size_t>(layer)].modes) {
    known.push_back(one.name);
  }
  fail_unknown(cat("save mode of layer ", layer), name, known);
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

void ProgramReader::check_element(int32_t element) const {
  if (static_cast<size_t>(element) >= program_.carried.size()) {
    fail(cat("element ", element, " is out of range; the program has ", program_.carried.size()));
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

// A send or receive is of one value, of a layer or an element, and its line leads to another rank.
void ProgramReader::check_transfer(const Instruction& instruction,
                                   const std::vector<Field>& fields) {
  const bool is_send = instruction.op == Op::Send;
  const char* verb = is_send ? "reads" : "makes";
  if ((instruction.layer < 0) == (instruction.element < 0)) {
    fail(cat(op_name(instruction.op),
             " needs the field layer, or element where the value is carried"));
  }
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
    const bool may_be_loss = ((kTransfer | bit(Op::Add)) & bit(op)) != 0;
    check_layer(result.layer, program_.loss_index() + (may_be_loss ? 1 : 0));
  }
  if (const Field* field = find_field(fields, "element")) {
    result.element = count("element", field->words[0]);
    check_element(result.element);
  }
  if (const Field* field = find_field(fields, "units")) {
    result.units = unit_list(field->words);
  }
  if (const Field* field = find_field(fields, "group")) {
    result.group = count("group", field->words[0]);
    if (static_cast<size_t>(result.group) >= program_.groups.size()) {
      fail(cat(
          "group ", result.group, " is out of range; the program has ", program_.groups.size()));
    }
  }
  if (const Field* field = find_field(fields, "to")) {
    if (field->words[0] != kAll && field->words[0] != kScatter) {
      fail_unknown("to", field->words[0], {std::string(kAll), std::string(kScatter)});
    }
    result.scatters = field->words[0] == kScatter;
  }
  if (const Field* field = find_field(fields, "mb")) {
    result.micro_batch = count("mb", field->words[0]);
    check_micro_batch(result.micro_batch);
  }
  if (const Field* field = find_field(fields, "keep")) {
    result.keep = mode_index(result.layer, field->words[0]);
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
  if (const Field* field = find_field(fields, "sends")) {
    result.sent_bytes = bytes("sends", field->words[0]);
  }
  return result;
}

std::vector<int32_t> ProgramReader::unit_list(const std::vector<std::string>& words) const {
  std::vector<int32_t> units;
  for (const std::string& word : words) {
    units.push_back(count("unit", word));
    check_unit(units.back());
  }
  return units;
}

Value ProgramReader::new_value(const std::string& name) const {
  const auto parsed = parse_value_name(name);
  if (!parsed) {
    fail(cat("value ",
             in_quotes(name),
             " is no name like x3.0, s3.0, d3.0, w3.0, t.0, i3.0, u3.0, p3.0, g3.0, v.0, m3, c3, "
             "a3, b3.0, o3, "
             "e0, k0, q.0, z.0, n.0 or x3.0#2"));
  }
  const Value& value = parsed->value;
  const ValueKindInfo& info = info_of(value.kind);
  const bool is_of_work = value.kind == ValueKind::Saved || value.kind == ValueKind::WeightWork;
  if (info.has_unit) {
    check_unit(value.unit);
  }
  if (info.has_element) {
    check_element(value.element);
  }
  if (info.has_layer) {
    check_layer(value.layer, program_.loss_index() + (is_of_work ? 0 : 1));
  }
  if (info.has_micro_batch) {
    check_micro_batch(value.micro_batch);
  }
  if (info.has_version && value.version >= program_.updates) {
    fail(cat("update ", value.version, " is out of range; the program has ", program_.updates));
  }
  if (info.is_persistent && parsed->making > 1) {
    fail(cat("value ", name, " is held from step to step; it is there once, without #"));
  }
  if (ids_.contains(name)) {
    fail(info.is_persistent ? cat("value ", name, " is held twice; it is there once")
                            : cat("value ",
                                  name,
                                  " is made or given twice; the next making is #",
                                  parsed->making + 1));
  }
  if (parsed->making > 1) {
    const int32_t before = parsed->making - 1;
    const std::string earlier = before == 1 ? "" : cat("#", before);
    if (!ids_.contains(cat(parsed->first, earlier))) {
      fail(cat("value ", name, " comes before ", parsed->first, earlier, "; makings count up"));
    }
  }
  return value;
}

std::vector<Slice> ProgramReader::slices(const std::string& name, std::string_view words) const {
  std::vector<Slice> found;
  for (;;) {
    const size_t plus = words.find('+');
    const std::string_view word = words.substr(0, plus);
    const size_t dash = word.find('-');
    if (dash == std::string_view::npos) {
      fail(cat("slice ", in_quotes(word), " of ", name, " is not written FIRST-END"));
    }
    found.push_back({bytes("first element of a slice", word.substr(0, dash)),
                     bytes("end of a slice", word.substr(dash + 1))});
    if (plus == std::string_view::npos) {
      return found;
    }
    words.remove_prefix(plus + 1);
  }
}

ValueId ProgramReader::add_value(std::string_view size) {
  const size_t colon = size.find(':');
  if (colon == std::string_view::npos) {
    fail(cat("value ", in_quotes(size), " comes without its bytes; write NAME:BYTES"));
  }
  const std::string name(size.substr(0, colon));
  Value added = new_value(name);
  std::string_view rest = size.substr(colon + 1);
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    const std::string_view word = rest.substr(slash + 1);
    const auto tier = std::find_if(
        kTiers.begin(), kTiers.end(), [&](Tier one) { return tier_name(one) == word; });
    if (tier == kTiers.end() || *tier == Tier::Device) {
      fail_unknown("tier", word, {"host", "disk"});
    }
    added.tier = *tier;
    rest = rest.substr(0, slash);
  }
  if (const size_t at = rest.find('@'); at != std::string_view::npos) {
    if (!info_of(added.kind).has_unit || !info_of(added.kind).is_persistent) {
      fail(cat("value ", name, " has no slices; weights, gradients and state of a unit have"));
    }
    added.slices = slices(name, rest.substr(at + 1));
    rest = rest.substr(0, at);
  }
  added.bytes = bytes(cat("bytes of ", name), rest);
  count_bytes(added.bytes);
  std::vector<Value>& values = program_.ranks.back().values;
  const auto id = static_cast<ValueId>(values.size());
  values.push_back(std::move(added));
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
      fail(cat("value ", in_quotes(use.value), " is neither held, given nor made in this rank"));
    }
    (program_.ranks.back().instructions[use.instruction].*use.list).push_back(found->second);
  }
  ids_.clear();
  uses_.clear();
  places_.clear();
  held_bytes_ = 0;
  most_working_bytes_ = 0;
  sent_bytes_ = 0;
}

}  // namespace penstock::program
