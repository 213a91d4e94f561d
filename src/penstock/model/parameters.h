// All parameters of a chain in flat buffers: float32 weights, their gradients and, for a lower
// compute precision, a copy of the weights in it. Each parameter is a view. Flat buffers make norm,
// optimizer, sharding and saving single passes. Frozen parameters come last, so that the buffers of
// gradients and state are shorter and offsets into all of them the same.
//
// Where a rank has replicas, they may divide this among themselves (docs/data_parallel.md): of what
// is sharded a rank has only its shards of each unit (units.h), one after the other, in buffers of
// its own.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "penstock/device/device.h"
#include "penstock/model/chain.h"
#include "penstock/model/units.h"

namespace penstock::model {

struct Parameter {
  ParameterSpec spec;
  int64_t offset = 0;  // into the flat buffers, in elements; 64-byte aligned
  // Undefined where the rank does not have it whole.
  at::Tensor weight;    // float32
  at::Tensor gradient;  // float32; undefined where it is frozen
  at::Tensor compute;   // what layers see: the weight itself, or its copy in the compute precision
};

// A stretch of a parameter that this rank has in its charge: all of it, where nothing is sharded.
struct Segment {
  size_t parameter = 0;  // index into Parameters::all()
  int64_t first = 0;     // element of the parameter
  int64_t count = 0;
  int64_t offset = 0;  // into the optimizer's state buffers
};

class Parameters {
 public:
  // Allocates and initialises. The value of an element depends on (seed, name, index) alone.
  Parameters(const Chain& chain,
             at::ScalarType compute_type,
             uint64_t seed,
             const device::Device& device = device::open_cpu());
  Parameters(const Chain& chain,
             const Part& part,
             at::ScalarType compute_type,
             uint64_t seed,
             const device::Device& device,
             const Replication& replication = {});

  // What a flat buffer of these parameters has, padding included.
  static int64_t flat_elements(const std::vector<ParameterSpec>& specs);

  ~Parameters();
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  const std::vector<Parameter>& all() const { return all_; }
  // The first of all(): the others are frozen.
  std::span<const Parameter> learning() const { return std::span(all_).first(num_learning_); }
  const Parameter* find(const std::string& name) const;
  int64_t count() const { return count_; }  // elements, without padding
  at::ScalarType compute_type() const { return compute_type_; }
  const device::Device& device() const { return device_; }

  program::Shard shard() const { return shard_; }
  // Between steps, what layers see is the same at every replica. False: each has its slices alone,
  // and gathers the rest when layers need it.
  bool has_common_weights() const { return shard_ != program::Shard::Parameters; }
  int32_t replicas() const { return replicas_; }
  int32_t replica() const { return replica_; }

  // What this rank's optimizer moves, in the order of all(); and the elements of a state buffer.
  const std::vector<Segment>& segments() const { return segments_; }
  // These and, after them, those of frozen parameters, which have weights alone.
  const std::vector<Segment>& held_segments() const { return held_segments_; }
  int64_t state_elements() const { return state_elements_; }
  // Flat float32 views of a segment's weights, and of its gradients once they are complete.
  at::Tensor own_weights(const Segment& segment) const;
  at::Tensor own_gradients(const Segment& segment) const;

  // Flat buffers, padding included (padding is always zero). Undefined where they are sharded.
  at::Tensor flat_weights() const { return weights_; }
  at::Tensor flat_gradients() const { return gradients_; }
  at::Tensor flat_compute() const { return compute_; }  // the weights themselves in float32

  // For layer i of the chain; i == chain.size() is the loss. Empty for layers of other ranks.
  Weights weights_of(int64_t layer) const { return layer_weights_[static_cast<size_t>(layer)]; }
  Gradients gradients_of(int64_t layer, std::span<const uint8_t> fresh = {}) {
    return {layer_gradients_[static_cast<size_t>(layer)], fresh};
  }

  // What layer i changes beside gradients. changes: this forward is the one that does.
  LayerState state_of(int64_t layer) const {
    return {layer_state_[static_cast<size_t>(layer)].current, {}};
  }
  LayerState state_of(int64_t layer, bool changes) {
    StateTensors& state = layer_state_[static_cast<size_t>(layer)];
    if (!changes) {
      return {state.current, {}};
    }
    return {state.current, state.next, state.changed++};
  }
  // Of all layers that are here: what forwards have changed becomes what the next step begins with.
  void commit_state();
  // What forwards have changed, as bytes, and back from those of all replicas, one after the other
  // (StateSpec::Merge).
  int64_t state_bytes() const;
  void write_state(std::byte* into) const;
  void merge_state(const std::byte* of_replicas, int64_t replicas);
  // By name, of the layers that are here. After a change of `current`: reset_state().
  struct StateTensors {
    std::vector<std::string> names;
    std::vector<StateSpec::Merge> merges;
    Tensors current, next;
    int64_t changed = 0;  // by as many forwards since the last commit
  };
  const std::vector<StateTensors>& states() const { return layer_state_; }
  void reset_state();  // nothing has been changed since the last commit
  bool has_state() const;

  // Of a unit that several stages have: the rank's gradients, flat, without padding; all of them, or
  // those of its segments.
  Tensors shared_gradients(int64_t unit, bool is_whole) const;

