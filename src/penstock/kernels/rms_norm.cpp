#include "penstock/kernels/rms_norm.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace penstock::kernels {

namespace {

// The sum of term(i) in lanes that the vectoriser can keep apart, added in a fixed order.
template <typename Term>
[[gnu::always_inline]] inline float sum_in_lanes(int64_t count, const Term& term) {
  constexpr int64_t kLanes = 32;
  std::array<float, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[static_cast<size_t>(lane)] += term(i + lane);
    }
  }
  for (; i < count; ++i) {
    lanes[static_cast<size_t>(i % kLanes)] += term(i);
  }
  float sum = 0;
  for (const float lane : lanes) {
    sum += lane;
  }
  return sum;
}

template <typename T>
[[gnu::always_inline]] inline void forward(const RmsNormForward<T>& work,
                                           int64_t first_row,
                                           int64_t last_row) {
  for (int64_t row = first_row; row < last_row; ++row) {
    const T* x = work.x + row * work.width;
    T* out = work.out + row * work.width;
    const float squares = sum_in_lanes(work.width, [&](int64_t i) {
      const float value = to_float(x[i]);
      return value * value;
    });
    const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(work.width) + work.epsilon);
    work.inverse[row] = inverse;
    for (int64_t i = 0; i < work.width; ++i) {
      out[i] = from_float<T>(to_float(x[i]) * inverse * work.scale[i]);
    }
  }
}

// With g = dy * scale: dx = inverse * (g - x * inverse² * mean(g * x)).
template <typename T>
[[gnu::always_inline]] inline void backward(const RmsNormBackward<T>& work,
                                            int64_t first_row,
                                            int64_t last_row) {
  for (int64_t row = first_row; row < last_row; ++row) {
    const T* x = work.x + row * work.width;
    const T* dy = work.dy + row * work.width;
    const T* residual = work.residual == nullptr ? nullptr : work.residual + row * work.width;
    T* dx = work.dx + row * work.width;
    const float inverse = work.inverse[row];
    const float along = sum_in_lanes(
        work.width, [&](int64_t i) { return to_float(dy[i]) * work.scale[i] * to_float(x[i]); });
    const float pull = along / static_cast<float>(work.width) * inverse * inverse;
    const auto through = [&](int64_t i) {
      return inverse * (to_float(dy[i]) * work.scale[i] - to_float(x[i]) * pull);
    };
    if (residual == nullptr) {
      for (int64_t i = 0; i < work.width; ++i) {
        dx[i] = from_float<T>(through(i));
      }
    } else {
      for (int64_t i = 0; i < work.width; ++i) {
        dx[i] = from_float<T>(through(i) + to_float(residual[i]));
      }
    }
  }
}

template <typename T>
[[gnu::always_inline]] inline void add_scale(const RmsNormScale<T>& work,
                                             int64_t first_column,
                                             int64_t last_column) {
  // Blocks of rows are added up by themselves, for the running sum is long and loses digits; and a
  // few columns at a time, so that their sums stay in the nearest cache.
  constexpr int64_t kRows = 256, kColumns = 64;
  for (int64_t column = first_column; column < last_column; column += kColumns) {
    const int64_t columns = std::min(kColumns, last_column - column);
    for (int64_t block = 0; block < work.rows; block += kRows) {
      std::array<float, kColumns> sums{};
      for (int64_t row = block; row < std::min(block + kRows, work.rows); ++row) {
        const T* x = work.x + row * work.width + column;
        const T* dy = work.dy + row * work.width + column;
        const float inverse = work.inverse[row];
        for (int64_t i = 0; i < columns; ++i) {
          sums[static_cast<size_t>(i)] += to_float(dy[i]) * (to_float(x[i]) * inverse);
        }
      }
      for (int64_t i = 0; i < columns; ++i) {
        work.scale_gradient[column + i] += sums[static_cast<size_t>(i)];
      }
    }
  }
}

}  // namespace

PENSTOCK_CPU_CLONES void rms_norm(const RmsNormForward<float>& work, int64_t first, int64_t last) {
  forward(work, first, last);
}
PENSTOCK_CPU_CLONES void rms_norm(const RmsNormForward<Bf16>& work, int64_t first, int64_t last) {
  forward(work, first, last);
}
PENSTOCK_CPU_CLONES void rms_norm_backward(const RmsNormBackward<float>& work,
                                           int64_t first,
                                           int64_t last) {
  backward(work, first, last);
}
PENSTOCK_CPU_CLONES void rms_norm_backward(const RmsNormBackward<Bf16>& work,
                                           int64_t first,
                                           int64_t last) {
  backward(work, first, last);
}
PENSTOCK_CPU_CLONES void add_rms_scale_gradient(const RmsNormScale<float>& work,
                                                int64_t first,
                                                int64_t last) {
  add_scale(work, first, last);
}
PENSTOCK_CPU_CLONES void add_rms_scale_gradient(const RmsNormScale<Bf16>& work,
                                                int64_t first,
                                                int64_t last) {
  add_scale(work, first, last);
}

}  // namespace penstock::kernels
