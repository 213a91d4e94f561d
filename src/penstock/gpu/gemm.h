// GEMMs by cuBLASLt, with what can be fused into them: bias, residual, GELU and its
// derivative, accumulation in float32. For each shape the library proposes several algorithms; the
// first is rarely the fastest, so they are timed once and the best is kept. docs/gpu.md has
// figures.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "penstock/gpu/types.h"

namespace penstock::gpu {

// D = a b (+ addend) (+ bias), row-major: D is [rows, columns], a is [rows, depth] or, transposed,
// stored as [depth, rows]; b is [depth, columns] or, transposed, stored as [columns, depth].
struct Gemm {
  int64_t rows = 0, columns = 0, depth = 0;
  Type type = Type::BFloat16;  // of a and b, of bias and auxiliary
  const void* a = nullptr;
  const void* b = nullptr;
  bool is_a_transposed = false;
  bool is_b_transposed = false;
  void* d = nullptr;
  Type d_type = Type::BFloat16;
  // Elements between rows of each as it is stored; 0: dense.
  int64_t a_stride = 0, b_stride = 0, d_stride = 0;
  const void* addend = nullptr;  // of d's type and stride; may be d itself, which accumulates
  const void* bias = nullptr;    // [columns]

  // Gelu: D = gelu(a b + bias), and a b + bias goes to `auxiliary` if there is one. GeluBackward:
  // D = (a b) times the derivative at `auxiliary`. [rows, columns], dense.
  enum class Epilogue { None, Gelu, GeluBackward } epilogue = Epilogue::None;
  void* auxiliary = nullptr;

  double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(columns) *
           static_cast<double>(depth);
  }
};

// What was chosen for a shape, for reports.
struct GemmChoice {
  std::string shape;
  int candidates = 0;
  double first_s = 0;  // of the library's first proposal; 0: not timed
  double best_s = 0;
  double tflops = 0;
};

class Gemms {
 public:
  static constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;

  // The workspace has kWorkspaceBytes on the current device and outlives this. Calls on one Gemms
  // must be ordered by one stream: they share it. GEMMs of float32 are rounded to TF32 where
  // `allows_tf32`.
  Gemms(void* workspace, bool allows_tf32);
  ~Gemms();

  // While on, a shape seen for the first time is timed on the operands at hand, several times over:
  // D ends up with the right value unless it accumulates. Off (the start): the first proposal.
  void set_timing(bool is_on);

  void run(const Gemm& gemm, Stream stream);

  std::vector<GemmChoice> choices() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::gpu
