// The model on one device, in the order in which the ranks of a plan add up gradients: what they are
// compared with.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "penstock/config/recipe.h"
#include "penstock/memory/account.h"
#include "penstock/model/chain.h"
#include "penstock/program/program.h"
#include "penstock/run/plain_step.h"
#include "penstock/train/check_side.h"
#include "penstock/train/setup.h"

namespace penstock::train {

std::vector<uint32_t> digest_each(const model::Tensors& tensors);

// What one device made in a step. `order` is its place among everything that is compared.
// Micro-batches are numbered over all replicas: those of the first come first.
struct Expected {
  struct Value {
    size_t order = 0;
    std::vector<uint32_t> digests;
  };
  // Flat, on the CPU.
  struct Parameter {
    size_t gradient_order = 0, weight_order = 0;
    at::Tensor gradient, weight, compute;
  };

  // Of a layer, as an update leaves it.
  struct State {
    size_t order = 0;
    at::Tensor tensor;
  };

  std::map<ValueKey, Value> values;
  std::map<std::string, Parameter> parameters;
  std::map<std::string, State> states;
  std::vector<double> loss_sums;  // by micro-batch
  double loss = 0;
  double gradient_norm = 0;  // as the gradients are compared
  double norm = 0;           // as the optimizer has it
  size_t loss_order = 0, norm_order = 0;
};

// Why one device cannot add up gradients as the ranks do, and how far apart sums may be, as a part of
// the norm of all gradients; nothing where it can.
struct Reordering {
  std::string why;
  double allowed = 0;
};
std::optional<Reordering> find_reordering(const config::Recipe& recipe,
                                          const program::Program& planned);

class Reference {
 public:
  // `kept`: of one rank that keeps everything, with the micro-batches of one replica.
  Reference(const config::Recipe& recipe,
            const model::Chain& chain,
            const program::Program& planned,
            const program::Program& kept,
            const device::Device& device);

  // Forward and backward of a step.
  void accumulate(const model::Fields& batch, int64_t step);
  // The update, by the gradients that are in what is expected.
  void update(int64_t step);

  Expected& expected() { return expected_; }

 private:
  void add_value(const ValueKey& key, const model::Tensors& tensors);

  const config::Recipe& recipe_;
  const model::Chain& chain_;
  const run::ReplicaOrder order_;
  memory::Account& account_;
  std::optional<Side> side_;
  Expected expected_;
  size_t next_ = 0;
};

}  // namespace penstock::train
