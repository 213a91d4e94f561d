#include <algorithm>
#include <bit>

#include <cub/device/device_radix_sort.cuh>

#include "penstock/base/error.h"
#include "penstock/gpu/check.h"
#include "penstock/gpu/embedding.h"
#include "penstock/gpu/vectors.cuh"

namespace penstock::gpu {

namespace {

constexpr unsigned kAllLanes = 0xFFFFFFFF;
constexpr int kWarps = 8;  // of a block
constexpr int kThreads = kWarp * kWarps;
constexpr int kChunk = kWarp;  // sorted rows a warp sums

__device__ int lane_index() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
// Warps along x take items (rows, chunks, positions), blocks along y groups of columns.
__device__ int64_t warp_item() {
  return int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
}
template <int N>
__device__ int64_t lane_column() {
  return (int64_t{blockIdx.y} * kWarp + lane_index()) * N;
}

template <int N>
dim3 grid_of(int64_t items, int64_t width) {
  return dim3(static_cast<unsigned>(ceil_div(items, kWarps)),
              static_cast<unsigned>(ceil_div(width, kWarp * N)));
}

// N elements: a pack, or two packs of floats beside one of 16-bit elements, or one.
template <int N, typename T>
__device__ void load_elements(const T* from, float (&values)[N]) {
  if constexpr (N == 8 && sizeof(T) == 4) {
    const Pack<T, 4> low = load<T, 4>(from), high = load<T, 4>(from + 4);
    float halves[2][4];
    unpack(low, halves[0]);
    unpack(high, halves[1]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      values[k] = halves[k / 4][k % 4];
    }
  } else {
    unpack(load<T, N>(from), values);
  }
}

template <int N, typename T>
__device__ void store_elements(T* to, const float (&values)[N]) {
  if constexpr (N == 8 && sizeof(T) == 4) {
    const float low[4] = {values[0], values[1], values[2], values[3]};
    const float high[4] = {values[4], values[5], values[6], values[7]};
    store(to, pack<T, 4>(low));
    store(to + 4, pack<T, 4>(high));
  } else {
    store(to, pack<T, N>(values));
  }
}

template <int N>
__device__ void add(float (&sum)[N], const float (&values)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    sum[k] += values[k];
  }
}

template <typename T, int N>
__device__ void add(float (&sum)[N], const Pack<T, N>& packed) {
  float values[N];
  unpack(packed, values);
  add(sum, values);
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) embed_rows(const T* __restrict__ table,
                                                       const T* __restrict__ positions,
                                                       const int64_t* __restrict__ tokens,
                                                       T* __restrict__ out,
                                                       int64_t rows,
                                                       int64_t context,
                                                       int64_t width) {
  const int64_t row = warp_item();
  if (row >= rows) {
    return;
  }
  table += tokens[row] * width;
  out += row * width;
  if (positions == nullptr) {
#pragma unroll 4
    for (int64_t i = lane_index() * N; i < width; i += kWarp * N) {
      store<T, N>(out + i, load<T, N>(table + i));
    }
    return;
  }
  positions += row % context * width;
#pragma unroll 4
  for (int64_t i = lane_index() * N; i < width; i += kWarp * N) {
    float values[N], position[N];
    load_elements<N>(table + i, values);
    load_elements<N>(positions + i, position);
    add(values, position);
    store_elements<N>(out + i, values);
  }
}

// ---- Backward of the table ----
//
// 1. Rows are sorted by token, equal tokens in the order of their rows.
// 2. A warp sums the 32 rows of a chunk of the sorted order. A run of equal tokens inside the chunk
//    is added to the table at once. What is left of a run that crosses the chunk's ends goes to
//    the chunk's partial sums: 0 for a run from the chunk before, 1 for one that starts here.
// 3. The partial sums of each crossing run are added up, chunk by chunk, and to the table.
// So every token's gradient has one writer and one order, and a frequent token does not hold up the
// rest: text has tokens that make up a twentieth of it.

__global__ void __launch_bounds__(kThreads)
    make_pairs(const int64_t* tokens, int64_t rows, uint32_t* keys, int32_t* sources) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row < rows) {
    keys[row] = static_cast<uint32_t>(tokens[row]);
    sources[row] = static_cast<int32_t>(row);
  }
}

