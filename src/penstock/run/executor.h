// Runs a program: obeys its instructions in order, holds a value from the instruction that makes it
// to the one that frees it, and knows nothing of plans. Times and bytes are recorded on the way.
#pragma once

#include <functional>
#include <vector>

#include "penstock/model/layer.h"
#include "penstock/program/simulate.h"
#include "penstock/run/plain_step.h"

namespace penstock::run {

// Something that an instruction has made, while it is held.
struct Made {
  int32_t instruction = 0;
  const program::Value& value;
  const model::Tensors& tensors;  // of an activation or a gradient; empty for saved state
};

class Executor {
 public:
  // The program must be one that verify() accepts (checked), of one rank and of this chain. All of
  // them must outlive the executor.
  Executor(const program::Program& program,
           const model::Chain& chain,
           model::Parameters& parameters);

  // What the program's step does, given the mean loss of the batch.
  using Update = std::function<void(double loss)>;

  // One training step. The batch has as many micro-batches as the program. Returns the mean loss
  // over all targets that count. Throws Error (exit code 1) when an allocation would break the
  // account's limit; weights are then as before, gradients are not.
  double run(const StepInput& input, const Update& update);

  // What the last run took and held, instruction by instruction. Bytes are those of the account.
  const program::Timeline& measured() const { return measured_; }

  // Called for everything that is made, in order.
  void watch(std::function<void(const Made&)> watcher) { watcher_ = std::move(watcher); }

 private:
  struct Slot {
    model::Tensors tensors;
    model::Saved saved;
  };
  struct Step;

  void execute(const program::Instruction& instruction, Step& step);
  void forward(const program::Instruction& instruction, Step& step);
  void backward(const program::Instruction& instruction, Step& step);
  void loss(const program::Instruction& instruction, Step& step);
  void show_made(int32_t index, const Step& step) const;
  program::ValueId find(const std::vector<program::ValueId>& ids,
                        program::ValueKind kind,
                        int32_t layer) const;
  void begin_record();
  [[noreturn]] void fail_limit(int32_t index, const char* what) const;

  const program::Program& program_;
  const program::RankProgram& rank_;
  const model::Chain& chain_;
  model::Parameters& parameters_;
  program::Timeline measured_;
  std::function<void(const Made&)> watcher_;
};

}  // namespace penstock::run
