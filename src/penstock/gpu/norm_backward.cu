#include "penstock/gpu/norm_rows.cuh"
#include "penstock/gpu/sums.h"

namespace penstock::gpu {

namespace {

// Backward has one block a multiprocessor, of as many warps as leave a thread the registers it
// needs (80 and 128), in up to 15 teams. V: packs of a row that a thread has.
template <int V>
constexpr int kBackwardWarps = V == 1 ? 24 : 16;
constexpr int kWarpSums = 64;  // of all teams, each with a multiple of 4
// A team of up to 4 warps has 4 slots of kWarpSums, so 16 would fit; larger teams are fewer, for
// kBackwardWarps bounds their warps. Rows were measured with 15, and another number adds in another
// order.
constexpr int kMaxTeams = 15;
static_assert(kMaxTeams * 4 <= kWarpSums);
constexpr int64_t kMaxTeamRows = 1LL << 30;  // row numbers there are int
constexpr int kStages = 3;  // rows of a team in shared memory: one in use, the others on their way
constexpr int kInputs = 3;  // dy, x, residual_gradient
constexpr int kSums = 3;    // scale, shift, dx; of a root-mean-square norm scale alone

struct Teams {
  int threads;          // of a team, whole warps
  int slots;            // a team's warps, rounded up to a multiple of 4
  float inverse_width;  // of a row
};

// y = (x - mean) * inverse. For 16 bits in one instruction less, at the price of the digits that a
// mean far above the deviation has cost x already. kIsCentred: as in norm.cu.
template <typename T, bool kIsCentred>
__device__ float normalised(float x, float2 statistics) {
  if constexpr (!kIsCentred) {
    return x * statistics.y;
  } else if constexpr (sizeof(T) == 4) {
    return (x - statistics.x) * statistics.y;
  } else {
    return x * statistics.y - statistics.x * statistics.y;
  }
}

// Backward in one pass. With y = (x - mean) * inverse and g = dy * scale:
//   dx = inverse * (g - mean(g) - y * mean(g * y)) + residual_gradient,
// where a root-mean-square norm has neither mean nor mean(g).
// A team of whole warps has a row at a time, V packs a thread; a thread sees the same columns in
// every row and keeps their sums in registers. Rows arrive in shared memory kStages - 1 ahead of
// their use. A thread reads back only what it copied itself, and an element that dx overwrites has
// been read by the same thread: neither needs a barrier.
template <typename T, int V, bool kIsCentred>
class TeamBackward {
 public:
  static constexpr int N = kVector<T>;
  static constexpr int kOwnSums = kIsCentred ? kSums : 1;
  static constexpr int kSlots = kBackwardWarps<V> * kWarp;  // a slot a thread, of the largest block

