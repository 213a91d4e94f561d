#include "penstock/gpu/embedding.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "gpu/gpu_test.h"

namespace penstock::gpu {
namespace {

class GpuEmbedding : public GpuTest {};

struct Shape {
  int64_t samples, context, width, vocabulary;
  int64_t rows() const { return samples * context; }
};

std::string text_of(const Shape& shape) {
  return std::to_string(shape.samples) + " samples, context " + std::to_string(shape.context) +
         ", width " + std::to_string(shape.width) + ", vocabulary " +
         std::to_string(shape.vocabulary);
}

// Widths with and without whole packs, chunks of 32 sorted rows filled and not, several groups of
// columns.
const Shape kShapes[] = {{1, 1, 8, 1},
                         {1, 32, 8, 1},
                         {1, 33, 1, 2},
                         {3, 37, 17, 2},
                         {2, 100, 64, 50257},
                         {5, 64, 264, 300},
                         {9, 200, 100, 50257},
                         {1, 4096, 48, 7}};

enum class Tokens { Uniform, Zipf, Equal };
constexpr Tokens kAllTokens[] = {Tokens::Uniform, Tokens::Zipf, Tokens::Equal};

std::vector<int64_t> tokens_of(Tokens kind, const Shape& shape, Random& random) {
  const int64_t last = shape.vocabulary - 1;
  if (kind == Tokens::Equal) {
    return std::vector<int64_t>(static_cast<size_t>(shape.rows()), last);
  }
  std::vector<int64_t> tokens = random.integers(shape.rows(), 0, last);
  if (kind == Tokens::Zipf) {  // token k about 1 / (k + 1) as often as token 0
    const std::vector<float> draws = random.uniform(shape.rows(), 0, 1);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const double token = std::pow(static_cast<double>(last + 1), draws[i]) - 1;
      tokens[i] = std::min(static_cast<int64_t>(token), last);
    }
  }
  return tokens;
}

// Small whole numbers: exact in every type, and so is any sum of them.
std::vector<float> whole_numbers(int64_t count, Random& random) {
  std::vector<float> values;
  for (const int64_t number : random.integers(count, -4, 4)) {
    values.push_back(static_cast<float>(number));
  }
  return values;
}

TEST_F(GpuEmbedding, ForwardAddsTokenAndPosition) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(std::string(name_of(type)) + ", " + text_of(shape));
      const auto width = static_cast<size_t>(shape.width);
      const std::vector<int64_t> tokens = tokens_of(Tokens::Uniform, shape, random);
      const std::vector<float> table = rounded(type, random.normal(shape.vocabulary * shape.width));
      const std::vector<float> positions =
          rounded(type, random.normal(shape.context * shape.width));
      std::vector<float> expected;
      for (size_t row = 0; row < tokens.size(); ++row) {
        const size_t token = static_cast<size_t>(tokens[row]) * width;
        const size_t position = row % static_cast<size_t>(shape.context) * width;
        for (size_t i = 0; i < width; ++i) {
          expected.push_back(table[token + i] + positions[position + i]);
        }
      }
      const DeviceArray<int64_t> device_tokens(tokens);
      const DeviceBuffer device_table(type, table), device_positions(type, positions);
      for (const int64_t offset : {0, 1}) {  // 1: no pack is aligned
        const DeviceBuffer out(type, shape.rows() * shape.width, offset);
        embed({.type = type,
               .table = device_table.data(),
               .positions = device_positions.data(),
               .tokens = device_tokens.data(),
               .out = out.data(),
               .rows = shape.rows(),
               .context = shape.context,
               .width = shape.width},
              nullptr);
        EXPECT_EQ(out.download(), rounded(type, expected));
        EXPECT_TRUE(out.is_guard_intact());
      }
    }
  }
}

