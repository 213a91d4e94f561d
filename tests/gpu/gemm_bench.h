// One GEMM with its reference in float64. What lies between rows is NaN in the operands,
// so that reading it shows, and must stay as it was in the result.
#pragma once

#include <algorithm>

#include "penstock/base/text.h"
#include "penstock/gpu/gemm.h"

#include "gpu/gpu_test.h"

namespace penstock::gpu::gemm_test {

using Epilogue = Gemm::Epilogue;

enum class Addend { None, Other, Itself };

struct GemmCase {
  Type type = Type::BFloat16;
  Type d_type = Type::BFloat16;
  int64_t rows = 0, columns = 0, depth = 0;
  bool is_a_transposed = false, is_b_transposed = false;
  int64_t a_padding = 0, b_padding = 0, d_padding = 0;
  bool has_bias = false;
  Addend addend = Addend::None;
  Epilogue epilogue = Epilogue::None;
  bool has_auxiliary = false;
};

inline std::string text_of(const GemmCase& one) {
  return cat(name_of(one.type),
             " to ",
             name_of(one.d_type),
             " ",
             one.rows,
             "x",
             one.columns,
             "x",
             one.depth,
             one.is_a_transposed ? " aT" : "",
             one.is_b_transposed ? " bT" : "",
             " padding ",
             one.a_padding,
             " ",
             one.b_padding,
             " ",
             one.d_padding,
             one.has_bias ? " bias" : "",
             one.addend == Addend::None    ? ""
             : one.addend == Addend::Other ? " residual"
                                           : " accumulate",
             one.epilogue == Epilogue::None   ? ""
             : one.epilogue == Epilogue::Gelu ? " gelu"
                                              : " dgelu",
             one.has_auxiliary ? " auxiliary" : "");
}

// A matrix as it is stored: rows of `columns` values, with NaN up to the stride.
struct Matrix {
  Matrix(Type type, int64_t matrix_rows, int64_t matrix_columns, int64_t padding, Random& random)
      : rows(matrix_rows), columns(matrix_columns), stride(matrix_columns + padding) {
    values = rounded(type, random.normal(rows * stride));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = columns; column < stride; ++column) {
        values[static_cast<size_t>(row * stride + column)] =
            std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
  double at(int64_t row, int64_t column) const {
    return static_cast<double>(values[static_cast<size_t>(row * stride + column)]);
  }

  int64_t rows, columns, stride;
  std::vector<float> values;
};

inline double cubic(double x) {
  return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
}

inline double gelu_of(double x) {
  return 0.5 * x * (1 + std::tanh(cubic(x)));
}

inline double gelu_slope(double x) {
  const double t = std::tanh(cubic(x));
  const double inner = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner;
}

// The inputs of one GEMM, what must come out, and where it comes out.
class Bench {
 public:
  Bench(const GemmCase& given, Random& random)
      : case_(given),
        a_(case_.type,
           given.is_a_transposed ? given.depth : given.rows,
           given.is_a_transposed ? given.rows : given.depth,
           given.a_padding,
           random),
        b_(case_.type,
           given.is_b_transposed ? given.columns : given.depth,
           given.is_b_transposed ? given.depth : given.columns,
           given.b_padding,
           random),
        addend_(case_.d_type, given.rows, given.columns, given.d_padding, random),
        auxiliary_(case_.type, given.rows, given.columns, 0, random),
        bias_(case_.type, 1, given.columns, 0, random),
        a_buffer_(given.type, a_.values),
        b_buffer_(given.type, b_.values),
        addend_buffer_(given.d_type, addend_.values),
        bias_buffer_(given.type, bias_.values),
        auxiliary_buffer_(given.type, static_cast<int64_t>(auxiliary_.values.size())),
        d_(given.d_type, static_cast<int64_t>(addend_.values.size())) {
    restart();
    make_reference();
  }

  // The result and what belongs to it as before the first run.
  void restart() {
    d_.poison();
    auxiliary_buffer_.poison();
    if (case_.addend == Addend::Itself) {
      d_.upload(addend_.values);
    }
    if (case_.epilogue == Epilogue::GeluBackward) {
      auxiliary_buffer_.upload(auxiliary_.values);
    }
    before_ = d_.bits();
  }