  __device__ TeamBackward(const NormBackward& work, const Teams& teams, uint4* stages)
      : work_(work),
        teams_(teams),
        stages_(stages + threadIdx.x),
        team_(static_cast<int>(threadIdx.x) / teams.threads),
        thread_(static_cast<int>(threadIdx.x) % teams.threads) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        scale_[v][n] = has_columns(v) ? work.scale[column(v) + n] : 0;
      }
    }
  }

  // warp_sums: two buffers of kWarpSums, all zero.
  __device__ void walk_rows(float2* warp_sums) {
    const int num_teams = static_cast<int>(blockDim.x) / teams_.threads;
    const int step = static_cast<int>(gridDim.x) * num_teams;
    const int64_t elements_step = step * work_.width;
    int row = static_cast<int>(blockIdx.x) * num_teams + team_;
    int64_t at = row * work_.width + column(0);
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
      fetch(row + stage * step, at + stage * elements_step, stage);
    }
    float2 statistics = row_statistics(row);
    int stage = 0;
    int buffer = 0;
    // All teams of a block go round as often as the first: they meet at one barrier. A named
    // barrier for each team was 10 % slower (3.04 ms against 2.76 for 25 calls at 124M, batch 64),
    // and racecheck cannot follow those.
    for (; row - team_ < static_cast<int>(work_.rows); row += step) {
      // Into the stage that the row before has left.
      fetch(row + (kStages - 1) * step,
            at + (kStages - 1) * elements_step,
            stage == 0 ? kStages - 1 : stage - 1);
      const float2 next_statistics = row_statistics(row + step);
      wait_copies<kStages - 1>();
      const bool has_row = row < static_cast<int>(work_.rows);
      const float2 sums = has_row ? row_sums(stage, statistics) : float2{0, 0};
      const float2 total = team_sums(sums, warp_sums + buffer);
      if (has_row) {
        write_row(at, stage, statistics, total);
      }
      statistics = next_statistics;
      stage = stage == kStages - 1 ? 0 : stage + 1;
      buffer ^= kWarpSums;
      at += elements_step;
    }
    wait_copies<0>();
  }

  // All threads of the block come here, after their last row. Adds up the teams, in order, into row
  // blockIdx.x of the partial sums.
  __device__ void write_partials(float* shared) {
    // [team, sum, v, n, thread]: without bank conflicts both ways, thanks to 4 more threads.
    const int padded = teams_.threads + 4;
    const int num_teams = static_cast<int>(blockDim.x) / teams_.threads;
    const int width = static_cast<int>(work_.width);
    __syncthreads();
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const int at = ((team_ * kOwnSums * V + v) * N + n) * padded + thread_;
        shared[at] = scale_sums_[v][n];
        if constexpr (kIsCentred) {
          shared[at + V * N * padded] = shift_sums_[v][n];
          shared[at + 2 * V * N * padded] = dx_sums_[v][n];
        }
      }
    }
    __syncthreads();
    for (int s = 0; s < kOwnSums; ++s) {
      float* partials =
          work_.workspace + (static_cast<int64_t>(s) * gridDim.x + blockIdx.x) * work_.width;
      for (int column = static_cast<int>(threadIdx.x); column < width;
           column += static_cast<int>(blockDim.x)) {
        const int v = column / N / teams_.threads;
        const int thread = column / N % teams_.threads;
        float sum = 0;
        for (int team = 0; team < num_teams; ++team) {
          sum += shared[(((team * kOwnSums + s) * V + v) * N + column % N) * padded + thread];
        }
        partials[column] = sum;
      }
    }
  }

 private:
  __device__ int column(int v) const {
    return (v * teams_.threads + thread_) * N;
  }
  __device__ bool has_columns(int v) const {
    return column(v) < static_cast<int>(work_.width);
  }
  __device__ uint4* slot(int stage, int input, int v) const {
    return stages_ + ((stage * kInputs + input) * V + v) * kSlots;
  }

  // One group of copies, an empty one beyond the last row, so that the count of groups holds. `at`
  // is where this thread's first pack of the row begins.
  __device__ void fetch(int row, int64_t at, int stage) const {
    if (row < static_cast<int>(work_.rows)) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        if (has_columns(v)) {
          const int64_t from = at + v * teams_.threads * N;
          copy_async(slot(stage, 0, v), static_cast<const T*>(work_.dy) + from);
          copy_async(slot(stage, 1, v), static_cast<const T*>(work_.x) + from);
          if (work_.residual_gradient != nullptr) {
            copy_async(slot(stage, 2, v), static_cast<const T*>(work_.residual_gradient) + from);
          }
        }
      }
    }
    commit_copies();
  }

  // Mean and inverse deviation.
  __device__ float2 row_statistics(int row) const {
    return row < static_cast<int>(work_.rows)
               ? make_float2(kIsCentred ? work_.mean[row] : 0, work_.inverse_deviation[row])
               : make_float2(0, 0);
  }

  // This thread's share of sum(g) and sum(g * y).
  __device__ float2 row_sums(int stage, float2 statistics) {
    float2 sums = {0, 0};
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (has_columns(v)) {
        float dy[N];
        float x[N];
        unpack(Pack<T, N>{*slot(stage, 0, v)}, dy);
        unpack(Pack<T, N>{*slot(stage, 1, v)}, x);
#pragma unroll
        for (int n = 0; n < N; ++n) {
          const float dy_y = dy[n] * normalised<T, kIsCentred>(x[n], statistics);
          scale_sums_[v][n] += dy_y;
          if constexpr (kIsCentred) {
            shift_sums_[v][n] += dy[n];
            sums.x += dy[n] * scale_[v][n];
          }
          sums.y += dy_y * scale_[v][n];
        }
      }
    }
    return sums;
  }

  // The sums of the whole team, the same bits in every thread. With two buffers in turn one barrier
  // a row is enough: who writes to a buffer again has passed the barrier of the row between, which
  // all reach after reading. Slots without a warp stay zero.
  __device__ float2 team_sums(float2 sums, float2* warp_sums) const {
    float2* slots = warp_sums + team_ * teams_.slots;
    sums.x = warp_sum(sums.x);
    sums.y = warp_sum(sums.y);
    if (thread_ % kWarp == 0) {
      slots[thread_ / kWarp] = sums;
    }
    if (teams_.threads == kWarp) {
      __syncwarp();
    } else {
      __syncthreads();
    }
    float2 total = {0, 0};
#pragma unroll 1
    for (int i = 0; i < teams_.slots; i += 4) {
      const float4 first = *reinterpret_cast<const float4*>(slots + i);
      const float4 second = *reinterpret_cast<const float4*>(slots + i + 2);
      total.x += (first.x + first.z) + (second.x + second.z);
      total.y += (first.y + first.w) + (second.y + second.w);
    }
    return total;
  }

  __device__ void write_row(int64_t at, int stage, float2 statistics, float2 sums) {
    const float mean_g = kIsCentred ? sums.x * teams_.inverse_width : 0;
    const float mean_gy = sums.y * teams_.inverse_width;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (has_columns(v)) {
        float dy[N];
        float x[N];
        float residual[N] = {};
        unpack(Pack<T, N>{*slot(stage, 0, v)}, dy);
        unpack(Pack<T, N>{*slot(stage, 1, v)}, x);
        if (work_.residual_gradient != nullptr) {
          unpack(Pack<T, N>{*slot(stage, 2, v)}, residual);
        }
#pragma unroll
        for (int n = 0; n < N; ++n) {
          const float y = normalised<T, kIsCentred>(x[n], statistics);
          const float centred = dy[n] * scale_[v][n] - mean_g - y * mean_gy;
          dy[n] = statistics.y * centred + residual[n];
        }
        const Pack<T, N> rounded = pack<T, N>(dy);
        store<T, N>(static_cast<T*>(work_.dx) + at + v * teams_.threads * N, rounded);
        if constexpr (kIsCentred) {
          unpack(rounded, dy);
#pragma unroll
          for (int n = 0; n < N; ++n) {
            dx_sums_[v][n] += dy[n];
          }
        }
      }
    }
  }

  const NormBackward& work_;
  const Teams& teams_;
  uint4* stages_;  // [kStages, kInputs, V, kSlots], from this thread's
  const int team_, thread_;
  float scale_[V][N];
  float scale_sums_[V][N] = {};
  float shift_sums_[V][N] = {};
  float dx_sums_[V][N] = {};
};

