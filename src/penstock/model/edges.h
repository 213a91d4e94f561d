// What travels between the layers of a chain. Every tensor has a name: layers say which they read and
// which they make, so a mask or an encoder's output need not be handed through the layers in between.
// See docs/layers.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::model {

// Names of what a layer takes and returns, in the order of its tensors. Where a name is made again,
// those who read it later get the new one.
struct Names {
  std::vector<std::string> reads = {};  // none: what the layer before makes; of the first: "inputs"
  std::vector<std::string> writes = {};  // none: "x"
};

// Where one of a layer's tensors is: in the tuple of the edge, or, where more than the next layer reads
// it, by itself.
struct Place {
  int32_t position = -1;  // in the tuple
  int32_t carried = -1;   // index into Edges::carried

  bool operator==(const Place&) const = default;
};

// A tensor that other layers than the next read, or several.
struct CarriedName {
  std::string name;
  int32_t born = -1;             // the layer that makes it; -1: a field of the batch
  int32_t output = -1;           // which of that layer's outputs
  std::vector<int32_t> readers;  // ascending; the number of layers: the loss
};

// Tuples are numbered by the layer that they enter; the last enters the loss.
struct Edges {
  std::vector<std::vector<Place>> inputs;   // of each layer, then of the loss
  std::vector<std::vector<Place>> outputs;  // of each layer
  std::vector<CarriedName> carried;
  std::vector<std::string> first_fields;   // of the batch, which make the first tuple
  std::vector<std::string> target_fields;  // of the batch, for the loss
  std::vector<int32_t> widths;             // tensors in each tuple

  // Of the batch that layers read, with those of `layers` alone: what a rank has to load. has_loss: and
  // what the loss reads.
  std::vector<std::string> fields_of(const std::vector<int64_t>& layers, bool has_loss) const;
  // Whether somebody waits for the gradient of a layer's input; fields of the batch have none.
  bool has_gradient(int64_t layer, size_t input) const;
};

// One entry for each layer, then the loss's, which writes nothing. ConfigError where a layer reads what
// is not there by then (anything that no layer has made is taken for a field of the batch, but what is
// made later is not), or makes what nobody reads; `layer_names` are for these messages.
Edges make_edges(const std::vector<Names>& names,
                 const std::vector<std::string>& targets,
                 const std::vector<std::string>& layer_names);

}  // namespace penstock::model