TEST_F(GpuEmbedding, ForwardCopiesRowsWhereThereAreNoPositions) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(std::string(name_of(type)) + ", " + text_of(shape));
      const auto width = shape.width;
      const std::vector<int64_t> tokens = tokens_of(Tokens::Uniform, shape, random);
      const std::vector<float> table = rounded(type, random.normal(shape.vocabulary * width));
      std::vector<float> expected;
      for (const int64_t token : tokens) {
        expected.insert(
            expected.end(), table.begin() + token * width, table.begin() + (token + 1) * width);
      }
      const DeviceArray<int64_t> device_tokens(tokens);
      const DeviceBuffer device_table(type, table);
      for (const int64_t offset : {0, 1}) {
        const DeviceBuffer out(type, shape.rows() * width, offset);
        embed({.type = type,
               .table = device_table.data(),
               .positions = nullptr,
               .tokens = device_tokens.data(),
               .out = out.data(),
               .rows = shape.rows(),
               .context = shape.context,
               .width = width},
              nullptr);
        EXPECT_EQ(out.download(), expected);
        EXPECT_TRUE(out.is_guard_intact());
      }
    }
  }
}

struct BackwardCase {
  Type type;
  Shape shape;
  std::vector<int64_t> tokens;
  std::vector<float> gradient;
  std::vector<float> table_gradient;  // before
  std::vector<float> position_gradient;
};

struct Gradients {
  std::vector<float> table, positions;
};

class Backward {
 public:
  explicit Backward(const BackwardCase& given)
      : given_(given),
        tokens_(given.tokens),
        gradient_(given.type, given.gradient),
        table_(Type::Float32, given.table_gradient),
        positions_(Type::Float32, given.position_gradient),
        workspace_(embedding_backward_workspace_bytes(
            given.shape.rows(), given.shape.width, given.shape.vocabulary)) {}

  void run(Stream stream, bool has_positions = true) {
    const Shape& shape = given_.shape;
    embed_backward({.type = given_.type,
                    .gradient = gradient_.data(),
                    .tokens = tokens_.data(),
                    .table_gradient = table_.floats(),
                    .position_gradient = has_positions ? positions_.floats() : nullptr,
                    .rows = shape.rows(),
                    .context = shape.context,
                    .width = shape.width,
                    .vocabulary = shape.vocabulary,
                    .workspace = workspace_.data()},
                   stream);
  }
  void reset() {
    table_.upload(given_.table_gradient);
    positions_.upload(given_.position_gradient);
    workspace_.poison();
    PENSTOCK_CUDA(cudaDeviceSynchronize());  // a stream that does not block would not wait for it
  }
  Gradients gradients() const { return {table_.download(), positions_.download()}; }
  bool are_guards_intact() const {
    return table_.is_guard_intact() && positions_.is_guard_intact() && workspace_.is_guard_intact();
  }

 private:
  const BackwardCase& given_;
  DeviceArray<int64_t> tokens_;
  DeviceBuffer gradient_;
  DeviceBuffer table_;
  DeviceBuffer positions_;
  DeviceBytes workspace_;
};

struct Reference {
  std::vector<double> table, positions;
};

Reference reference_of(const BackwardCase& given) {
  Reference sums{{given.table_gradient.begin(), given.table_gradient.end()},
                 {given.position_gradient.begin(), given.position_gradient.end()}};
  const auto width = static_cast<size_t>(given.shape.width);
  for (size_t row = 0; row < given.tokens.size(); ++row) {
    const size_t token = static_cast<size_t>(given.tokens[row]) * width;
    const size_t position = row % static_cast<size_t>(given.shape.context) * width;
    for (size_t i = 0; i < width; ++i) {
      const double value = given.gradient[row * width + i];
      sums.table[token + i] += value;
      sums.positions[position + i] += value;
    }
  }
  return sums;
}

std::vector<float> as_floats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