template <typename T, int V, bool kIsCentred>
__global__ void __launch_bounds__(kBackwardWarps<V>* kWarp, 1)
    norm_team_backward_kernel(const __grid_constant__ NormBackward work,
                              const __grid_constant__ Teams teams) {
  extern __shared__ uint4 stages[];
  __shared__ alignas(16) float2 warp_sums[2 * kWarpSums];
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kWarpSums;
       i += static_cast<int>(blockDim.x)) {
    warp_sums[i] = {0, 0};
  }
  __syncthreads();
  TeamBackward<T, V, kIsCentred> team(work, teams, stages);
  team.walk_rows(warp_sums);
  team.write_partials(reinterpret_cast<float*>(stages));
}

template <typename T, int V, bool kIsCentred>
void run_team_backward(const NormBackward& work, int64_t num_warps, Stream stream) {
  const int64_t num_teams = std::min<int64_t>(kMaxTeams, kBackwardWarps<V> / num_warps);
  const int64_t blocks = std::min(num_multiprocessors(), ceil_div(work.rows, num_teams));
  const Teams teams{.threads = static_cast<int>(num_warps) * kWarp,
                    .slots = static_cast<int>(ceil_div(num_warps, 4)) * 4,
                    .inverse_width = 1 / static_cast<float>(work.width)};
  PENSTOCK_CHECK(num_teams * teams.slots <= kWarpSums, num_teams, " teams of ", num_warps);
  constexpr size_t kSharedBytes =
      kStages * kInputs * V * TeamBackward<T, V, kIsCentred>::kSlots * 16;
  // The stages' memory serves the sums of the teams at the end.
  static_assert(kStages * kInputs * 16 * kWarp >= kSums * 8 * 4 * (kWarp + 4));
  constexpr auto kernel = norm_team_backward_kernel<T, V, kIsCentred>;
  allow_large_shared_memory<kernel>();
  kernel<<<static_cast<unsigned>(blocks),
           static_cast<unsigned>(num_teams * teams.threads),
           kSharedBytes,
           stream>>>(work, teams);
  PENSTOCK_CUDA(cudaGetLastError());
  add_partial_sums({.partials = work.workspace,
                    .count = blocks,
                    .width = work.width,
                    .out = {work.scale_gradient,
                            kIsCentred ? work.shift_gradient : nullptr,
                            kIsCentred ? work.dx_column_sums : nullptr}},
                   stream);
}

