#include "penstock/gpu/gemm.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "penstock/gpu/check.h"
#include "penstock/gpu/events.h"

namespace penstock::gpu {

namespace {

void check_blas(cublasStatus_t status, const char* call, int line) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    fail_library(call, cublasLtGetStatusName(status), __FILE__, line);
  }
}

#define PENSTOCK_BLAS(call) check_blas((call), #call, __LINE__)

cudaDataType_t data_type(Type type) {
  switch (type) {
    case Type::Float32:
      return CUDA_R_32F;
    case Type::BFloat16:
      return CUDA_R_16BF;
    case Type::Float16:
      return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

// Everything that an algorithm may depend on. Pointers count by their alignment.
using Key = std::tuple<std::array<int64_t, 6>, std::array<int, 9>>;

int alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  int alignment = 1;
  while (alignment < 256 && address % static_cast<uintptr_t>(2 * alignment) == 0) {
    alignment *= 2;
  }
  return alignment;
}

struct Strides {
  int64_t a, b, d;
};

Strides strides_of(const Gemm& gemm) {
  const auto stored = [](int64_t given, int64_t dense) { return given == 0 ? dense : given; };
  return {stored(gemm.a_stride, gemm.is_a_transposed ? gemm.rows : gemm.depth),
          stored(gemm.b_stride, gemm.is_b_transposed ? gemm.depth : gemm.columns),
          stored(gemm.d_stride, gemm.columns)};
}

Key key_of(const Gemm& gemm) {
  const Strides strides = strides_of(gemm);
  const int addend = gemm.addend == nullptr ? 0 : gemm.addend == gemm.d ? 1 : 2;
  // Two that differ only beyond 16 bytes get the same algorithm from the library.
  const auto alignment = [](const void* pointer) {
    return pointer == nullptr ? 16 : std::min(16, alignment_of(pointer));
  };
  const int least = std::min({alignment(gemm.a),
                              alignment(gemm.b),
                              alignment(gemm.d),
                              alignment(gemm.addend),
                              alignment(gemm.bias),
                              alignment(gemm.auxiliary)});
  return {{gemm.rows, gemm.columns, gemm.depth, strides.a, strides.b, strides.d},
          {static_cast<int>(gemm.type),
           static_cast<int>(gemm.d_type),
           gemm.is_a_transposed,
           gemm.is_b_transposed,
           addend,
           gemm.bias != nullptr,
           static_cast<int>(gemm.epilogue),
           least,
           gemm.auxiliary != nullptr}};
}

class Layout {
 public:
  // cuBLAS counts by columns: our [rows, columns] with a stride is its [columns, rows].
  Layout(Type type, int64_t rows, int64_t columns, int64_t stride) {
    PENSTOCK_BLAS(cublasLtMatrixLayoutCreate(&layout_,
                                             data_type(type),
                                             static_cast<uint64_t>(columns),
                                             static_cast<uint64_t>(rows),
                                             stride));
  }
  ~Layout() {
    if (layout_ != nullptr) {
      cublasLtMatrixLayoutDestroy(layout_);
    }
  }
  Layout(Layout&& other) noexcept : layout_(std::exchange(other.layout_, nullptr)) {}
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

class Description {
 public:
  Description(const Gemm& gemm, bool allows_tf32) {
    const bool is_tf32 = gemm.type == Type::Float32 && allows_tf32;
    PENSTOCK_BLAS(cublasLtMatmulDescCreate(
        &description_, is_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    // In cuBLAS's columns the GEMM is Dᵀ = bᵀ aᵀ, so b comes first.
    set(CUBLASLT_MATMUL_DESC_TRANSA, gemm.is_b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, gemm.is_a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(gemm));
    if (gemm.auxiliary != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, gemm.columns);
    }
    set_pointers(gemm);
  }
  ~Description() {
    if (description_ != nullptr) {
      cublasLtMatmulDescDestroy(description_);
    }
  }
  Description(Description&& other) noexcept
      : description_(std::exchange(other.description_, nullptr)) {}
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;

  void set_pointers(const Gemm& gemm) {
    if (gemm.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.bias);
    }
    if (gemm.auxiliary != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, gemm.auxiliary);
    }
  }

  cublasLtMatmulDesc_t get() const { return description_; }

 private:
  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    PENSTOCK_BLAS(cublasLtMatmulDescSetAttribute(description_, attribute, &value, sizeof(value)));
  }

  static cublasLtEpilogue_t epilogue_of(const Gemm& gemm) {
    switch (gemm.epilogue) {
      case Gemm::Epilogue::Gelu:
        if (gemm.auxiliary == nullptr) {
          return gemm.bias == nullptr ? CUBLASLT_EPILOGUE_GELU : CUBLASLT_EPILOGUE_GELU_BIAS;
        }
        return gemm.bias == nullptr ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
      case Gemm::Epilogue::GeluBackward:
        return CUBLASLT_EPILOGUE_DGELU;
      case Gemm::Epilogue::None:
        break;
    }
    return gemm.bias == nullptr ? CUBLASLT_EPILOGUE_DEFAULT : CUBLASLT_EPILOGUE_BIAS;
  }

  cublasLtMatmulDesc_t description_ = nullptr;
};