TEST_F(GpuEmbedding, BackwardAddsEveryRowOnce) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const Shape& shape : kShapes) {
      for (const Tokens kind : kAllTokens) {
        SCOPED_TRACE(std::string(name_of(type)) + ", " + text_of(shape) + ", tokens " +
                     std::to_string(static_cast<int>(kind)));
        const BackwardCase given{type,
                                 shape,
                                 tokens_of(kind, shape, random),
                                 whole_numbers(shape.rows() * shape.width, random),
                                 whole_numbers(shape.vocabulary * shape.width, random),
                                 whole_numbers(shape.context * shape.width, random)};
        Backward backward(given);
        backward.run(nullptr);
        const Gradients actual = backward.gradients();
        const Reference expected = reference_of(given);
        EXPECT_TRUE(actual.table == as_floats(expected.table));
        EXPECT_TRUE(actual.positions == as_floats(expected.positions));
        EXPECT_TRUE(backward.are_guards_intact());
      }
    }
  }
}

TEST_F(GpuEmbedding, BackwardGoesWithoutPositions) {
  Random random;
  for (const Type type : kAllTypes) {
    const BackwardCase given = [&] {
      const Shape shape{3, 37, 24, 50};
      return BackwardCase{type,
                          shape,
                          tokens_of(Tokens::Zipf, shape, random),
                          whole_numbers(shape.rows() * shape.width, random),
                          whole_numbers(shape.vocabulary * shape.width, random),
                          whole_numbers(shape.context * shape.width, random)};
    }();
    Backward backward(given);
    backward.run(nullptr, /*has_positions=*/false);
    const Gradients actual = backward.gradients();
    EXPECT_TRUE(actual.table == as_floats(reference_of(given).table));
    EXPECT_TRUE(actual.positions == given.position_gradient) << "written";
    EXPECT_TRUE(backward.are_guards_intact());
  }
}

BackwardCase random_case(Type type, const Shape& shape, Tokens kind, Random& random) {
  return {type,
          shape,
          tokens_of(kind, shape, random),
          rounded(type, random.normal(shape.rows() * shape.width)),
          random.normal(shape.vocabulary * shape.width),
          random.normal(shape.context * shape.width)};
}

TEST_F(GpuEmbedding, BackwardIsExactToFloat32AndRepeatsItsBits) {
  Random random;
  const Shape shape{16, 512, 72, 3000};
  for (const Type type : kAllTypes) {
    for (const Tokens kind : kAllTokens) {
      SCOPED_TRACE(std::string(name_of(type)) + ", tokens " +
                   std::to_string(static_cast<int>(kind)));
      const BackwardCase given = random_case(type, shape, kind, random);
      Backward backward(given);
      backward.run(nullptr);
      const Gradients actual = backward.gradients();
      const Reference expected = reference_of(given);
      EXPECT_LT(relative_error(actual.table, expected.table), 2e-6);
      EXPECT_LT(relative_error(actual.positions, expected.positions), 2e-6);
      backward.reset();
      backward.run(nullptr);
      const Gradients again = backward.gradients();
      EXPECT_TRUE(again.table == actual.table);
      EXPECT_TRUE(again.positions == actual.positions);
    }
  }
}

TEST_F(GpuEmbedding, BackwardCanBeCaptured) {
  Random random;
  const BackwardCase given = random_case(Type::BFloat16, {4, 256, 64, 50257}, Tokens::Zipf, random);
  Backward backward(given);
  backward.run(nullptr);
  const Gradients expected = backward.gradients();
  backward.reset();

  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  PENSTOCK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  PENSTOCK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  backward.run(stream);
  PENSTOCK_CUDA(cudaStreamEndCapture(stream, &graph));
  PENSTOCK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  PENSTOCK_CUDA(cudaGraphLaunch(executable, stream));
  const Gradients actual = backward.gradients();
  EXPECT_TRUE(actual.table == expected.table);
  EXPECT_TRUE(actual.positions == expected.positions);
  PENSTOCK_CUDA(cudaGraphExecDestroy(executable));
  PENSTOCK_CUDA(cudaGraphDestroy(graph));
  PENSTOCK_CUDA(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace penstock::gpu
