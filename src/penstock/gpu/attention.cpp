#include "penstock/gpu/attention.h"

#include <cmath>
#include <map>
#include <unordered_map>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "penstock/gpu/check.h"

namespace penstock::gpu {

namespace {

namespace fe = cudnn_frontend;
using TensorHandle = std::shared_ptr<fe::graph::Tensor_attributes>;

enum Name : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kStatistics,
  kOutGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient
};

void check_cudnn(cudnnStatus_t status, const char* call, int line) {
  if (status != CUDNN_STATUS_SUCCESS) {
    fail_library(call, cudnnGetErrorString(status), __FILE__, line);
  }
}

void check_graph(fe::error_t error, const char* call, int line) {
  if (error.is_bad()) {
    fail_library(call, error.get_message(), __FILE__, line);
  }
}

#define PENSTOCK_CUDNN(call) check_cudnn((call), #call, __LINE__)
#define PENSTOCK_GRAPH(call) check_graph((call), #call, __LINE__)

// Every tensor is [samples, heads, tokens, head_width] to cuDNN; strides say how it lies.
class Builder {
 public:
  explicit Builder(const AttentionShape& shape)
      : shape_(shape), graph_(std::make_shared<fe::graph::Graph>()) {
    graph_
        ->set_io_data_type(shape.type == Type::BFloat16 ? fe::DataType_t::BFLOAT16
                                                        : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  std::vector<int64_t> sizes() const {
    return {shape_.samples, shape_.heads, shape_.tokens, shape_.head_width};
  }
  // `parts` matrices of [heads, head_width] per token.
  std::vector<int64_t> strides(int64_t parts) const {
    const int64_t width = parts * shape_.heads * shape_.head_width;
    return {shape_.tokens * width, shape_.head_width, width, 1};
  }

  TensorHandle input(Name name, int64_t parts) {
    return graph_->tensor(
        fe::graph::Tensor_attributes().set_uid(name).set_dim(sizes()).set_stride(strides(parts)));
  }
  void output(const TensorHandle& tensor, Name name, int64_t parts) const {
    tensor->set_output(true).set_uid(name).set_dim(sizes()).set_stride(strides(parts));
  }
  std::vector<int64_t> statistics_sizes() const {
    return {shape_.samples, shape_.heads, shape_.tokens, 1};
  }
  std::vector<int64_t> statistics_strides() const {
    return {shape_.heads * shape_.tokens, shape_.tokens, 1, 1};
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_width)); }

  fe::graph::Graph& graph() { return *graph_; }
  std::shared_ptr<fe::graph::Graph> build(cudnnHandle_t handle) {
    PENSTOCK_GRAPH(graph_->build(handle, {fe::HeurMode_t::A}));
    return graph_;
  }

 private:
  AttentionShape shape_;
  std::shared_ptr<fe::graph::Graph> graph_;
};

std::shared_ptr<fe::graph::Graph> build_forward(const AttentionShape& shape, cudnnHandle_t handle) {
  Builder builder(shape);
  const auto options =
      fe::graph::SDPA_attributes().set_generate_stats(true).set_causal_mask(true).set_attn_scale(
          builder.scale());
  const auto [out, statistics] = builder.graph().sdpa(
      builder.input(kQuery, 3), builder.input(kKey, 3), builder.input(kValue, 3), options);
  builder.output(out, kOut, 1);
  statistics->set_output(true)
      .set_uid(kStatistics)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim(builder.statistics_sizes())
      .set_stride(builder.statistics_strides());
  return builder.build(handle);
}

std::shared_ptr<fe::graph::Graph> build_backward(const AttentionShape& shape,
                                                 cudnnHandle_t handle) {
  Builder builder(shape);
  const auto options = fe::graph::SDPA_backward_attributes()
                           .set_causal_mask(true)
                           .set_attn_scale(builder.scale())
                           .set_deterministic_algorithm(shape.is_deterministic);
  const TensorHandle statistics =
      builder.graph().tensor(fe::graph::Tensor_attributes()
                                 .set_uid(kStatistics)
                                 .set_data_type(fe::DataType_t::FLOAT)
                                 .set_dim(builder.statistics_sizes())
                                 .set_stride(builder.statistics_strides()));
  const auto [query, key, value] = builder.graph().sdpa_backward(builder.input(kQuery, 3),
                                                                 builder.input(kKey, 3),
                                                                 builder.input(kValue, 3),
                                                                 builder.input(kOut, 1),
                                                                 builder.input(kOutGradient, 1),
                                                                 statistics,
                                                                 options);
  builder.output(query, kQueryGradient, 3);
  builder.output(key, kKeyGradient, 3);
  builder.output(value, kValueGradient, 3);
  return builder.build(handle);
}

struct Built {
  std::shared_ptr<fe::graph::Graph> graph;
  int64_t workspace_bytes = 0;
};

void* offset(const void* base, int64_t elements, Type type) {
  return static_cast<char*>(const_cast<void*>(base)) + elements * size_of(type);
}

}  // namespace

