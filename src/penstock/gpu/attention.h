// Causal self-attention by cuDNN's fused kernels: the [tokens, tokens] matrix never exists;
// backward needs one number per row beside what forward read and wrote. Queries, keys and values
// lie side by side as the projection leaves them, heads of queries, then those of keys, then those of
// values, [samples, tokens, heads + 2 kv_heads, head_width], and so do their gradients: nothing is
// copied. Where heads of keys and values are fewer than those of queries, each serves as many
// neighbouring heads of queries.
#pragma once

#include <cstdint>
#include <memory>

#include "penstock/gpu/types.h"

namespace penstock::gpu {

struct AttentionShape {
  Type type = Type::BFloat16;  // BFloat16 or Float16
  int64_t samples = 0, tokens = 0, heads = 0, head_width = 0;
  // Backward gives the same bits every time, at some cost.
  bool is_deterministic = false;
  int64_t kv_heads = 0;  // divides heads; 0: as many

  int64_t num_kv_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  // Features of a token, of queries, keys and values together.
  int64_t qkv_width() const { return (heads + 2 * num_kv_heads()) * head_width; }

  auto operator<=>(const AttentionShape&) const = default;
};

// cuDNN's kernels take these; other shapes need another way.
bool can_attend(const AttentionShape& shape);

class Attention {
 public:
  Attention();
  ~Attention();

  // The first call for a shape builds its kernel, which takes a while.
  int64_t forward_workspace_bytes(const AttentionShape& shape);
  int64_t backward_workspace_bytes(const AttentionShape& shape);

  struct Forward {
    const void* qkv;    // [samples, tokens, heads + 2 kv_heads, head_width]
    void* values;       // [samples, tokens, heads, head_width]
    float* statistics;  // [samples, heads, tokens]
    void* workspace;
  };
  void forward(const AttentionShape& shape, const Forward& work, Stream stream);

  struct Backward {
    const void* qkv;
    const void* values;
    const void* values_gradient;  // as values
    const float* statistics;
    void* qkv_gradient;  // as qkv
    void* workspace;
  };
  void backward(const AttentionShape& shape, const Backward& work, Stream stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::gpu