  void run(Gemms& gemms) {
    const auto stride = [](const Matrix& matrix, int64_t padding) {
      return padding == 0 ? 0 : matrix.stride;
    };
    gemms.run({.rows = case_.rows,
               .columns = case_.columns,
               .depth = case_.depth,
               .type = case_.type,
               .a = a_buffer_.data(),
               .b = b_buffer_.data(),
               .is_a_transposed = case_.is_a_transposed,
               .is_b_transposed = case_.is_b_transposed,
               .d = d_.data(),
               .d_type = case_.d_type,
               .a_stride = stride(a_, case_.a_padding),
               .b_stride = stride(b_, case_.b_padding),
               .d_stride = stride(addend_, case_.d_padding),
               .addend = case_.addend == Addend::None    ? nullptr
                         : case_.addend == Addend::Other ? addend_buffer_.data()
                                                         : d_.data(),
               .bias = case_.has_bias ? bias_buffer_.data() : nullptr,
               .epilogue = case_.epilogue,
               .auxiliary = case_.has_auxiliary ? auxiliary_buffer_.data() : nullptr},
              nullptr);
  }

  void expect_right(double most) const {
    SCOPED_TRACE(text_of(case_));
    EXPECT_LT(relative_error(result(), reference_), most);
    EXPECT_TRUE(is_padding_intact());
    EXPECT_TRUE(d_.is_guard_intact());
    EXPECT_TRUE(auxiliary_buffer_.is_guard_intact());
    if (case_.epilogue == Epilogue::Gelu && case_.has_auxiliary) {
      EXPECT_LT(relative_error(auxiliary_buffer_.download(), before_gelu_), most);
    }
    EXPECT_TRUE(is_same(a_buffer_, a_)) << "a was written";
    EXPECT_TRUE(is_same(b_buffer_, b_)) << "b was written";
    EXPECT_TRUE(is_same(addend_buffer_, addend_)) << "the addend was written";
  }

  std::vector<float> result() const {  // without the padding
    const std::vector<float> all = d_.download();
    std::vector<float> values;
    for (int64_t row = 0; row < case_.rows; ++row) {
      const auto first = all.begin() + row * addend_.stride;
      values.insert(values.end(), first, first + case_.columns);
    }
    return values;
  }

 private:
  void make_reference() {
    for (int64_t row = 0; row < case_.rows; ++row) {
      for (int64_t column = 0; column < case_.columns; ++column) {
        double sum = 0;
        for (int64_t i = 0; i < case_.depth; ++i) {
          sum += (case_.is_a_transposed ? a_.at(i, row) : a_.at(row, i)) *
                 (case_.is_b_transposed ? b_.at(column, i) : b_.at(i, column));
        }
        sum += case_.addend == Addend::None ? 0 : addend_.at(row, column);
        sum += case_.has_bias ? bias_.at(0, column) : 0;
        before_gelu_.push_back(sum);
        if (case_.epilogue == Epilogue::Gelu) {
          sum = gelu_of(sum);
        } else if (case_.epilogue == Epilogue::GeluBackward) {
          sum *= gelu_slope(auxiliary_.at(row, column));
        }
        reference_.push_back(sum);
      }
    }
  }

  bool is_padding_intact() const {
    const std::vector<unsigned char> after = d_.bits();
    const int64_t size = size_of(case_.d_type);
    for (int64_t row = 0; row < case_.rows; ++row) {
      const auto offset = (row * addend_.stride + case_.columns) * size;
      if (!std::equal(before_.begin() + offset,
                      before_.begin() + (row + 1) * addend_.stride * size,
                      after.begin() + offset)) {
        return false;
      }
    }
    return true;
  }

  static bool is_same(const DeviceBuffer& buffer, const Matrix& matrix) {
    const std::vector<float> now = buffer.download();
    for (size_t i = 0; i < now.size(); ++i) {
      if (!(now[i] == matrix.values[i] || (std::isnan(now[i]) && std::isnan(matrix.values[i])))) {
        return false;
      }
    }
    return true;
  }

  GemmCase case_;
  Matrix a_, b_, addend_, auxiliary_, bias_;
  DeviceBuffer a_buffer_, b_buffer_, addend_buffer_, bias_buffer_, auxiliary_buffer_, d_;
  std::vector<unsigned char> before_;
  std::vector<double> before_gelu_, reference_;
};

}  // namespace penstock::gpu::gemm_test