struct Prepared {
  Description description;
  Layout a, b, d;
  std::vector<cublasLtMatmulAlgo_t> candidates;
  cublasLtMatmulAlgo_t algorithm{};
  bool is_timed = false;
  GemmChoice choice;
};

std::string shape_text(const Gemm& gemm) {
  return cat(gemm.rows,
             "x",
             gemm.columns,
             "x",
             gemm.depth,
             gemm.is_a_transposed ? " aT" : "",
             gemm.is_b_transposed ? " bT" : "",
             gemm.bias == nullptr ? "" : " bias",
             gemm.addend == nullptr  ? ""
             : gemm.addend == gemm.d ? " accumulate"
                                     : " residual",
             gemm.epilogue == Gemm::Epilogue::Gelu
                 ? (gemm.auxiliary == nullptr ? " gelu" : " gelu kept")
             : gemm.epilogue == Gemm::Epilogue::GeluBackward ? " dgelu"
                                                             : "");
}

}  // namespace

struct Gemms::Impl {
  Impl(void* given, bool tf32) : workspace(given), allows_tf32(tf32) {
    PENSTOCK_BLAS(cublasLtCreate(&handle));
  }
  ~Impl() { cublasLtDestroy(handle); }

  Prepared prepare(const Gemm& gemm) const;
  cublasStatus_t launch(const Gemm& gemm,
                        const Prepared& prepared,
                        const cublasLtMatmulAlgo_t& algorithm,
                        Stream stream) const;
  void choose(const Gemm& gemm, Prepared& prepared, Stream stream) const;

  cublasLtHandle_t handle = nullptr;
  void* workspace;
  bool allows_tf32;
  bool is_timing = false;
  std::map<Key, Prepared> known;
};

Gemms::Gemms(void* workspace, bool allows_tf32)
    : impl_(std::make_unique<Impl>(workspace, allows_tf32)) {}
Gemms::~Gemms() = default;

void Gemms::set_timing(bool is_on) {
  impl_->is_timing = is_on;
}

Prepared Gemms::Impl::prepare(const Gemm& gemm) const {
  const Strides strides = strides_of(gemm);
  Prepared prepared{Description(gemm, allows_tf32),
                    gemm.is_a_transposed ? Layout(gemm.type, gemm.depth, gemm.rows, strides.a)
                                         : Layout(gemm.type, gemm.rows, gemm.depth, strides.a),
                    gemm.is_b_transposed ? Layout(gemm.type, gemm.columns, gemm.depth, strides.b)
                                         : Layout(gemm.type, gemm.depth, gemm.columns, strides.b),
                    Layout(gemm.d_type, gemm.rows, gemm.columns, strides.d),
                    {},
                    {},
                    false,
                    {}};
  cublasLtMatmulPreference_t preference = nullptr;
  PENSTOCK_BLAS(cublasLtMatmulPreferenceCreate(&preference));
  const uint64_t bytes = kWorkspaceBytes;
  constexpr int kMost = 24;
  std::array<cublasLtMatmulHeuristicResult_t, kMost> found{};
  int count = 0;
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
    return cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof(value));
  };
  // In cuBLAS's order: our b, our a, the addend, D. The library supposes 256 where it is not told.
  const auto alignment = [](const void* pointer) {
    return static_cast<uint32_t>(std::min(16, alignment_of(pointer)));
  };
  const void* addend = gemm.addend == nullptr ? gemm.d : gemm.addend;
  cublasStatus_t status = prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes);
  for (const auto& [what, pointer] :
       {std::pair{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, gemm.b},
        std::pair{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, gemm.a},
        std::pair{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, addend},
        std::pair{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<const void*>(gemm.d)}}) {
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = prefer(what, alignment(pointer));
    }
  }
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = cublasLtMatmulAlgoGetHeuristic(handle,
                                            prepared.description.get(),
                                            prepared.b.get(),
                                            prepared.a.get(),
                                            prepared.d.get(),
                                            prepared.d.get(),
                                            preference,
                                            kMost,
                                            found.data(),
                                            &count);
  }
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    throw GpuError(
        "cublasLtMatmulAlgoGetHeuristic",
        cat("no algorithm for ", shape_text(gemm), " (", cublasLtGetStatusName(status), ")"),
        __FILE__,
        __LINE__);
  }
  for (int i = 0; i < count; ++i) {
    if (found[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS) {
      prepared.candidates.push_back(found[static_cast<size_t>(i)].algo);
    }
  }
  PENSTOCK_CHECK(!prepared.candidates.empty(), "no usable algorithm for ", shape_text(gemm));
  prepared.algorithm = prepared.candidates.front();
  prepared.choice = {.shape = shape_text(gemm),
                     .candidates = static_cast<int>(prepared.candidates.size())};
  return prepared;
}

