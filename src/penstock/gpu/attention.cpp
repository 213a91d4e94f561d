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

// Every tensor is [samples, heads, tokens, head_width] to cuDNN; strides say how it lies. Of queries,
// keys and values a token has all side by side.
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

  TensorHandle packed_input(Name name, int64_t heads) {
    return input(name, heads, shape_.qkv_width());
  }
  TensorHandle values_input(Name name) { return input(name, shape_.heads, values_width()); }
  void packed_output(const TensorHandle& tensor, Name name, int64_t heads) const {
    output(tensor, name, heads, shape_.qkv_width());
  }
  void values_output(const TensorHandle& tensor, Name name) const {
    output(tensor, name, shape_.heads, values_width());
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
  int64_t values_width() const { return shape_.heads * shape_.head_width; }
  std::vector<int64_t> sizes(int64_t heads) const {
    return {shape_.samples, heads, shape_.tokens, shape_.head_width};
  }
  // `width` features per token.
  std::vector<int64_t> strides(int64_t width) const {
    return {shape_.tokens * width, shape_.head_width, width, 1};
  }
  TensorHandle input(Name name, int64_t heads, int64_t width) {
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_uid(name)
                              .set_dim(sizes(heads))
                              .set_stride(strides(width)));
  }
  void output(const TensorHandle& tensor, Name name, int64_t heads, int64_t width) const {
    tensor->set_output(true).set_uid(name).set_dim(sizes(heads)).set_stride(strides(width));
  }

  AttentionShape shape_;
  std::shared_ptr<fe::graph::Graph> graph_;
};

std::shared_ptr<fe::graph::Graph> build_forward(const AttentionShape& shape, cudnnHandle_t handle) {
  Builder builder(shape);
  const auto options =
      fe::graph::SDPA_attributes().set_generate_stats(true).set_causal_mask(true).set_attn_scale(
          builder.scale());
  const auto [out, statistics] =
      builder.graph().sdpa(builder.packed_input(kQuery, shape.heads),
                           builder.packed_input(kKey, shape.num_kv_heads()),
                           builder.packed_input(kValue, shape.num_kv_heads()),
                           options);
  builder.values_output(out, kOut);
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
  const auto [query, key, value] =
      builder.graph().sdpa_backward(builder.packed_input(kQuery, shape.heads),
                                    builder.packed_input(kKey, shape.num_kv_heads()),
                                    builder.packed_input(kValue, shape.num_kv_heads()),
                                    builder.values_input(kOut),
                                    builder.values_input(kOutGradient),
                                    statistics,
                                    options);
  builder.packed_output(query, kQueryGradient, shape.heads);
  builder.packed_output(key, kKeyGradient, shape.num_kv_heads());
  builder.packed_output(value, kValueGradient, shape.num_kv_heads());
  return builder.build(handle);
}

struct Built {
  std::shared_ptr<fe::graph::Graph> graph;
  int64_t workspace_bytes = 0;
};

// Where the queries (0), keys (1) or values (2) of the first token begin.
void* part_of(const void* qkv, const AttentionShape& shape, int64_t part) {
  const int64_t heads_before = part == 0 ? 0 : shape.heads + (part - 1) * shape.num_kv_heads();
  return static_cast<char*>(const_cast<void*>(qkv)) +
         heads_before * shape.head_width * size_of(shape.type);
}

}  // namespace

bool can_attend(const AttentionShape& shape) {
  return shape.type != Type::Float32 && shape.tokens > 1 && shape.head_width % 8 == 0 &&
         shape.head_width <= 128 && shape.heads % shape.num_kv_heads() == 0;
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
  impl_->execute(impl_->forward(shape),
                 {{kQuery, part_of(work.qkv, shape, 0)},
                  {kKey, part_of(work.qkv, shape, 1)},
                  {kValue, part_of(work.qkv, shape, 2)},
                  {kOut, work.values},
                  {kStatistics, work.statistics}},
                 work.workspace,
                 stream);
}

void Attention::backward(const AttentionShape& shape, const Backward& work, Stream stream) {
  impl_->execute(impl_->backward(shape),
                 {{kQuery, part_of(work.qkv, shape, 0)},
                  {kKey, part_of(work.qkv, shape, 1)},
                  {kValue, part_of(work.qkv, shape, 2)},
                  {kOut, const_cast<void*>(work.values)},
                  {kOutGradient, const_cast<void*>(work.values_gradient)},
                  {kStatistics, const_cast<float*>(work.statistics)},
                  {kQueryGradient, part_of(work.qkv_gradient, shape, 0)},
                  {kKeyGradient, part_of(work.qkv_gradient, shape, 1)},
                  {kValueGradient, part_of(work.qkv_gradient, shape, 2)}},
                 work.workspace,
                 stream);
}

}  // namespace penstock::gpu
