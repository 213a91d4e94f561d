#include "penstock/checkpoint/rank_shards.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <ATen/ATen.h>

#include "penstock/base/text.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"

namespace penstock::checkpoint {

namespace {

using model::Segment;

std::string state_name(const model::ParameterSpec& parameter, const optim::StateBuffer& buffer) {
  return cat(parameter.name, ".", buffer.name);
}

std::vector<int64_t> state_shape(const model::ParameterSpec& parameter,
                                 const optim::StateBuffer& buffer) {
  return buffer.is_per_parameter ? std::vector<int64_t>{} : parameter.shape;
}

// All parameters that learn, where they lie in a buffer that has all their elements.
std::vector<Segment> whole_parameters(const model::Parameters& parameters) {
  std::vector<Segment> segments;
  for (size_t i = 0; i < parameters.learning().size(); ++i) {
    const model::Parameter& parameter = parameters.all()[i];
    segments.push_back({i, 0, parameter.spec.count(), parameter.offset});
  }
  return segments;
}

// What a rank has of a buffer, and where in it. Of what the replicas have alike but bring up to
// date each for itself (is_whole), the rank's own part where `is_to_write`.
std::vector<Segment> segments_of(const optim::StateBuffer& buffer,
                                 const model::Parameters& parameters,
                                 bool is_to_write) {
  if (buffer.is_per_replica || (buffer.is_whole && !is_to_write)) {
    return whole_parameters(parameters);
  }
  if (buffer.stretches) {
    return *buffer.stretches;
  }
  std::vector<Segment> segments;
  if (buffer.is_per_parameter) {
    for (size_t i = 0; i < parameters.learning().size(); ++i) {
      segments.push_back({i, 0, 1, static_cast<int64_t>(i)});
    }
    return segments;
  }
  segments = parameters.segments();
  if (buffer.is_whole) {
    for (Segment& segment : segments) {
      segment.offset = parameters.all()[segment.parameter].offset + segment.first;
    }
  }
  return segments;
}

// The part of a segment that this replica writes, where all have it.
Segment own_part(const Segment& segment, const model::Parameters& parameters) {
  const int64_t begin = segment.count * parameters.replica() / parameters.replicas();
  const int64_t end = segment.count * (parameters.replica() + 1) / parameters.replicas();
  return {segment.parameter, segment.first + begin, end - begin, segment.offset + begin};
}

// Whether the replicas have the same elements of a buffer, each all of them.
bool is_replicated(const optim::StateBuffer& buffer, const model::Parameters& parameters) {
  if (buffer.is_per_replica || buffer.stretches) {
    return false;
  }
  return buffer.is_per_parameter || parameters.shard() == program::Shard::None;
}

std::vector<TensorShard> shards_of(const optim::StateBuffer& buffer,
                                   const model::Parameters& parameters,
                                   const std::vector<Segment>& segments) {
  std::vector<TensorShard> shards;
  for (const Segment& segment : segments) {
    const model::ParameterSpec& spec = parameters.all()[segment.parameter].spec;
    shards.push_back({state_name(spec, buffer),
                      state_shape(spec, buffer),
                      segment.first,
                      buffer.flat.narrow(0, segment.offset, segment.count)});
  }
  return shards;
}

void move_to_end(std::vector<TensorShard>& all, std::vector<TensorShard>&& more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

std::vector<TensorSpec> weight_specs(const std::vector<model::ParameterSpec>& parameters) {
  std::vector<TensorSpec> specs;
  for (const model::ParameterSpec& parameter : parameters) {
    specs.push_back({parameter.name, Dtype::F32, parameter.shape});
  }
  return specs;
}

std::vector<TensorSpec> state_specs(const std::vector<model::ParameterSpec>& parameters,
                                    const optim::Optimizer& optimizer,
                                    int32_t replicas) {
  std::vector<TensorSpec> specs;
  for (const model::ParameterSpec& parameter : parameters) {
    if (parameter.is_frozen) {
      continue;
    }
    for (const optim::StateBuffer& buffer : optimizer.state()) {
      const std::string name = state_name(parameter, buffer);
      const std::vector<int64_t> shape = state_shape(parameter, buffer);
      if (!buffer.is_per_replica) {
        specs.push_back({name, Dtype::F32, shape});
        continue;
      }
      for (int32_t replica = 0; replica < replicas; ++replica) {
        specs.push_back({replica_name(name, replica), Dtype::F32, shape});
      }
    }
  }
  return specs;
}

bool has_replica_state(const optim::Optimizer& optimizer) {
  return std::any_of(optimizer.state().begin(),
                     optimizer.state().end(),
                     [](const optim::StateBuffer& buffer) { return buffer.is_per_replica; });
}

std::vector<TensorShard> weight_shards(const model::Parameters& parameters) {
  std::vector<TensorShard> shards;
  for (const Segment& segment : parameters.held_segments()) {
    const model::ParameterSpec& spec = parameters.all()[segment.parameter].spec;
    shards.push_back({spec.name, spec.shape, segment.first, parameters.own_weights(segment)});
  }
  return shards;
}

std::vector<TensorShard> state_shards(const model::Parameters& parameters,
                                      const optim::Optimizer& optimizer) {
  std::vector<TensorShard> shards;
  for (const optim::StateBuffer& buffer : optimizer.state()) {
    if (!buffer.is_per_replica) {
      move_to_end(shards, shards_of(buffer, parameters, segments_of(buffer, parameters, false)));
    }
  }
  return shards;
}

std::vector<TensorShard> replica_state_shards(const model::Parameters& parameters,
                                              const optim::Optimizer& optimizer) {
  std::vector<TensorShard> shards;
  for (const optim::StateBuffer& buffer : optimizer.state()) {
    if (buffer.is_per_replica) {
      move_to_end(shards, shards_of(buffer, parameters, segments_of(buffer, parameters, false)));
    }
  }
  return shards;
}

std::vector<TensorShard> weights_to_write(const model::Parameters& parameters,
                                          const std::set<std::string>& left_out) {
  std::vector<TensorShard> shards;
  for (const Segment& segment : parameters.held_segments()) {
    const model::ParameterSpec& spec = parameters.all()[segment.parameter].spec;
    if (left_out.contains(spec.name)) {
      continue;
    }
    const bool has_all = parameters.shard() == program::Shard::None;
    const Segment part = has_all ? own_part(segment, parameters) : segment;
    shards.push_back(
        {spec.name,
         spec.shape,
         part.first,
         parameters.own_weights(segment).narrow(0, part.first - segment.first, part.count)});
  }
  return shards;
}

std::vector<TensorShard> state_to_write(const model::Parameters& parameters,
                                        const optim::Optimizer& optimizer,
                                        const std::set<std::string>& left_out) {
  std::vector<TensorShard> all;
  for (const optim::StateBuffer& buffer : optimizer.state()) {
    std::vector<Segment> segments = segments_of(buffer, parameters, true);
    std::erase_if(segments, [&](const Segment& segment) {
      return left_out.contains(parameters.all()[segment.parameter].spec.name);
    });
    if (is_replicated(buffer, parameters)) {
      for (Segment& segment : segments) {
        segment = own_part(segment, parameters);
      }
    }
    std::vector<TensorShard> shards = shards_of(buffer, parameters, segments);
    if (buffer.is_per_replica) {
      name_by_replica(shards, parameters.replica());
    }
    move_to_end(all, std::move(shards));
  }
  return all;
}

std::vector<TensorSpec> layer_state_specs(const model::Chain& chain) {
  std::vector<TensorSpec> specs;
  for (int64_t i = 0; i < chain.size(); ++i) {
    for (const model::StateSpec& state : chain.layer(i).state()) {
      specs.push_back({state.name, dtype_of(state.type), state.shape});
    }
  }
  return specs;
}

std::vector<TensorShard> layer_state_shards(const model::Parameters& parameters) {
  std::vector<TensorShard> shards;
  for (const model::Parameters::StateTensors& state : parameters.states()) {
    for (size_t i = 0; i < state.names.size(); ++i) {
      shards.push_back({state.names[i],
                        state.current[i].sizes().vec(),
                        /*first=*/0,
                        state.current[i].view({-1})});
    }
  }
  return shards;
}

}  // namespace penstock::checkpoint