struct SortedRows {
  const uint32_t* keys;    // tokens, ascending
  const int32_t* sources;  // where each row lies in the gradient
  int64_t rows;
};

// Where the runs of a chunk end, one bit for each of its rows, by what becomes of their sums.
struct RunEnds {
  unsigned all;
  unsigned from_before;  // to partial sum 0; at most one
  unsigned unfinished;   // to partial sum 1; at most the last
  unsigned whole;        // to the table
};

__device__ RunEnds find_ends(const SortedRows& sorted, int64_t begin, int count, uint32_t key) {
  const int lane = lane_index();
  const uint32_t next = __shfl_down_sync(kAllLanes, key, 1);
  const bool is_end = lane < count && (lane == count - 1 || next != key);
  const unsigned all = __ballot_sync(kAllLanes, is_end);
  const int64_t end = begin + count;
  const bool comes_from_before = begin > 0 && sorted.keys[begin - 1] == sorted.keys[begin];
  const bool goes_on = end < sorted.rows && sorted.keys[end] == sorted.keys[end - 1];
  const unsigned from_before = comes_from_before ? all & (~all + 1) : 0;
  const unsigned unfinished = goes_on ? 1u << (count - 1) & ~from_before : 0;
  return {all, from_before, unfinished, all & ~from_before & ~unfinished};
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) sum_chunks(const T* __restrict__ gradient,
                                                       SortedRows sorted,
                                                       int64_t width,
                                                       float* __restrict__ table_gradient,
                                                       float* __restrict__ partials) {
  constexpr int kLoads = 4;  // rows in flight
  const int64_t chunk = warp_item();
  const int64_t begin = chunk * kChunk;
  if (begin >= sorted.rows) {
    return;
  }
  // Lanes past the last column stay, for the others need their keys, and read the last one.
  const int64_t column = min(lane_column<N>(), width - N);
  const bool has_column = lane_column<N>() < width;
  const int count = static_cast<int>(min(int64_t{kChunk}, sorted.rows - begin));
  // A short chunk repeats its last row; no run ends there, so that goes nowhere.
  const int own = min(lane_index(), count - 1);
  const uint32_t key = sorted.keys[begin + own];
  const int32_t source = sorted.sources[begin + own];
  const RunEnds ends = find_ends(sorted, begin, count, key);

  float sum[N] = {};
#pragma unroll 1
  for (int first = 0; first < count; first += kLoads) {
    Pack<T, N> values[kLoads];
    float old[kLoads][N];  // of the table, where a run ends; loaded along, not waited for
    int64_t at[kLoads];    // in the table
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int i = first + j;
      const int64_t row = __shfl_sync(kAllLanes, source, i);
      at[j] = __shfl_sync(kAllLanes, key, i) * width + column;
      values[j] = load<T, N>(gradient + row * width + column);
      if ((ends.whole >> i & 1) != 0) {
        load_elements<N>(table_gradient + at[j], old[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int i = first + j;
      add(sum, values[j]);
      if ((ends.all >> i & 1) == 0) {
        continue;
      }
      if ((ends.whole >> i & 1) != 0) {
        add(sum, old[j]);
        if (has_column) {
          store_elements<N>(table_gradient + at[j], sum);
        }
      } else if (has_column) {
        const int64_t slot = 2 * chunk + (ends.unfinished >> i & 1);
        store_elements<N>(partials + slot * width + column, sum);
      }
#pragma unroll
      for (int k = 0; k < N; ++k) {
        sum[k] = 0;
      }
    }
  }
}

template <int N>
__global__ void __launch_bounds__(kThreads) join_chunks(SortedRows sorted,
                                                        int64_t width,
                                                        const float* __restrict__ partials,
                                                        float* __restrict__ table_gradient) {
  constexpr int kLoads = 8;  // partial sums in flight
  const int64_t begin = warp_item() * kChunk;
  const int64_t end = begin + kChunk;
  if (end >= sorted.rows) {
    return;
  }
  const uint32_t token = sorted.keys[end - 1];
  const bool starts_here = begin == 0 || sorted.keys[begin - 1] != token;
  if (!starts_here || sorted.keys[end] != token) {
    return;
  }
  const int64_t column = min(lane_column<N>(), width - N);
  float sum[N];
  load_elements<N>(partials + (2 * warp_item() + 1) * width + column, sum);
  int count = kWarp;
  for (int64_t chunk = warp_item() + 1; count == kWarp; chunk += kWarp) {
    // Chunks that begin with the token, among the next 32; sorted, so they come first.
    const int64_t first_row = (chunk + lane_index()) * kChunk;
    count = __popc(
        __ballot_sync(kAllLanes, first_row < sorted.rows && sorted.keys[first_row] == token));
    const float* from = partials + 2 * chunk * width + column;
    int i = 0;
    for (; i + kLoads <= count; i += kLoads) {
      Pack<float, N> values[kLoads];
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        values[j] = load<float, N>(from + 2 * (i + j) * width);
      }
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        add(sum, values[j]);
      }
    }
    for (; i < count; ++i) {
      add(sum, load<float, N>(from + 2 * i * width));
    }
  }
  if (lane_column<N>() < width) {
    float* table_row = table_gradient + token * width + column;
    float old[N];
    load_elements<N>(table_row, old);
    add(sum, old);
    store_elements<N>(table_row, sum);
  }
}

