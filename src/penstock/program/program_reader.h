// The words of a program file and what they mean. The text and the JSON form differ only in how a
// file is cut into words. Both hand them to ProgramReader, so both take the same programs and
// refuse others with the same messages. The writers of both forms spell with the functions below.
//
// This checks form: numbers in range, names that resolve. Lifetimes and memory are verify()'s.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/program/program.h"

namespace penstock::program {

inline constexpr int kProgramVersion = 2;
inline constexpr size_t kMaxProgramBytes = size_t{64} << 20;  // of a file

// What a field of an instruction takes: a number, numbers, a word, values ("x1.0"), or values with
// their bytes ("x1.0:4096").
enum class FieldType { Integer, Integers, Number, Word, Names, Sizes };
constexpr bool is_list(FieldType type) {
  return type == FieldType::Integers || type == FieldType::Names || type == FieldType::Sizes;
}

struct Field {
  std::string name;
  FieldType type = FieldType::Word;
  std::vector<std::string> words;  // exactly one, except for lists
};

// Takes a file's words from front to back. Every function throws ConfigError for words that mean
// nothing where they stand.
class ProgramReader {
 public:
  // What errors begin with from now on: "plan.txt:12".
  void set_place(std::string place) { place_ = std::move(place); }
  [[noreturn]] void fail(const std::string& what) const;
  // `what` as in "unknown field of forward".
  [[noreturn]] void fail_unknown(const std::string& what,
                                 std::string_view word,
                                 const std::vector<std::string>& known) const;

  void check_size(size_t bytes) const;
  void read_version(std::string_view version) const;
  void read_micro_batches(std::string_view number);
  void read_updates(std::string_view number, bool mixes_weights);  // after the micro-batches
  void read_axis(std::string_view axis, std::string_view degree);
  void read_shard(std::string_view shard, bool is_apart);
  void read_group(const std::string& name,
                  const std::vector<std::string>& axes,
                  const std::vector<std::string>& stages);
  void read_layer(const std::string& name, const std::vector<std::string>& modes);
  struct CarriedWords {
    std::string born = {};  // empty: the batch brings it
    std::vector<std::string> readers = {};
    bool has_gradient = false;
  };
  void read_carried(const std::string& name, const CarriedWords& words);  // after layers
  struct UnitWords {
    std::vector<std::string> layers, forward_only, weight_too;
    bool is_shared = false;
    bool is_frozen = false;
    std::string elements = "0";
  };
  void read_unit(const std::string& name, const UnitWords& words);  // after layers
  struct Limits {
    std::string device, host, disk;
  };
  void read_rank(const Limits& limits);
  void read_held(std::string_view size, const std::string& label = "");
  void read_given(std::string_view size);
  // `others` are words that could stand in its place, for the message.
  Op read_op(std::string_view word, std::initializer_list<const char*> others = {}) const;
  // A field without words yet; `earlier` are those that the instruction has.
  Field read_field(Op op, std::string_view name, const std::vector<Field>& earlier) const;
  void read_instruction(Op op, const std::vector<Field>& fields);
  Program finish();

  // For the forms that number what they list.
  void check_number(std::string_view what, std::string_view number, size_t expected) const;

  const Program& program() const { return program_; }  // so far

 private:
  // A value may be used above the line that makes it; that is verify()'s to refuse.
  struct Use {
    size_t instruction;
    std::vector<ValueId> Instruction::*list;
    std::string value;
  };

  int64_t bytes(const std::string& what, std::string_view word, int64_t least = 0) const;
  int32_t count(const std::string& what, std::string_view word, int32_t least = 0) const;
  int64_t integer(const std::string& what,
                  std::string_view word,
                  int64_t least,
                  int64_t most) const;
  double seconds(const std::string& word) const;
  Resource resource(const std::string& word) const;
  SaveMode mode(const std::string& word) const;
  int32_t mode_index(int32_t layer, const std::string& name) const;
  std::vector<int32_t> layer_list(const char* whose, const std::vector<std::string>& words) const;
  std::vector<int32_t> unit_list(const std::vector<std::string>& words) const;
  int64_t limit(const std::string& what, const std::string& word) const;
  std::vector<Slice> slices(const std::string& name, std::string_view words) const;
  void check_extent() const;
  void check_layer(int32_t layer, int32_t end) const;
  void check_unit(int32_t unit) const;
  void check_element(int32_t element) const;
  void check_micro_batch(int32_t micro_batch) const;
  void check_complete(Op op, const std::vector<Field>& fields) const;
  void check_transfer(const Instruction& instruction, const std::vector<Field>& fields);
  Instruction scalars(Op op, const std::vector<Field>& fields) const;
  Value new_value(const std::string& name) const;
  ValueId add_value(std::string_view size);  // "x1.0:4096", "o3:800@0-64+96-160/host"
  void count_bytes(int64_t added);
  void finish_rank();

  Program program_;
  std::string place_;
  std::vector<std::map<std::string, int32_t>> modes_;  // of each layer: name to index
  // Ranks that were not read yet when an instruction named them, and its place.
  std::vector<std::pair<size_t, std::string>> later_peers_;
  // Of the rank that is being read.
  std::map<std::string, ValueId> ids_;
  std::vector<Use> uses_;
  std::vector<std::string> places_;  // of its instructions
  int64_t held_bytes_ = 0;           // all values together
  int64_t most_working_bytes_ = 0;
  int64_t sent_bytes_ = 0;
};

std::string spell_limit(int64_t limit_bytes);
std::vector<std::string> spell_modes(const LayerInfo& layer);
std::vector<std::string> spell_numbers(const std::vector<int32_t>& numbers);
std::vector<std::string> spell_axes(const comm::RankGroup& group);
// "x1.0:4096", as makes, hold and given have it.
std::vector<std::string> spell_sizes(const std::vector<ValueId>& ids,
                                     const RankProgram& rank,
                                     const std::vector<std::string>& value_names);
std::vector<Field> spell_fields(const Program& program,
                                const RankProgram& rank,
                                const std::vector<std::string>& value_names,
                                const Instruction& instruction);

// In quotation marks and with escapes, as JSON has it.
std::string spell_text(const std::string& text);

// What is written must read back as the program it was written from: throws InternalError when
// `read` does not give that (its values are numbered in another order, say), and ConfigError when
// the file is too long to be read.
void check_reads_back(const Program& program,
                      const std::string& written,
                      const std::function<Program()>& read);

}  // namespace penstock::program
