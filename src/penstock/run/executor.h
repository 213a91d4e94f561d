// Runs a program: obeys its instructions in order, holds a value from the instruction that makes it
// to the one that frees it, and knows nothing of plans. Times and bytes are recorded on the way.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "penstock/comm/group.h"
#include "penstock/device/inputs.h"
#include "penstock/device/step_graph.h"
#include "penstock/device/stopwatch.h"
#include "penstock/memory/account.h"
#include "penstock/model/chain.h"
#include "penstock/model/layer.h"
#include "penstock/program/simulate.h"
#include "penstock/run/all_squares.h"
#include "penstock/run/plain_step.h"
#include "penstock/run/replicas.h"
#include "penstock/run/stepper.h"
#include "penstock/run/transfers.h"

namespace penstock::run {

// Something that an instruction has made, while it is held.
struct Made {
  int32_t instruction = 0;
  const program::Value& value;
  const model::Tensors& tensors;  // of an activation or a gradient; empty for saved state
};

// A step was stopped because an allocation would have broken the limit (exit code 1).
class OverLimit : public OutOfMemory {
 public:
  using OutOfMemory::OutOfMemory;
};

class Executor {
 public:
  // The program must be one that verify() accepts (checked), of one rank and of this chain. All of
  // them must outlive the executor.
  Executor(const program::Program& program,
           const model::Chain& chain,
           model::Parameters& parameters);
  // One rank of a program of several: the group's. The parameters are those of its layers, divided
  // among its replicas as the program says. All ranks make theirs at the same time.
  Executor(const program::Program& program,
           const model::Chain& chain,
           model::Parameters& parameters,
           comm::Group& group,
           Replicas* replicas = nullptr);  // where the program has any
  // An evaluation by the rank of a step, with its parameters and its links to other ranks. Both
  // must outlive this.
  Executor(const program::Program& evaluation, const Executor& step);

  // GPU: from the second step on, everything but the update is one recorded graph. Only for chains
  // without random layers (checked).
  void use_graph();
  // Gives up what a recorded step holds on to: for other work that needs the memory. It is recorded
  // again at the next step.
  void release_graph();
  bool has_graph() const { return graph_ != nullptr; }

  // One training step, or as many as the program has updates: `input` has the batches and settings
  // of all of them; `stepper` moves the weights. The batch, the whole of it at every rank, has as many
  // micro-batches as the program, for each replica: the first of them takes the first samples, and
  // so on. Returns the mean loss over all targets that count, once the device has done everything
  // (of several updates, the mean of theirs); 0 on a rank without the loss. Throws Error (exit code
  // 1) when an allocation would break the account's limit; weights are then as before, gradients
  // are not.
  double run(const StepInput& input, Stepper& stepper);
  // The loss of some samples, without dropout: of the program of an evaluation. They are those of
  // this replica, in as many micro-batches as the program has, and may be fewer than were planned
  // for. All ranks call it. The rank with the loss gets the answer, the others zeros.
  // `shapes`: of all fields, where the rank does not have them all.
  LossSum evaluate(const model::Fields& batch,
                   int64_t samples,
                   const std::map<std::string, model::TensorShape>& shapes = {});
  // Of the last run, for each of its updates.
  const std::vector<Updated>& outcomes() const { return outcomes_; }
  // Whether their norms are of the gradients of all ranks, or of this rank's alone.
  bool has_common_norm() const { return group_ == nullptr || group_->size() == 1 || all_squares_; }
  // Of the last run, for each of its updates.
  const std::vector<double>& losses() const { return losses_; }
  // Of the last run: the sum over the targets of each micro-batch of this replica, and what makes
  // the mean of an update of such sums. 0 on a rank without the loss.
  const std::vector<double>& loss_sums() const { return loss_sums_; }
  double loss_scale(int64_t update) const { return loss_scales_[static_cast<size_t>(update)]; }

  const program::RankProgram& rank_program() const { return rank_; }

  // What this rank gave to other ranks in the last run.
  int64_t sent_bytes() const { return sent_bytes_; }
  int64_t replica_bytes() const { return replica_bytes_; }  // of those, to its replicas

  // What the last run took and held, instruction by instruction. Bytes are those of the account.
  const program::Timeline& measured() const { return measured_; }

  // Called for everything that is made, in order.
  void watch(std::function<void(const Made&)> watcher) { watcher_ = std::move(watcher); }

 private:
  Executor(const program::Program& program,
           const model::Chain& chain,
           model::Parameters& parameters,
           comm::Group* group,
           Replicas* replicas,
           std::shared_ptr<Transfers> transfers);  // nothing: its own, where it has a group

  struct Slot {
    model::Tensors tensors;
    model::Saved saved;
    model::WeightWork work;
    std::vector<std::unique_ptr<Sent>> sent;  // its tensors that are on their way to a peer
    WorkPtr change, use;                      // on a line: the last that changes it, and reads it
    int64_t layer = 0;                        // of a bucket: whose backward fills it
  };
  struct Step;

