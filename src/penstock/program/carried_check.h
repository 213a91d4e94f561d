// What verify() demands of elements that are carried along the chain: one rank's list, beside the
// checks of its layers.
//
// The gradient of an element is known by its last part: those who read the element add to it from
// the last reader to the first, so the last one says which are there. What one rank sends and another
// receives must be the same (find_wrong_message).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/program/program.h"
#include "penstock/program/rank_lives.h"

namespace penstock::program {

// The elements themselves.
std::optional<Violation> find_wrong_carried(const Program& program);

// Gradients of elements on their way between the ranks of one pipeline, in the order of their
// channels.
struct CarriedMessages {
  static constexpr int32_t kAny = -1;
  struct Message {
    int32_t instruction = 0;
    int32_t reader = kAny;  // that added last: as it is sent, or as who uses it first wants it
  };
  std::map<Channel, std::vector<Message>> sent, received;
};
std::optional<Violation> find_wrong_message(const Program& program,
                                            const CarriedMessages& messages);

class CarriedCheck {
 public:
  CarriedCheck(const RankLives& lives, CarriedMessages& messages);

  // What an instruction at a layer (or the loss) reads, makes and changes of carried elements.
  RankLives::Counts check_forward(const Instruction& instruction, bool makes_output) const;
  RankLives::Counts check_loss(const Instruction& instruction);
  // `forward`: whose work it goes back over; `needs_output`: whether what that made must be there.
  RankLives::Counts check_backward(const Instruction& instruction,
                                   int32_t forward,
                                   bool needs_output);
  RankLives::Counts check_backward_weight(const Instruction& instruction) const;

  void check_transfer(const Instruction& instruction, int32_t at);

 private:
  const Carried& element(int32_t number) const {
    return program_.carried[static_cast<size_t>(number)];
  }
  const CarriedAt& at(int32_t layer) const { return at_[static_cast<size_t>(layer)]; }
  std::vector<ValueId> require_read(const Instruction& instruction, int32_t layer) const;
  RankLives::Counts add_parts(const Instruction& instruction, int32_t layer);
  void require_last(ValueId id, int32_t reader);

  const RankLives& lives_;
  const Program& program_;
  CarriedMessages& messages_;
  std::vector<CarriedAt> at_;  // by layer, then the loss
  // By value, of gradients: the reader that added last; where they came from, until they are used.
  std::vector<int32_t> last_;
  std::map<ValueId, std::pair<Channel, size_t>> unused_;
  // What the input gradient has read, by layer and micro-batch.
  std::map<std::pair<int32_t, int32_t>, std::vector<ValueId>> read_by_input_;
};

}  // namespace penstock::program