  // What layers see of the weights, copied, so that they can be worked with when the weights have
  // moved on; and the bytes of a copy.
  Tensors copy_weights() const;
  static int64_t copy_bytes(const std::vector<ParameterSpec>& specs, at::ScalarType compute_type);
  // Of layer i, in a copy. Views: they hold no memory beside the copy's.
  Tensors weights_in(const Tensors& copy, int64_t layer) const;

  // Units are numbered as in Replication; has_unit: whether layers of this rank use it.
  const plan::Inventory& inventory() const { return inventory_; }
  int64_t num_units() const { return static_cast<int64_t>(inventory_.units.size()); }
  bool has_unit(int64_t unit) const { return stock(unit).is_here; }
  std::vector<int64_t> units_of(int64_t layer) const;  // that it uses
  const plan::UnitLayout& unit_layout(int64_t unit) const { return stock(unit).layout; }
  // Weights sharded: room for a whole unit as layers see it, a tensor for each of its ranges, with
  // this rank's shards filled in; the others' are to come from them. Else the unit where it lies.
  Tensors unit_weights(int64_t unit) const;
  // Of layer i, in units that are whole; `find` gives those. Views; undefined where it gives none.
  Tensors weights_in_units(int64_t layer,
                           const std::function<const Tensors*(int64_t unit)>& find) const;

  // The gradients of a unit, whole, where they are not sharded.
  at::Tensor unit_gradients(int64_t unit) const;
  // Where they are sharded, a backward adds to buckets: one for each unit of its layer, flat, zero
  // at first. Views of them as the layer wants them.
  at::Tensor make_bucket(int64_t unit) const;
  Tensors gradients_in_buckets(int64_t layer,
                               const std::function<const at::Tensor&(int64_t unit)>& find) const;
  // Adds this rank's slices of a bucket that a backward of `layer` has filled to its gradients, or
  // sets them.
  void add_slices(int64_t unit, int64_t layer, const at::Tensor& bucket, bool sets);

  void zero_gradients();
  // Before the first work of an update at a layer, of its parameters in these units (all, where none
  // are named): those that the layer overwrites by itself are its `fresh` ones, the others are
  // zeroed.
  std::vector<uint8_t> begin_gradients(int64_t layer, const std::vector<int32_t>& units = {});
  // Of a layer's parameters: whose fresh gradient it overwrites.
  std::vector<uint8_t> overwritten_gradients(int64_t layer) const;
  // Adds the share of the unit's gradient that `layer` has added to.
  void add_share(int64_t unit, int64_t layer);
  void add_shares();  // all of them
  // The buffers that layers add to, where they are whole: those of shared parameters apart.
  Tensors gradient_buffers() const;
  // Brings what layers see of this rank's segments up to date; to be called whenever weights have
  // changed. What the replicas have moved comes by gathering units.
  void refresh_compute();

 private:
  // Where a unit lies in the flat buffers; only where there are replicas.
  struct PlacedUnit {
    int64_t first = 0;                   // element of the flat order
    int64_t own_first = 0;               // of this rank's shards, one after the other
    std::vector<int64_t> float32_first;  // of a range that stays float32: into float32_
  };
  // Where a parameter lies in its unit.
  struct Home {
    size_t unit = 0;
    size_t range = 0;
    int64_t offset = 0;  // element of the range
  };

  void place(const std::vector<ParameterSpec>& specs);
  void place_units();
  const plan::UnitStock& stock(int64_t unit) const {
    return inventory_.units[static_cast<size_t>(unit)];
  }
  void allocate();
  void find_segments();
  void initialise(uint64_t seed);
  // Buffers of their own hold the shards of what is sharded.
  bool has_own_weights() const { return own_weights_.defined(); }
  bool has_own_gradients() const { return own_gradients_.defined(); }
  at::Tensor own_slice(const at::Tensor& own, size_t unit, size_t range) const;
  at::Tensor range_view(size_t unit, size_t range) const;
  void collect(int64_t layer, const std::vector<ParameterSpec>& specs);

  device::Device device_;
  at::ScalarType compute_type_;
  std::vector<Parameter> all_;
  size_t num_learning_ = 0;
  std::map<std::string, size_t> index_;
  int64_t count_ = 0;
  int64_t elements_ = 0;  // of a flat buffer
  program::Shard shard_ = program::Shard::None;
  int32_t replicas_ = 1;
  int32_t replica_ = 0;
  plan::Inventory inventory_;
  std::vector<PlacedUnit> units_;  // of the inventory; none where there is one replica
  std::vector<Home> homes_;        // of all_; without replicas the unit alone is right
  std::vector<Segment> segments_, held_segments_;
  int64_t state_elements_ = 0;
  at::Tensor weights_, gradients_, compute_;
  at::Tensor float32_;                      // sharded: whole parameters that stay float32
  at::Tensor own_weights_, own_gradients_;  // sharded: the shards
  std::vector<Tensors> layer_weights_, layer_gradients_;
  std::vector<StateTensors> layer_state_;              // by layer of the chain
  std::vector<std::vector<size_t>> layer_parameters_;  // indices into all_
  // CPU: a parameter that several layers share (an embedding's table that is the head's, too) has a
  // gradient for each but the first, added up when all micro-batches are done. That is the order in
  // which ranks that have these layers apart add them.
  struct Share {
    at::Tensor whole, own;  // of sharded gradients, the shards
    int64_t layer = 0;      // whose gradient it is
    size_t parameter = 0;   // index into all_
  };
  std::vector<Share> shares_;
};

}  // namespace penstock::model