  void execute(const program::Instruction& instruction, Step& step);
  void forward(const program::Instruction& instruction, Step& step);
  void backward(const program::Instruction& instruction, Step& step);
  void backward_weight(const program::Instruction& instruction, Step& step);
  void send(const program::Instruction& instruction, Step& step);
  void receive(const program::Instruction& instruction, Step& step);
  void drop(const program::Instruction& instruction, Step& step);
  void stash(const program::Instruction& instruction, Step& step);
  void gather(const program::Instruction& instruction, Step& step);
  void gather_for_optimizer(const program::Instruction& instruction, Step& step);
  void gather_squares(const program::Instruction& instruction, Step& step);
  void reduce(const program::Instruction& instruction, Step& step);
  void reduce_over_stages(const program::Instruction& instruction, Step& step);
  void add(const program::Instruction& instruction, Step& step);
  void sketch(const program::Instruction& instruction, Step& step);
  void squares(const program::Instruction& instruction, Step& step);
  void decide(const program::Instruction& instruction, Step& step);
  void prepare(const program::Instruction& instruction, Step& step);
  void exchange(const program::Instruction& instruction, Step& step);
  void merge(const program::Instruction& instruction, Step& step);
  void move(const program::Instruction& instruction, Step& step);
  void start_on_line(const program::Instruction& instruction, WorkPtr work, Step& step);
  void wait_for_lines(const program::Instruction& instruction, Step& step);
  void run_step(Step& step);
  void run_all(Step& step);
  model::Shapes shapes_of(const program::Value& value) const;
  void free(program::ValueId id, int32_t index, Step& step);
  std::string describe(int32_t index) const;
  const std::string& carried_name(const program::Value& value) const;
  void loss(const program::Instruction& instruction, Step& step);
  void show_made(int32_t index, const Step& step) const;
  model::Weights weights_for(const program::Instruction& instruction, int32_t layer, Step& step);
  model::Gradients gradients_for(const program::Instruction& instruction,
                                 int32_t layer,
                                 Step& step);
  const UpdateSettings& settings_of(const Step& step) const;
  int64_t sent_to_replicas() const;  // so far
  int32_t number_of(const program::Instruction& instruction) const;
  const program::Value& value(program::ValueId id) const { return rank_.value(id); }
  program::ValueId find(const std::vector<program::ValueId>& ids,
                        program::ValueKind kind,
                        int32_t layer) const;
  program::ValueId find_unit(const std::vector<program::ValueId>& ids,
                             program::ValueKind kind,
                             int32_t unit) const;
  void run_instructions(size_t first, size_t end, Step& step);
  bool run_recorded(Step& step);  // false: the device has no room for it
  void find_shapes(const StepInput& input, int64_t samples, bool is_training);
  model::Tensors inputs_for(const program::Instruction& instruction,
                            int32_t layer,
                            Step& step) const;
  void take_gradients(const program::Instruction& instruction,
                      int32_t layer,
                      model::Tensors made,
                      Step& step);
  program::ValueId find_element(const std::vector<program::ValueId>& ids,
                                program::ValueKind kind,
                                int32_t element) const;
  model::LayerState state_for(const program::Instruction& forward);
  void require_layer_state() const;
  void give_inputs(Step& step);
  void begin_record();
  void finish_record();
  std::string rank_name() const;  // for messages; of the only rank: nothing
  [[noreturn]] void fail_limit(int32_t index, const char* what) const;

  const program::Program& program_;
  comm::Group* group_;  // nothing: the only rank
  Replicas* replicas_;  // nothing: the rank has none
  const program::RankProgram& rank_;
  std::shared_ptr<Transfers> transfers_;
  const model::Chain& chain_;
  model::Parameters& parameters_;
  std::unique_ptr<device::Stopwatch> stopwatch_;
  bool uses_graph_ = false;
  bool has_run_ = false;
  std::unique_ptr<device::StepGraph> graph_;
  double graph_scale_ = 0;                         // of the loss, in the graph
  std::vector<model::Loss::Result> graph_losses_;  // where the graph leaves them
  device::Inputs inputs_;                          // by number in rank_.given
  std::optional<model::ChainShapes> shapes_;       // of what enters each layer, and the loss
  program::Timeline measured_;
  double record_began_ = 0;
  std::unique_ptr<AllSquares> all_squares_;  // nothing: the rank decides alone
  bool has_unreduced_gradients_ = false;     // each replica has its own, and sketches the norm
  size_t update_at_ = 0;                     // the first instruction of the last update
  std::vector<WorkPtr> collectives_;         // by instruction, of the last run
  std::vector<double> losses_, loss_sums_, loss_scales_;
  std::vector<Updated> outcomes_;
  int64_t sent_bytes_ = 0, replica_bytes_ = 0;
  std::function<void(const Made&)> watcher_;
};

}  // namespace penstock::run
