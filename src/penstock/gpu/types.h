// What the GPU code shares: element types and streams, without any header of CUDA or LibTorch.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace penstock::gpu {

using Stream = CUstream_st*;

enum class Type { Float32, BFloat16, Float16 };

inline int64_t size_of(Type type) {
  return type == Type::Float32 ? 4 : 2;
}

}  // namespace penstock::gpu