// ---- Backward of the positions ----

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) sum_samples(const T* __restrict__ gradient,
                                                        int64_t rows,
                                                        int64_t context,
                                                        int64_t width,
                                                        float* __restrict__ position_gradient) {
  constexpr int kLoads = 4;  // samples in flight
  const int64_t position = warp_item();
  const int64_t column = lane_column<N>();
  if (position >= context || column >= width) {
    return;
  }
  float sum[N] = {};
  gradient += column;
  int64_t row = position;
  for (; row + (kLoads - 1) * context < rows; row += kLoads * context) {
    Pack<T, N> values[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      values[j] = load<T, N>(gradient + (row + j * context) * width);
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      add(sum, values[j]);
    }
  }
  for (; row < rows; row += context) {
    add(sum, load<T, N>(gradient + row * width));
  }
  float old[N];
  load_elements<N>(position_gradient + position * width + column, old);
  add(sum, old);
  store_elements<N>(position_gradient + position * width + column, sum);
}

// ---- Host ----

int64_t chunks_of(int64_t rows) {
  return ceil_div(rows, kChunk);
}

struct Pairs {
  uint32_t* keys;
  int32_t* sources;
};

struct Workspace {
  Pairs pairs;
  Pairs sorted;
  float* partials;  // [chunks, 2, width]
  void* sort;
  size_t sort_bytes;
  int64_t bytes;  // of all
};

// The first call of CUB, with no storage, only says how much it needs.
void sort_pairs(
    const Workspace& space, int64_t rows, int64_t vocabulary, size_t& bytes, Stream stream) {
  const int key_bits =
      std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(vocabulary - 1))));
  PENSTOCK_CUDA(cub::DeviceRadixSort::SortPairs(space.sort,
                                                bytes,
                                                space.pairs.keys,
                                                space.sorted.keys,
                                                space.pairs.sources,
                                                space.sorted.sources,
                                                static_cast<int>(rows),
                                                0,
                                                key_bits,
                                                stream));
}