cublasStatus_t Gemms::Impl::launch(const Gemm& gemm,
                                   const Prepared& prepared,
                                   const cublasLtMatmulAlgo_t& algorithm,
                                   Stream stream) const {
  const float alpha = 1;
  const float beta = gemm.addend == nullptr ? 0.0f : 1.0f;
  const void* addend = gemm.addend == nullptr ? gemm.d : gemm.addend;
  return cublasLtMatmul(handle,
                        prepared.description.get(),
                        &alpha,
                        gemm.b,
                        prepared.b.get(),
                        gemm.a,
                        prepared.a.get(),
                        &beta,
                        addend,
                        prepared.d.get(),
                        gemm.d,
                        prepared.d.get(),
                        &algorithm,
                        workspace,
                        kWorkspaceBytes,
                        stream);
}

void Gemms::Impl::choose(const Gemm& gemm, Prepared& prepared, Stream stream) const {
  Event began, ended;
  // Seconds of one run out of `runs`; negative: this candidate does not run here.
  const auto seconds = [&](const cublasLtMatmulAlgo_t& algorithm, int runs) {
    if (launch(gemm, prepared, algorithm, stream) != CUBLAS_STATUS_SUCCESS) {
      return -1.0;
    }
    began.record(stream);
    for (int i = 0; i < runs; ++i) {
      PENSTOCK_BLAS(launch(gemm, prepared, algorithm, stream));
    }
    ended.record(stream);
    ended.wait();
    return seconds_between(began, ended) / runs;
  };
  // A short look at all, then a longer one at the best few.
  std::vector<std::pair<double, size_t>> times;
  for (size_t i = 0; i < prepared.candidates.size(); ++i) {
    const double taken = seconds(prepared.candidates[i], 2);
    if (taken > 0) {
      times.emplace_back(taken, i);
    }
  }
  PENSTOCK_CHECK(!times.empty(), "no algorithm runs for ", shape_text(gemm));
  std::sort(times.begin(), times.end());
  times.resize(std::min<size_t>(times.size(), 4));
  for (auto& [taken, index] : times) {
    for (int round = 0; round < 3; ++round) {
      const double again = seconds(prepared.candidates[index], 4);
      taken = again > 0 ? std::min(taken, again) : taken;
    }
  }
  const auto [best, index] = *std::min_element(times.begin(), times.end());
  prepared.algorithm = prepared.candidates[index];
  prepared.is_timed = true;
  prepared.choice.best_s = best;
  prepared.choice.first_s =
      index == 0 ? best : std::max(0.0, seconds(prepared.candidates.front(), 4));
  prepared.choice.tflops = gemm.flops() / best / 1e12;
}

void Gemms::run(const Gemm& gemm, Stream stream) {
  PENSTOCK_CHECK((gemm.bias == nullptr && gemm.auxiliary == nullptr) || gemm.type == gemm.d_type,
                 "bias and auxiliary have the type of D");
  const Key key = key_of(gemm);
  auto found = impl_->known.find(key);
  if (found == impl_->known.end()) {
    found = impl_->known.emplace(key, impl_->prepare(gemm)).first;
  }
  Prepared& prepared = found->second;
  prepared.description.set_pointers(gemm);
  if (impl_->is_timing && !prepared.is_timed) {
    impl_->choose(gemm, prepared, stream);
  }
  PENSTOCK_BLAS(impl_->launch(gemm, prepared, prepared.algorithm, stream));
}

std::vector<GemmChoice> Gemms::choices() const {
  std::vector<GemmChoice> all;
  for (const auto& [key, prepared] : impl_->known) {
    all.push_back(prepared.choice);
  }
  return all;
}

}  // namespace penstock::gpu