// For any width: dx alone, a warp a row.
template <typename T, int N, bool kIsCentred>
__global__ void __launch_bounds__(kRowsPerBlock* kWarp)
    norm_plain_backward_kernel(const __grid_constant__ NormBackward work) {
  const int64_t row = warp_row();
  if (row >= work.rows) {
    return;
  }
  const int64_t first = static_cast<int64_t>(threadIdx.x % kWarp) * N;
  const T* dy_row = static_cast<const T*>(work.dy) + row * work.width;
  const T* x_row = static_cast<const T*>(work.x) + row * work.width;
  const float mean = kIsCentred ? work.mean[row] : 0;
  const float inverse = work.inverse_deviation[row];
  float dy[N];
  float x[N];
  float sum_g = 0;
  float sum_gy = 0;
  for (int64_t column = first; column < work.width; column += kWarp * N) {
    unpack(load<T, N>(dy_row + column), dy);
    unpack(load<T, N>(x_row + column), x);
    for (int n = 0; n < N; ++n) {
      const float g = dy[n] * work.scale[column + n];
      sum_g += g;
      sum_gy += g * ((x[n] - mean) * inverse);
    }
  }
  const float mean_g = kIsCentred ? warp_sum(sum_g) / static_cast<float>(work.width) : 0;
  const float mean_gy = warp_sum(sum_gy) / static_cast<float>(work.width);
  for (int64_t column = first; column < work.width; column += kWarp * N) {
    float residual[N] = {};
    unpack(load<T, N>(dy_row + column), dy);
    unpack(load<T, N>(x_row + column), x);
    if (work.residual_gradient != nullptr) {
      const T* residual_row = static_cast<const T*>(work.residual_gradient) + row * work.width;
      unpack(load<T, N>(residual_row + column), residual);
    }
    for (int n = 0; n < N; ++n) {
      const float y = (x[n] - mean) * inverse;
      const float centred = dy[n] * work.scale[column + n] - mean_g - y * mean_gy;
      dy[n] = inverse * centred + residual[n];
    }
    store<T, N>(static_cast<T*>(work.dx) + row * work.width + column, pack<T, N>(dy));
  }
}

