#include "penstock/program/program_text.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/program/program_reader.h"

namespace penstock::program {

namespace {

constexpr std::string_view kNoItems = "-";

std::string print_list(const std::vector<std::string>& items) {
  return items.empty() ? std::string(kNoItems) : join(items, ",");
}

// Those without a label on one line; each of the others has its own.
std::string print_held(const RankProgram& rank, const std::vector<std::string>& names) {
  std::string out, unlabelled;
  const std::vector<std::string> sizes = spell_sizes(rank.persistent, rank, names);
  const auto flush = [&] {
    out += unlabelled.empty() ? "" : cat("hold", unlabelled, "\n");
    unlabelled.clear();
  };
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Value& value = rank.value(rank.persistent[i]);
    if (!info_of(value.kind).has_label) {
      unlabelled += cat(" ", sizes[i]);
      continue;
    }
    flush();
    PENSTOCK_CHECK(static_cast<size_t>(value.label) < rank.labels.size(), "no label ", value.label);
    const std::string& label = rank.labels[static_cast<size_t>(value.label)];
    out += cat("hold ", sizes[i], " ", spell_text(label), "\n");
  }
  flush();
  return out;
}

std::string print_rank(const Program& program, const RankProgram& rank) {
  const std::vector<std::string> names = value_names(rank);
  std::string out = print_held(rank, names);
  if (!rank.given.empty()) {
    out += cat("given ", join(spell_sizes(rank.given, rank, names), " "), "\n");
  }
  for (const Instruction& instruction : rank.instructions) {
    out += op_name(instruction.op);
    for (const Field& field : spell_fields(program, rank, names, instruction)) {
      out += cat(" ", field.name, "=", print_list(field.words));
    }
    out += "\n";
  }
  return out;
}

// What stands before the layers.
std::string print_head(const Program& program) {
  std::string out =
      cat("penstock-program ", kProgramVersion, "\nmicro-batches ", program.micro_batches, "\n");
  if (program.updates != 1 || program.mixes_weights) {
    const char* weights = program.mixes_weights ? "mixed" : "kept";
    out += cat("updates ", program.updates, " weights=", weights, "\n");
  }
  if (program.mesh != comm::Mesh()) {
    out += "mesh";
    for (const comm::Axis axis : comm::kAxes) {
      if (program.mesh.degree(axis) > 1) {
        out += cat(" ", comm::axis_name(axis), "=", program.mesh.degree(axis));
      }
    }
    out += "\n";
  }
  if (program.shard != Shard::None || program.is_apart) {
    out +=
        cat("shard ", shard_name(program.shard), program.is_apart ? " replicas=apart" : "", "\n");
  }
  for (size_t i = 0; i < program.groups.size(); ++i) {
    const comm::RankGroup& group = program.groups[i];
    out += cat("group ", i, " ", spell_text(group.name), " axes=", print_list(spell_axes(group)));
    if (!group.stages.empty()) {
      out += cat(" stages=", print_list(spell_numbers(group.stages)));
    }
    out += "\n";
  }
  return out;
}

std::string print_carried(const Carried& element) {
  return cat(spell_text(element.name),
             element.born < 0 ? "" : cat(" born=", element.born),
             " readers=",
             print_list(spell_numbers(element.readers)),
             element.has_gradient ? " gradient=yes" : "");
}

std::string print_unit(const Unit& unit) {
  std::string out = cat(spell_text(unit.name), " layers=", print_list(spell_numbers(unit.layers)));
  if (!unit.forward_only.empty()) {
    out += cat(" forward=", print_list(spell_numbers(unit.forward_only)));
  }
  if (!unit.weight_too.empty()) {
    out += cat(" weight=", print_list(spell_numbers(unit.weight_too)));
  }
  out += unit.is_shared ? " shared=yes" : "";
  out += unit.is_frozen ? " frozen=yes" : "";
  out += unit.elements > 0 ? cat(" elements=", unit.elements) : "";
  return out;
}

std::string print(const Program& program) {
  std::string out = print_head(program);
  for (size_t i = 0; i < program.layers.size(); ++i) {
    const LayerInfo& layer = program.layers[i];
    out += cat("layer ", i, " ", spell_text(layer.name));
    out += cat(" modes=", print_list(spell_modes(layer)), "\n");
  }
  for (size_t i = 0; i < program.carried.size(); ++i) {
    out += cat("carried ", i, " ", print_carried(program.carried[i]), "\n");
  }
  for (size_t i = 0; i < program.units.size(); ++i) {
    out += cat("unit ", i, " ", print_unit(program.units[i]), "\n");
  }
  for (size_t i = 0; i < program.ranks.size(); ++i) {
    const RankProgram& rank = program.ranks[i];
    out += cat("rank ", i, " limit=", spell_limit(rank.limit_bytes));
    out += rank.host_limit_bytes > 0 ? cat(" host=", rank.host_limit_bytes) : "";
    out += rank.disk_limit_bytes > 0 ? cat(" disk=", rank.disk_limit_bytes) : "";
    out += cat("\n", print_rank(program, rank));
  }
  return out;
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> items;
  if (text == kNoItems) {
    return items;
  }
  for (;;) {
    const size_t comma = text.find(',');
    items.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) {
      return items;
    }
    text.remove_prefix(comma + 1);
  }
}

