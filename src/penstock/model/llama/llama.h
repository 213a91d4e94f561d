// Llama as a chain: embedding, then for each block an attention and an MLP half-block (each with its
// norm before and its residual around it), then final norm, head and cross-entropy. Parameters are
// named and laid out as in Hugging Face's Llama checkpoints: a matrix is [out, in].
#pragma once

#include <cstdint>
#include <memory>

#include "penstock/kernels/rotary.h"
#include "penstock/model/chain.h"

namespace penstock::model {

struct LlamaShape {
  int64_t layers = 22;
  int64_t width = 2048;
  int64_t heads = 32;
  int64_t kv_heads = 4;   // each serves heads / kv_heads heads of queries
  int64_t hidden = 5632;  // features inside the MLP
  int64_t context = 2048;
  int64_t vocabulary = 32000;
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;
  kernels::RotaryScaling rope_scaling = {};
  bool is_tied = false;  // the head shares the token embedding's table

  int64_t head_width() const { return width / heads; }
  int64_t kv_width() const { return kv_heads * head_width(); }
};

Chain make_llama(const LlamaShape& shape);

// The cosines and sines that all blocks share.
std::shared_ptr<const kernels::RotaryTable> make_rotary(const LlamaShape& shape);

// The parts, one source each: embedding.cpp, attention.cpp, mlp.cpp, head.cpp.
std::unique_ptr<Layer> make_llama_embedding(const LlamaShape& shape);
std::unique_ptr<Layer> make_llama_attention(const LlamaShape& shape,
                                            int64_t block,
                                            std::shared_ptr<const kernels::RotaryTable> rotary);
std::unique_ptr<Layer> make_llama_mlp(const LlamaShape& shape, int64_t block);
std::unique_ptr<Loss> make_llama_head(const LlamaShape& shape);

}  // namespace penstock::model