template <typename T, int N, bool kIsCentred>
struct ScaleGradient {
  static constexpr int kRowsAhead = 2;
  struct Loaded {
    Pack<T, N> dy, x;
    float mean, inverse;
  };

  const NormBackward work;

  __device__ Loaded load(int64_t row, int64_t column) const {
    const int64_t at = row * work.width + column;
    return {gpu::load<T, N>(static_cast<const T*>(work.dy) + at),
            gpu::load<T, N>(static_cast<const T*>(work.x) + at),
            kIsCentred ? work.mean[row] : 0,
            work.inverse_deviation[row]};
  }
  __device__ void use(const Loaded& loaded, int64_t, int64_t, float (&sums)[N]) const {
    float dy[N];
    float x[N];
    unpack(loaded.dy, dy);
    unpack(loaded.x, x);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      sums[n] += dy[n] * ((x[n] - loaded.mean) * loaded.inverse);
    }
  }
};

// For any width, in four passes. dx comes after the sums of dy, for it may overwrite dy.
template <typename T, int N, bool kIsCentred>
void run_plain_backward(const NormBackward& work, Stream stream) {
  add_walked_sums<N>(ScaleGradient<T, N, kIsCentred>{work},
                     work.rows,
                     work.width,
                     work.workspace,
                     work.scale_gradient,
                     stream);
  ColumnSums sums{.type = work.type,
                  .x = work.dy,
                  .rows = work.rows,
                  .width = work.width,
                  .stride = work.width,
                  .out = work.shift_gradient,
                  .workspace = work.workspace};
  if (kIsCentred) {
    add_column_sums(sums, stream);
  }
  norm_plain_backward_kernel<T, N, kIsCentred>
      <<<warp_row_blocks(work.rows), kRowsPerBlock * kWarp, 0, stream>>>(work);
  PENSTOCK_CUDA(cudaGetLastError());
  if (kIsCentred && work.dx_column_sums != nullptr) {
    sums.x = work.dx;
    sums.out = work.dx_column_sums;
    add_column_sums(sums, stream);
  }
}

template <typename T, bool kIsCentred>
void run_norm_backward(const NormBackward& work, Stream stream) {
  constexpr int N = kVector<T>;
  const bool is_fast =
      work.width % N == 0 && is_aligned({work.dy, work.x, work.residual_gradient, work.dx});
  const int64_t num_warps = ceil_div(work.width, N * kWarp);
  if (!is_fast) {
    run_plain_backward<T, 1, kIsCentred>(work, stream);
  } else if (work.rows <= kMaxTeamRows && num_warps <= kBackwardWarps<1>) {
    run_team_backward<T, 1, kIsCentred>(work, num_warps, stream);
  } else if (work.rows <= kMaxTeamRows && num_warps <= 2 * kBackwardWarps<2>) {
    run_team_backward<T, 2, kIsCentred>(work, ceil_div(num_warps, 2), stream);
  } else {
    run_plain_backward<T, N, kIsCentred>(work, stream);
  }
}

template <bool kIsCentred>
void run_any_backward(const NormBackward& work, Stream stream) {
  if (work.rows == 0 || work.width == 0) {
    return;
  }
  with_element(work.type, [&](auto element) {
    run_norm_backward<decltype(element), kIsCentred>(work, stream);
  });
}

}  // namespace

int64_t norm_backward_workspace_floats(int64_t width) {
  return std::max(kSums * num_multiprocessors() * width, column_sums_workspace_floats(width));
}

void layer_norm_backward(const NormBackward& work, Stream stream) {
  run_any_backward</*kIsCentred=*/true>(work, stream);
}

void rms_norm_backward(const NormBackward& work, Stream stream) {
  PENSTOCK_CHECK(work.dx_column_sums == nullptr, "column sums of a root-mean-square norm");
  run_any_backward</*kIsCentred=*/false>(work, stream);
}

}  // namespace penstock::gpu