// As they stand on the line, quotation marks included.
using Words = std::vector<std::string_view>;

bool is_quoted(std::string_view word) {
  return word.starts_with('"');
}

class TextParser {
 public:
  TextParser(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {}

  Program parse() {
    set_place();
    reader_.check_size(text_.size());
    while (!text_.empty()) {
      const size_t end = std::min(text_.find('\n'), text_.size());
      if (end > 0) {
        set_place();
        read_line(text_.substr(0, end));
      }
      text_.remove_prefix(std::min(end + 1, text_.size()));
      ++line_number_;
    }
    set_place();
    if (part_ < Part::Layers) {
      reader_.fail(
          "the program ends here; it begins with the lines penstock-program 2 and "
          "micro-batches N");
    }
    return reader_.finish();
  }

 private:
  // What has been read last. The parts of a file come in this order; the last three once per rank.
  enum class Part { Nothing, Version, Layers, Carried, Units, Rank, Given, Instructions };

  void set_place() { reader_.set_place(origin_ + ":" + std::to_string(line_number_)); }

  void read_line(std::string_view line) {
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    check_characters(line);
    if (const Words words = split_words(line); !words.empty()) {
      read_words(words);
    }
  }

  void check_characters(std::string_view line) const {
    if (!is_valid_utf8(line)) {
      reader_.fail("the line is not valid UTF-8; a program is text");
    }
    const auto is_control = [](char letter) {
      return static_cast<unsigned char>(letter) < 0x20 && letter != '\t';
    };
    if (std::any_of(line.begin(), line.end(), is_control)) {
      reader_.fail("the line holds a control character; a program is text");
    }
  }

  Words split_words(std::string_view line) const {
    constexpr std::string_view blanks = " \t";
    Words words;
    for (;;) {
      line.remove_prefix(std::min(line.find_first_not_of(blanks), line.size()));
      if (line.empty() || line.front() == '#') {
        return words;
      }
      const size_t length = is_quoted(line) ? quoted_length(line) : line.find_first_of(blanks);
      words.push_back(line.substr(0, length));
      line.remove_prefix(words.back().size());
      if (!line.empty() && blanks.find(line.front()) == std::string_view::npos) {
        reader_.fail("a blank is missing after a quotation mark");
      }
    }
  }

  size_t quoted_length(std::string_view text) const {
    for (size_t i = 1; i < text.size(); ++i) {
      if (text[i] == '"') {
        return i + 1;
      }
      if (text[i] == '\\') {
        ++i;
      }
    }
    reader_.fail("a quotation mark is not closed on its line");
  }

  std::string unquote(std::string_view quoted) const {
    const auto text = nlohmann::json::parse(quoted, nullptr, false);
    if (!text.is_string()) {
      reader_.fail("an escape in quotation marks is wrong; those of JSON are allowed");
    }
    return text.get<std::string>();
  }

  void read_words(const Words& words) {
    const std::string_view first = words[0];
    if (first == "penstock-program") {
      require_form(words, "ww", "penstock-program 2");
      advance(first, part_ == Part::Nothing, Part::Version);
      reader_.read_version(words[1]);
    } else if (part_ == Part::Nothing) {
      reader_.fail("the file does not begin with penstock-program 2; it is no program");
    } else if (first == "micro-batches") {
      require_form(words, "ww", "micro-batches 4");
      advance(first, part_ == Part::Version, Part::Layers);
      reader_.read_micro_batches(words[1]);
    } else if (first == "updates") {
      read_updates(words);
    } else if (first == "mesh") {
      read_mesh(words);
    } else if (first == "shard") {
      read_shard(words);
    } else if (first == "group") {
      read_group(words);
    } else if (first == "layer") {
      read_layer(words);
    } else if (first == "carried") {
      read_carried(words);
    } else if (first == "unit") {
      read_unit(words);
    } else if (first == "rank") {
      read_rank(words);
    } else if (first == "hold") {
      read_held(words);
    } else if (first == "given") {
      require_form(words, std::string(std::max(words.size(), size_t{2}), 'w'), "given x0.0:4096");
      advance(first, part_ == Part::Rank || part_ == Part::Given, Part::Given);
      for (size_t i = 1; i < words.size(); ++i) {
        reader_.read_given(words[i]);
      }
    } else {
      read_instruction(words);
    }
  }

  void read_updates(const Words& words) {
    constexpr const char* example = "updates 4 weights=kept";
    require_form(words, "www", example);
    advance_head("updates", Head::Updates);
    const std::string_view weights = option(words[2], "weights", example);
    if (weights != "kept" && weights != "mixed") {
      reader_.fail_unknown("weights", weights, {"kept", "mixed"});
    }
    reader_.read_updates(words[1], weights == "mixed");
  }

  void read_mesh(const Words& words) {
    constexpr const char* example = "mesh data=2 pipeline=4";
    require_form(words, std::string(std::max(words.size(), size_t{2}), 'w'), example);
    advance_head("mesh", Head::Mesh);
    Words axes;
    for (size_t i = 1; i < words.size(); ++i) {
      const size_t equals = words[i].find('=');
      if (equals == std::string_view::npos) {
        fail_form("mesh", example);
      }
      axes.push_back(words[i].substr(0, equals));
      if (std::find(axes.begin(), axes.end() - 1, axes.back()) != axes.end() - 1) {
        reader_.fail(cat("axis ", axes.back(), " is repeated; it is allowed once"));
      }
      reader_.read_axis(axes.back(), words[i].substr(equals + 1));
    }
  }

  void read_shard(const Words& words) {
    constexpr const char* example = "shard none replicas=apart";
    const bool has_more = words.size() == 3;
    require_form(words, has_more ? "www" : "ww", "shard gradients");
    advance_head("shard", Head::Shard);
    if (has_more && option(words[2], "replicas", example) != "apart") {
      reader_.fail_unknown("replicas", option(words[2], "replicas", example), {"apart"});
    }
    reader_.read_shard(words[1], has_more);
  }

  void read_group(const Words& words) {
    constexpr const char* example = "group 0 \"data\" axes=data";
    const bool has_more = words.size() == 5;
    require_form(words, has_more ? "wwqww" : "wwqw", example);
    advance("group", is_before_layers(), Part::Layers);
    head_ = Head::Groups;
    reader_.check_number("group", words[1], reader_.program().groups.size());
    constexpr const char* longer = "group 0 \"table\" axes=pipeline stages=0,3";
    reader_.read_group(
        unquote(words[2]),
        split_list(option(words[3], "axes", example)),
        has_more ? split_list(option(words[4], "stages", longer)) : std::vector<std::string>());
  }

  bool is_before_layers() const {
    return part_ == Part::Layers && reader_.program().layers.empty();
  }

  void read_carried(const Words& words) {
    constexpr const char* example = "carried 0 \"name\" born=0 readers=1,3 gradient=yes";
    require_form(words, form_of_options(words), example);
    advance("carried", part_ == Part::Layers || part_ == Part::Carried, Part::Carried);
    reader_.check_number("carried", words[1], reader_.program().carried.size());
    Options options(words);
    ProgramReader::CarriedWords element;
    element.born = std::string(options.take("born").value_or(""));
    const auto readers = options.take("readers");
    if (!readers) {
      fail_form("readers", example);
    }
    element.readers = split_list(*readers);
    if (const auto gradient = options.take("gradient")) {
      if (*gradient != "yes") {
        reader_.fail_unknown("gradient", *gradient, {"yes"});
      }
      element.has_gradient = true;
    }
    if (!options.is_done()) {
      fail_form("carried", example);
    }
    reader_.read_carried(unquote(words[2]), element);
  }

  // Of a line with a number, a name and then name=value, in order; some may be left out.
  class Options {
   public:
    explicit Options(const Words& words) : words_(words) {}
    std::optional<std::string_view> take(std::string_view name) {
      const bool is_there = at_ < words_.size() && words_[at_].starts_with(cat(name, "="));
      return is_there ? std::optional(words_[at_++].substr(name.size() + 1)) : std::nullopt;
    }
    bool is_done() const { return at_ == words_.size(); }

   private:
    const Words& words_;
    size_t at_ = 3;
  };
  static std::string form_of_options(const Words& words) {
    return "wwq" + std::string(words.size() - std::min<size_t>(words.size(), 3), 'w');
  }

  void read_unit(const Words& words) {
    constexpr const char* example =
        "unit 0 \"name\" layers=0,1 forward=0 weight=1 shared=yes frozen=yes elements=64";
    require_form(words, form_of_options(words), example);
    advance("unit", part_ >= Part::Layers && part_ <= Part::Units, Part::Units);
    reader_.check_number("unit", words[1], reader_.program().units.size());
    ProgramReader::UnitWords unit;
    Options options(words);
    const auto layers = options.take("layers");
    if (!layers) {
      fail_form("layers", example);
    }
    unit.layers = split_list(*layers);
    if (const auto forward = options.take("forward")) {
      unit.forward_only = split_list(*forward);
    }
    if (const auto weight = options.take("weight")) {
      unit.weight_too = split_list(*weight);
    }
    if (const auto shared = options.take("shared")) {
      if (*shared != "yes") {
        reader_.fail_unknown("shared", *shared, {"yes"});
      }
      unit.is_shared = true;
    }
    if (const auto frozen = options.take("frozen")) {
      if (*frozen != "yes") {
        reader_.fail_unknown("frozen", *frozen, {"yes"});
      }
      unit.is_frozen = true;
    }
    unit.elements = std::string(options.take("elements").value_or("0"));
    if (!options.is_done()) {
      fail_form("unit", example);
    }
    reader_.read_unit(unquote(words[2]), unit);
  }

  void read_layer(const Words& words) {
    constexpr const char* example = "layer 0 \"name\" modes=all";
    require_form(words, "wwqw", example);
    advance("layer", part_ == Part::Layers, Part::Layers);
    reader_.check_number("layer", words[1], reader_.program().layers.size());
    reader_.read_layer(unquote(words[2]), split_list(option(words[3], "modes", example)));
  }

  void read_rank(const Words& words) {
    constexpr const char* example = "rank 0 limit=none";
    constexpr const char* longer = "rank 0 limit=none host=4096 disk=8192";
    const size_t count = std::clamp<size_t>(words.size(), 3, 5);
    require_form(words, std::string(count, 'w'), count == 3 ? example : longer);
    advance("rank", part_ >= Part::Layers, Part::Rank);
    reader_.check_number("rank", words[1], reader_.program().ranks.size());
    ProgramReader::Limits limits{
        std::string(option(words[2], "limit", example)), spell_limit(0), spell_limit(0)};
    size_t at = 3;
    if (at < words.size() && words[at].starts_with("host=")) {
      limits.host = std::string(option(words[at++], "host", longer));
    }
    if (at < words.size()) {
      limits.disk = std::string(option(words[at++], "disk", longer));
    }
    if (at < words.size()) {
      fail_form("rank", longer);
    }
    reader_.read_rank(limits);
  }

  void read_held(const Words& words) {
    advance("hold", part_ == Part::Rank, Part::Rank);
    if (words.size() == 3 && is_quoted(words[2])) {
      return reader_.read_held(words[1], unquote(words[2]));
    }
    require_form(
        words, std::string(std::max(words.size(), size_t{2}), 'w'), "hold m0:4096 o0:8192");
    for (size_t i = 1; i < words.size(); ++i) {
      reader_.read_held(words[i]);
    }
  }

  void read_instruction(const Words& words) {
    const Op op = reader_.read_op(words[0],
                                  {"micro-batches",
                                   "updates",
                                   "mesh",
                                   "shard",
                                   "group",
                                   "layer",
                                   "carried",
                                   "unit",
                                   "rank",
                                   "hold",
                                   "given"});
    advance(words[0], part_ >= Part::Rank, Part::Instructions);
    std::vector<Field> fields;
    for (size_t i = 1; i < words.size(); ++i) {
      const size_t equals = words[i].find('=');
      if (is_quoted(words[i]) || equals == std::string_view::npos) {
        reader_.fail(cat("word ", i + 1, " is no field; fields are written name=value"));
      }
      Field field = reader_.read_field(op, words[i].substr(0, equals), fields);
      const std::string_view value = words[i].substr(equals + 1);
      field.words = is_list(field.type) ? split_list(value) : std::vector{std::string(value)};
      fields.push_back(std::move(field));
    }
    reader_.read_instruction(op, fields);
  }

  // `form` has a letter per word: w, or q for one in quotation marks.
  void require_form(const Words& words, std::string_view form, const char* example) const {
    std::string found;
    for (const std::string_view word : words) {
      found += is_quoted(word) ? 'q' : 'w';
    }
    if (found != form) {
      fail_form(words[0], example);
    }
  }

  std::string_view option(std::string_view word, std::string_view name, const char* example) const {
    if (!word.starts_with(cat(name, "="))) {
      fail_form(name, example);
    }
    return word.substr(name.size() + 1);
  }

  [[noreturn]] void fail_form(std::string_view what, const char* example) const {
    reader_.fail(cat(what, " is not written as it should be; an example: ", example));
  }

  void advance(std::string_view word, bool is_in_place, Part next) {
    if (!is_in_place) {
      reader_.fail(
          cat(word,
              " is out of place; the order is penstock-program, micro-batches, updates (of an "
              "asynchronous pipeline), mesh (of several ranks), shard, groups, layers, carried "
              "elements, units, and "
              "for each rank: rank, held values, given values, instructions"));
    }
    part_ = next;
  }

  // Lines that come once before the groups and layers, in this order.
  enum class Head { Nothing, Updates, Mesh, Shard, Groups };
  void advance_head(std::string_view word, Head head) {
    advance(word, is_before_layers() && head_ < head, Part::Layers);
    head_ = head;
  }

  std::string_view text_;  // what is left
  const std::string& origin_;
  int64_t line_number_ = 1;
  Part part_ = Part::Nothing;
  Head head_ = Head::Nothing;
  ProgramReader reader_;
};

}  // namespace

std::string format_program(const Program& program) {
  std::string text = print(program);
  check_reads_back(program, text, [&] { return parse_program(text, "the written program"); });
  return text;
}

Program parse_program(std::string_view text, const std::string& origin) {
  return TextParser(text, origin).parse();
}

}  // namespace penstock::program
