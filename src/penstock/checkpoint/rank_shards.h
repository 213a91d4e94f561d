// A rank's shards of the tensors that a checkpoint holds, and the tensors themselves.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "penstock/checkpoint/safetensors_writer.h"
#include "penstock/checkpoint/tensor_shards.h"
#include "penstock/model/chain.h"

namespace penstock::model {
class Parameters;
}
namespace penstock::optim {
class Optimizer;
}

namespace penstock::checkpoint {

// The tensors of model.safetensors and of optimizer.safetensors, for the parameters of the whole
// model. State is called "<parameter>.<buffer>" or, where each replica has its own,
// "<parameter>.<buffer>.<replica>"; frozen parameters have none.
std::vector<TensorSpec> weight_specs(const std::vector<model::ParameterSpec>& parameters);
std::vector<TensorSpec> state_specs(const std::vector<model::ParameterSpec>& parameters,
                                    const optim::Optimizer& optimizer,
                                    int32_t replicas);

// Whether the optimizer has state that each replica has its own values of.
bool has_replica_state(const optim::Optimizer& optimizer);

// Those of layers.safetensors: the state of all layers of the chain.
std::vector<TensorSpec> layer_state_specs(const model::Chain& chain);
// Of the layers that a rank has, whole.
std::vector<TensorShard> layer_state_shards(const model::Parameters& parameters);

// What a rank is to read.
std::vector<TensorShard> weight_shards(const model::Parameters& parameters);
std::vector<TensorShard> state_shards(const model::Parameters& parameters,
                                      const optim::Optimizer& optimizer);
// Of state that each replica has its own values of: the tensor is called "<parameter>.<buffer>",
// and replica_name() gives that of one replica.
std::vector<TensorShard> replica_state_shards(const model::Parameters& parameters,
                                              const optim::Optimizer& optimizer);

// What a rank is to write. All ranks together write each element once: replicas that have the same
// elements share them, and of a parameter that several ranks of a pipeline have one writes.
// `left_out`: parameters that another rank of the pipeline writes.
std::vector<TensorShard> weights_to_write(const model::Parameters& parameters,
                                          const std::set<std::string>& left_out);
std::vector<TensorShard> state_to_write(const model::Parameters& parameters,
                                        const optim::Optimizer& optimizer,
                                        const std::set<std::string>& left_out);

}  // namespace penstock::checkpoint