bool can_attend(const AttentionShape& shape) {
  return shape.type != Type::Float32 && shape.tokens > 1 && shape.head_width % 8 == 0 &&
         shape.head_width <= 128;
}

struct Attention::Impl {
  Impl() { PENSTOCK_CUDNN(cudnnCreate(&handle)); }
  ~Impl() { cudnnDestroy(handle); }

  template <typename Build>
  const Built& find(std::map<AttentionShape, Built>& known,
                    const AttentionShape& shape,
                    const Build& build) {
    const auto found = known.find(shape);
    if (found != known.end()) {
      return found->second;
    }
    PENSTOCK_CHECK(can_attend(shape), "attention of an unsupported shape");
    Built built{build(shape, handle)};
    PENSTOCK_GRAPH(built.graph->get_workspace_size(built.workspace_bytes));
    return known.emplace(shape, std::move(built)).first->second;
  }
  const Built& forward(const AttentionShape& shape) { return find(forwards, shape, build_forward); }
  const Built& backward(const AttentionShape& shape) {
    return find(backwards, shape, build_backward);
  }

  void execute(const Built& built,
               std::unordered_map<int64_t, void*> tensors,
               void* workspace,
               Stream stream) const {
    PENSTOCK_CUDNN(cudnnSetStream(handle, stream));
    PENSTOCK_GRAPH(built.graph->execute(handle, tensors, workspace));
  }

  cudnnHandle_t handle = nullptr;
  std::map<AttentionShape, Built> forwards, backwards;
};

Attention::Attention() : impl_(std::make_unique<Impl>()) {}
Attention::~Attention() = default;

int64_t Attention::forward_workspace_bytes(const AttentionShape& shape) {
  return impl_->forward(shape).workspace_bytes;
}

int64_t Attention::backward_workspace_bytes(const AttentionShape& shape) {
  return impl_->backward(shape).workspace_bytes;
}

void Attention::forward(const AttentionShape& shape, const Forward& work, Stream stream) {
  const int64_t width = shape.heads * shape.head_width;
  impl_->execute(impl_->forward(shape),
                 {{kQuery, offset(work.qkv, 0, shape.type)},
                  {kKey, offset(work.qkv, width, shape.type)},
                  {kValue, offset(work.qkv, 2 * width, shape.type)},
                  {kOut, work.values},
                  {kStatistics, work.statistics}},
                 work.workspace,
                 stream);
}

void Attention::backward(const AttentionShape& shape, const Backward& work, Stream stream) {
  const int64_t width = shape.heads * shape.head_width;
  impl_->execute(impl_->backward(shape),
                 {{kQuery, offset(work.qkv, 0, shape.type)},
                  {kKey, offset(work.qkv, width, shape.type)},
                  {kValue, offset(work.qkv, 2 * width, shape.type)},
                  {kOut, const_cast<void*>(work.values)},
                  {kOutGradient, const_cast<void*>(work.values_gradient)},
                  {kStatistics, const_cast<float*>(work.statistics)},
                  {kQueryGradient, offset(work.qkv_gradient, 0, shape.type)},
                  {kKeyGradient, offset(work.qkv_gradient, width, shape.type)},
                  {kValueGradient, offset(work.qkv_gradient, 2 * width, shape.type)}},
                 work.workspace,
                 stream);
}

}  // namespace penstock::gpu
