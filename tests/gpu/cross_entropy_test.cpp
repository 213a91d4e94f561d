#include "penstock/gpu/cross_entropy.h"

#include <algorithm>

#include "gpu/gpu_test.h"

namespace penstock::gpu {
namespace {

class CrossEntropyTest : public GpuTest {};

struct Case {
  int64_t rows, vocabulary, stride;
  float scale = 0.25f;
  float deviation = 1;  // so small that no row is certain: a loss near zero has few digits
  int64_t offset = 0;
  bool writes_gradient = true;
};

struct Inputs {
  // Every third row does not count; columns beyond the vocabulary are NaN.
  Inputs(Type type, const Case& test, Random& random)
      : logits(rounded(type, random.normal(test.rows * test.stride, test.deviation))),
        targets(random.integers(test.rows, 0, test.vocabulary - 1)) {
    for (int64_t row = 0; row < test.rows; ++row) {
      if (row % 3 == 1) {
        targets[static_cast<size_t>(row)] = row % 2 == 0 ? -1 : -100;
      }
      for (int64_t column = test.vocabulary; column < test.stride; ++column) {
        logits[static_cast<size_t>(row * test.stride + column)] =
            std::numeric_limits<float>::quiet_NaN();
      }
    }
  }

  std::vector<float> logits;
  std::vector<int64_t> targets;
};

struct Expected {
  Expected(const Case& test, const Inputs& in)
      : losses(static_cast<size_t>(test.rows)), gradient(in.logits.size()) {
    for (size_t row = 0; row < losses.size(); ++row) {
      add_row(test, in, row);
    }
  }

  std::vector<double> losses, gradient;

 private:
  void add_row(const Case& test, const Inputs& in, size_t row) {
    if (in.targets[row] < 0) {
      return;
    }
    const size_t target = static_cast<size_t>(in.targets[row]);
    const size_t vocabulary = static_cast<size_t>(test.vocabulary);
    const float* logits = in.logits.data() + row * static_cast<size_t>(test.stride);
    double* gradients = gradient.data() + row * static_cast<size_t>(test.stride);
    const double largest = static_cast<double>(*std::max_element(logits, logits + vocabulary));
    double sum = 0;
    for (size_t i = 0; i < vocabulary; ++i) {
      gradients[i] = std::exp(static_cast<double>(logits[i]) - largest);
      sum += gradients[i];
    }
    for (size_t i = 0; i < vocabulary; ++i) {
      gradients[i] = (gradients[i] / sum - (i == target ? 1 : 0)) * static_cast<double>(test.scale);
    }
    losses[row] = std::log(sum) + largest - static_cast<double>(logits[target]);
  }
};

struct Computed {
  Computed(Type type, const Case& test, const Inputs& in)
      : logits(type, in.logits, test.offset),
        losses(Type::Float32, test.rows),
        targets(in.targets) {
    cross_entropy({.type = type,
                   .logits = logits.data(),
                   .rows = test.rows,
                   .vocabulary = test.vocabulary,
                   .stride = test.stride,
                   .targets = targets.data(),
                   .losses = losses.floats(),
                   .scale = test.scale,
                   .writes_gradient = test.writes_gradient},
                  nullptr);
  }

  DeviceBuffer logits, losses;
  DeviceArray<int64_t> targets;
};

void expect_correct(Type type, const Case& test, Random& random) {
  SCOPED_TRACE(std::string(name_of(type)) + " " + std::to_string(test.rows) + " x " +
               std::to_string(test.vocabulary) + " of " + std::to_string(test.stride) + " at " +
               std::to_string(test.offset));
  const Inputs in(type, test, random);
  const Expected expected(test, in);
  const Computed run(type, test, in);
  // The loss is in float32, whatever the type.
  EXPECT_LT(relative_error(run.losses.download(), expected.losses), 1e-5);
  if (test.writes_gradient) {
    const std::vector<float> gradient = run.logits.download();
    EXPECT_LT(relative_error(gradient, expected.gradient), tolerance(type));
    for (size_t i = 0; i < gradient.size(); ++i) {
      const bool is_padding = static_cast<int64_t>(i) % test.stride >= test.vocabulary;
      if (is_padding || in.targets[i / static_cast<size_t>(test.stride)] < 0) {
        ASSERT_EQ(gradient[i], 0) << i;
      }
    }
  } else {
    EXPECT_EQ(run.logits.bits(), DeviceBuffer(type, in.logits, test.offset).bits());
  }
  EXPECT_TRUE(run.logits.is_guard_intact());
  EXPECT_TRUE(run.losses.is_guard_intact());
}

TEST_F(CrossEntropyTest, MatchesFloat64ForAnyShape) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t vocabulary : {1, 7, 8, 768, 1000, 4100, 16385}) {
      const int64_t padded = (vocabulary + 63) / 64 * 64;
      for (const int64_t rows : {1, 3, 8}) {
        expect_correct(type, {.rows = rows, .vocabulary = vocabulary, .stride = padded}, random);
        expect_correct(
            type, {.rows = rows, .vocabulary = vocabulary, .stride = vocabulary}, random);
      }
    }
    expect_correct(type, {.rows = 513, .vocabulary = 257, .stride = 264}, random);
    expect_correct(type, {.rows = 4096, .vocabulary = 11, .stride = 16}, random);
    expect_correct(type, {.rows = 7, .vocabulary = 1000, .stride = 1000, .offset = 1}, random);
    expect_correct(type, {.rows = 4, .vocabulary = 50257, .stride = 50304}, random);
  }
}

