// GPT-2 as a chain: embedding, then for each block an attention and an MLP half-block (each with
// its norm before and its residual around it), then final norm, head and cross-entropy.
// Parameters are named and laid out as in Hugging Face's GPT-2 checkpoints.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "penstock/model/chain.h"

namespace penstock::model {

struct Gpt2Shape {
  int64_t layers = 12;
  int64_t width = 768;
  int64_t heads = 12;
  int64_t context = 1024;
  int64_t vocabulary = 50257;
  double dropout = 0;
  bool is_tied = true;  // the head shares the token embedding's table
};

Chain make_gpt2(const Gpt2Shape& shape);

// The pieces, one source each: embedding.cpp, attention.cpp, mlp.cpp, head.cpp.
std::unique_ptr<Layer> make_gpt2_embedding(const Gpt2Shape& shape);
std::unique_ptr<Layer> make_gpt2_attention(const Gpt2Shape& shape, int64_t block);
std::unique_ptr<Layer> make_gpt2_mlp(const Gpt2Shape& shape, int64_t block);
std::unique_ptr<Loss> make_gpt2_head(const Gpt2Shape& shape);

}  // namespace penstock::model