Workspace lay_out(void* base, int64_t rows, int64_t width, int64_t vocabulary) {
  PENSTOCK_CHECK(rows <= INT32_MAX && vocabulary >= 1 && vocabulary <= UINT32_MAX,
                 "no embedding gradient for ",
                 rows,
                 " rows of ",
                 vocabulary,
                 " tokens");
  Workspace space{};
  sort_pairs(space, rows, vocabulary, space.sort_bytes, nullptr);
  const auto take = [&]<typename T>(T*& pointer, int64_t bytes) {
    constexpr int64_t alignment = 256;
    if (base != nullptr) {
      pointer = reinterpret_cast<T*>(static_cast<char*>(base) + space.bytes);
    }
    space.bytes += ceil_div(bytes, alignment) * alignment;
  };
  take(space.pairs.keys, rows * 4);
  take(space.pairs.sources, rows * 4);
  take(space.sorted.keys, rows * 4);
  take(space.sorted.sources, rows * 4);
  take(space.partials, chunks_of(rows) * 2 * width * 4);
  // Never empty: without storage CUB would not sort.
  space.sort_bytes = std::max(space.sort_bytes, size_t{1});
  take(space.sort, static_cast<int64_t>(space.sort_bytes));
  return space;
}

template <typename T, int N>
void launch_forward(const EmbeddingForward& work, Stream stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(work.rows, kWarps));
  embed_rows<T, N><<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(work.table),
                                                    static_cast<const T*>(work.positions),
                                                    work.tokens,
                                                    static_cast<T*>(work.out),
                                                    work.rows,
                                                    work.context,
                                                    work.width);
  PENSTOCK_CUDA(cudaGetLastError());
}

template <typename T, int N>
void launch_backward(const EmbeddingBackward& work, Stream stream) {
  Workspace space = lay_out(work.workspace, work.rows, work.width, work.vocabulary);
  const T* gradient = static_cast<const T*>(work.gradient);
  const auto blocks = static_cast<unsigned>(ceil_div(work.rows, kThreads));
  make_pairs<<<blocks, kThreads, 0, stream>>>(
      work.tokens, work.rows, space.pairs.keys, space.pairs.sources);
  PENSTOCK_CUDA(cudaGetLastError());
  sort_pairs(space, work.rows, work.vocabulary, space.sort_bytes, stream);

  const SortedRows sorted{space.sorted.keys, space.sorted.sources, work.rows};
  const int64_t chunks = chunks_of(work.rows);
  sum_chunks<T, N><<<grid_of<N>(chunks, work.width), kThreads, 0, stream>>>(
      gradient, sorted, work.width, work.table_gradient, space.partials);
  PENSTOCK_CUDA(cudaGetLastError());
  constexpr int kFloats = std::min(N, 4);
  join_chunks<kFloats><<<grid_of<kFloats>(chunks, work.width), kThreads, 0, stream>>>(
      sorted, work.width, space.partials, work.table_gradient);
  PENSTOCK_CUDA(cudaGetLastError());

  if (work.position_gradient != nullptr) {
    sum_samples<T, N><<<grid_of<N>(work.context, work.width), kThreads, 0, stream>>>(
        gradient, work.rows, work.context, work.width, work.position_gradient);
    PENSTOCK_CUDA(cudaGetLastError());
  }
}

// Calls launch.operator()<T, elements a lane takes at a time>: a pack where every row starts on
// one, else a single element.
template <typename Launch>
void dispatch(Type type,
              int64_t width,
              std::initializer_list<const void*> pointers,
              const Launch& launch) {
  const bool has_packs = width * size_of(type) % 16 == 0 && is_aligned(pointers);
  with_element(type, [&]<typename T>(T) {
    has_packs ? launch.template operator()<T, kVector<T>>() : launch.template operator()<T, 1>();
  });
}

}  // namespace

void embed(const EmbeddingForward& work, Stream stream) {
  if (work.rows == 0 || work.width == 0) {
    return;
  }
  dispatch(work.type, work.width, {work.table, work.positions, work.out}, [&]<typename T, int N>() {
    launch_forward<T, N>(work, stream);
  });
}

int64_t embedding_backward_workspace_bytes(int64_t rows, int64_t width, int64_t vocabulary) {
  return lay_out(nullptr, rows, width, vocabulary).bytes;
}

void embed_backward(const EmbeddingBackward& work, Stream stream) {
  if (work.rows == 0 || work.width == 0) {
    return;
  }
  dispatch(work.type,
           work.width,
           {work.gradient, work.table_gradient, work.position_gradient},
           [&]<typename T, int N>() { launch_backward<T, N>(work, stream); });
}

}  // namespace penstock::gpu