// Beyond what shared memory holds.
TEST_F(CrossEntropyTest, MatchesFloat64ForRowsOfAnyLength) {
  Random random;
  for (const Type type : kAllTypes) {
    expect_correct(type, {.rows = 3, .vocabulary = 150001, .stride = 150016}, random);
    expect_correct(type, {.rows = 3, .vocabulary = 150001, .stride = 150001}, random);
  }
}

TEST_F(CrossEntropyTest, LeavesTheLogitsWithoutGradient) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t stride : {1003, 1008}) {
      expect_correct(type,
                     {.rows = 5, .vocabulary = 1003, .stride = stride, .writes_gradient = false},
                     random);
    }
    expect_correct(type,
                   {.rows = 2, .vocabulary = 130000, .stride = 130000, .writes_gradient = false},
                   random);
  }
}

TEST_F(CrossEntropyTest, HoldsForHugeLogitsAndNegativeScale) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t stride : {1003, 1008}) {
      expect_correct(
          type,
          {.rows = 40, .vocabulary = 1003, .stride = stride, .scale = -2, .deviation = 80},
          random);
    }
  }
}

// What is masked to -infinity has no share; the first packs of a row may hold nothing else.
TEST_F(CrossEntropyTest, LogitsOfMinusInfinityHaveNoShare) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t stride : {20003, 20008}) {
      const Case test{.rows = 1, .vocabulary = 20003, .stride = stride};
      Inputs in(type, test, random);
      for (size_t i = 0; i < 20000; ++i) {
        in.logits[i] = -std::numeric_limits<float>::infinity();
      }
      in.targets[0] = 20001;
      const Expected expected(test, in);
      const Computed run(type, test, in);
      EXPECT_LT(relative_error(run.losses.download(), expected.losses), 1e-5);
      EXPECT_LT(relative_error(run.logits.download(), expected.gradient), tolerance(type));
    }
  }
}

TEST_F(CrossEntropyTest, ATargetBeyondTheVocabularyGivesNaN) {
  Random random;
  for (const Type type : kAllTypes) {
    for (const int64_t stride : {1003, 1008}) {
      const Case test{.rows = 4, .vocabulary = 1003, .stride = stride};
      Inputs in(type, test, random);
      in.targets = {5, 1003, int64_t{1} << 40, 1002};
      const Computed run(type, test, in);
      const std::vector<float> losses = run.losses.download();
      EXPECT_TRUE(std::isfinite(losses[0]));
      EXPECT_TRUE(std::isnan(losses[1]));
      EXPECT_TRUE(std::isnan(losses[2]));
      EXPECT_TRUE(std::isfinite(losses[3]));
      EXPECT_TRUE(run.logits.is_guard_intact());
    }
  }
}

TEST_F(CrossEntropyTest, ANaNAmongTheLogitsShowsInTheLoss) {
  Random random;
  for (const int64_t stride : {1003, 1008}) {
    const Case test{.rows = 1, .vocabulary = 1003, .stride = stride};
    Inputs in(Type::BFloat16, test, random);
    in.logits[700] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(Computed(Type::BFloat16, test, in).losses.download()[0]));
  }
}

TEST_F(CrossEntropyTest, GivesTheSameBitsAgain) {
  Random random;
  const Case test{.rows = 20, .vocabulary = 50257, .stride = 50264};
  const Inputs in(Type::BFloat16, test, random);
  const Computed first(Type::BFloat16, test, in);
  const Computed second(Type::BFloat16, test, in);
  EXPECT_EQ(first.logits.bits(), second.logits.bits());
  EXPECT_EQ(first.losses.bits(), second.losses.bits());
}

TEST_F(CrossEntropyTest, NothingIsDoneForNoRows) {
  cross_entropy({.type = Type::Float32,
                 .logits = nullptr,
                 .rows = 0,
                 .vocabulary = 8,
                 .stride = 8,
                 .targets = nullptr,
                 .losses = nullptr,
                 .scale = 1,
                 .writes_gradient = true},
                nullptr);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace penstock::gpu
