// What lies between a module's forward and its backward: autograd's graph, and what it refers to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/model/layer.h"
#include "penstock/model/module_buffers.h"

namespace penstock::model {

struct Graph {
  Tensors inputs;   // the leaves that the backward stops at
  Tensors outputs;  // carry the graph
  std::vector<SavedBuffer> buffers;
};

// The tensor itself, or a copy: as many bytes as it has elements, row-major. So a value holds what it is
// counted as, and looks the same on every rank.
at::Tensor compact(at::Tensor tensor);
// The same of what autograd gives, which may be a view: that holds on to what it is a view of, and then
// it looks as if somebody else had it, too (add_gradient).
at::Tensor own_gradient(at::Tensor gradient);

// A function of a user's must leave the tensors that it is given as they are: others read them, too.
class InPlaceCheck {
 public:
  explicit InPlaceCheck(const Tensors& given);
  void require_unchanged() const;  // ConfigError

 private:
  const Tensors& given_;
  std::vector<uint32_t> versions_;
};
[[noreturn]] void refuse_in_place();

// One gradient for each source, undefined where no output depends on it. `layer` is for messages.
Tensors differentiate(const std::string& layer,
                      const Graph& graph,
                      const Tensors& sources,
                      const Tensors& output_gradient,
                      bool keeps_graph);

// A parameter that the outputs depend on and that is none of `known`: a function has captured it, and
// nobody would move it. Undefined: there is none.
at::Tensor find_stray_parameter(const Tensors& outputs, const Tensors& known);

}  // namespace penstock::model
