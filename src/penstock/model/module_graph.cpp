#include "penstock/model/module_graph.h"

#include <set>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "penstock/base/error.h"
#include "penstock/model/layer_error.h"

namespace penstock::model {

at::Tensor compact(at::Tensor tensor) {
  const bool is_compact =
      !tensor.defined() || (tensor.is_contiguous() && tensor.storage().nbytes() == tensor.nbytes());
  return is_compact ? std::move(tensor) : tensor.clone(at::MemoryFormat::Contiguous);
}

at::Tensor own_gradient(at::Tensor gradient) {
  gradient = compact(std::move(gradient));
  return gradient.defined() ? gradient.variable_data() : gradient;
}

InPlaceCheck::InPlaceCheck(const Tensors& given) : given_(given) {
  for (const at::Tensor& tensor : given_) {
    versions_.push_back(tensor._version());
  }
}

void InPlaceCheck::require_unchanged() const {
  for (size_t i = 0; i < given_.size(); ++i) {
    if (given_[i]._version() != versions_[i]) {
      refuse_in_place();
    }
  }
}

void refuse_in_place() {
  throw ConfigError(
      "it changes what it is given in place, which others read, too; work on a copy, or without "
      "inplace");
}

Tensors differentiate(const std::string& layer,
                      const Graph& graph,
                      const Tensors& sources,
                      const Tensors& output_gradient,
                      bool keeps_graph) {
  Tensors outputs, gradients;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    if (graph.outputs[i].requires_grad() && output_gradient[i].defined()) {
      outputs.push_back(graph.outputs[i]);
      gradients.push_back(output_gradient[i]);
    }
  }
  if (sources.empty() || outputs.empty()) {
    return Tensors(sources.size());
  }
  return naming_layer(layer, "backward", graph.inputs, [&] {
    return torch::autograd::grad(outputs,
                                 sources,
                                 gradients,
                                 keeps_graph,
                                 /*create_graph=*/false,
                                 /*allow_unused=*/true);
  });
}

at::Tensor find_stray_parameter(const Tensors& outputs, const Tensors& known) {
  std::set<const c10::TensorImpl*> expected;
  for (const at::Tensor& tensor : known) {
    expected.insert(tensor.unsafeGetTensorImpl());
  }
  std::set<const torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> next;
  const auto visit = [&](torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) {
      next.push_back(node);
    }
  };
  for (const at::Tensor& output : outputs) {
    if (output.requires_grad()) {
      visit(output.grad_fn().get());
    }
  }
  while (!next.empty()) {
    torch::autograd::Node* const node = next.back();
    next.pop_back();
    if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node);
        leaf != nullptr && expected.count(leaf->variable.unsafeGetTensorImpl()) == 0) {
      return leaf->variable;
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      visit(edge.function.get());
    }
  }
  return {};
}

}  // namespace penstock::model
