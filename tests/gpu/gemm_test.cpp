#include "penstock/gpu/gemm.h"

#include <memory>

#include "gpu/gemm_bench.h"

namespace penstock::gpu {
namespace {

using gemm_test::Addend;
using gemm_test::Bench;
using gemm_test::Epilogue;
using gemm_test::GemmCase;

class GemmTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) {
      return;
    }
    workspace_ = std::make_unique<DeviceBytes>(Gemms::kWorkspaceBytes);
    gemms_ = std::make_unique<Gemms>(workspace_->data(), /*allows_tf32=*/false);
    random_ = std::make_unique<Random>();
  }
  void TearDown() override {
    if (workspace_ != nullptr) {
      EXPECT_TRUE(workspace_->is_guard_intact());
    }
  }

  void expect_right(const GemmCase& one) { expect_right(one, tolerance(one.d_type)); }
  void expect_right(const GemmCase& one, double most) {
    SCOPED_TRACE(text_of(one));
    Bench bench(one, *random_);
    bench.run(*gemms_);
    bench.expect_right(most);
  }

  std::unique_ptr<DeviceBytes> workspace_;
  std::unique_ptr<Gemms> gemms_;
  std::unique_ptr<Random> random_;
};

constexpr Type kShortTypes[] = {Type::BFloat16, Type::Float16};

}  // namespace

TEST_F(GemmTest, MatchesFloat64ForEveryTranspose) {
  struct Shape {
    int64_t rows, columns, depth;
  };
  for (const Type type : kAllTypes) {
    for (const bool is_a_transposed : {false, true}) {
      for (const bool is_b_transposed : {false, true}) {
        for (const Shape& shape : {Shape{64, 96, 128},
                                   Shape{17, 64, 192},
                                   Shape{1, 64, 64},
                                   Shape{33, 45, 21},
                                   Shape{300, 264, 72}}) {
          expect_right({.type = type,
                        .d_type = type,
                        .rows = shape.rows,
                        .columns = shape.columns,
                        .depth = shape.depth,
                        .is_a_transposed = is_a_transposed,
                        .is_b_transposed = is_b_transposed});
        }
      }
    }
  }
}

TEST_F(GemmTest, LeavesWhatLiesBetweenRowsAlone) {
  for (const Type type : kAllTypes) {
    for (const bool is_a_transposed : {false, true}) {
      for (const bool is_b_transposed : {false, true}) {
        GemmCase one{.type = type,
                     .d_type = type,
                     .rows = 51,
                     .columns = 257,
                     .depth = 64,
                     .is_a_transposed = is_a_transposed,
                     .is_b_transposed = is_b_transposed,
                     .d_padding = 63};
        one.b_padding = is_b_transposed ? 0 : 63;  // 257 to 320 as well
        one.a_padding = is_a_transposed ? 13 : 0;  // 51 to 64
        expect_right(one);
        one.a_padding = is_a_transposed ? 77 : 64;
        one.b_padding = is_b_transposed ? 8 : 127;
        one.addend = Addend::Other;
        one.has_bias = true;
        expect_right(one);
      }
    }
  }
}

// The head's three GEMMs: an odd vocabulary in rows that begin at multiples of 64.
TEST_F(GemmTest, TakesAnOddVocabularyInEveryPlace) {
  for (const Type type : kAllTypes) {
    expect_right({.type = type,
                  .d_type = type,
                  .rows = 51,
                  .columns = 101,
                  .depth = 64,
                  .is_b_transposed = true,
                  .d_padding = 27});
    expect_right(
        {.type = type, .d_type = type, .rows = 51, .columns = 64, .depth = 257, .a_padding = 63});
    for (const Addend addend : {Addend::None, Addend::Itself}) {
      expect_right({.type = type,
                    .d_type = Type::Float32,
                    .rows = 257,
                    .columns = 64,
                    .depth = 51,
                    .is_a_transposed = true,
                    .a_padding = 63,
                    .addend = addend});
    }
  }
}

TEST_F(GemmTest, AddsBiasAndResidual) {
  for (const Type type : kAllTypes) {
    for (const int64_t rows : {1, 51, 128}) {
      GemmCase one{.type = type, .d_type = type, .rows = rows, .columns = 192, .depth = 64};
      one.has_bias = true;
      expect_right(one);
      one.addend = Addend::Other;
      expect_right(one);
      one.has_bias = false;
      expect_right(one);
    }
  }
}

TEST_F(GemmTest, AccumulatesInFloat32) {
  for (const Type type : kAllTypes) {
    for (const int64_t depth : {17, 64, 1000}) {
      const GemmCase one{.type = type,
                         .d_type = Type::Float32,
                         .rows = 128,
                         .columns = 96,
                         .depth = depth,
                         .is_a_transposed = true,
                         .addend = Addend::Itself};
      SCOPED_TRACE(text_of(one));
      Bench bench(one, *random_);
      bench.run(*gemms_);
      bench.expect_right(1e-5);
    }
  }
}

TEST_F(GemmTest, AppliesGeluWithAndWithoutKeepingItsInput) {
  for (const Type type : kShortTypes) {
    for (const bool has_bias : {false, true}) {
      for (const bool has_auxiliary : {false, true}) {
        for (const int64_t rows : {17, 128}) {
          expect_right({.type = type,
                        .d_type = type,
                        .rows = rows,
                        .columns = 256,
                        .depth = 64,
                        .has_bias = has_bias,
                        .epilogue = Epilogue::Gelu,
                        .has_auxiliary = has_auxiliary});
        }
      }
    }
  }
}

TEST_F(GemmTest, MultipliesByTheSlopeOfGelu) {
  for (const Type type : kShortTypes) {
    for (const bool is_b_transposed : {false, true}) {
      for (const int64_t rows : {17, 128}) {
        expect_right({.type = type,
                      .d_type = type,
                      .rows = rows,
                      .columns = 256,
                      .depth = 64,
                      .is_b_transposed = is_b_transposed,
                      .epilogue = Epilogue::GeluBackward,
                      .has_auxiliary = true});
      }
    }
  }
}

TEST_F(GemmTest, RoundsToTf32OnlyWhereAllowed) {
  const GemmCase one{
      .type = Type::Float32, .d_type = Type::Float32, .rows = 128, .columns = 256, .depth = 512};
  expect_right(one, 1e-5);
  Gemms rounding(workspace_->data(), /*allows_tf32=*/true);
  Bench bench(one, *random_);
  bench.run(rounding);
  bench.expect_right(2e-3);
}

TEST_F(GemmTest, GivesTheSameWhenItTimesItsAlgorithms) {
  for (const Type type : kAllTypes) {
    GemmCase one{
        .type = type, .d_type = type, .rows = 256, .columns = 192, .depth = 320, .has_bias = true};
    one.addend = Addend::Other;
    SCOPED_TRACE(text_of(one));
    Gemms timed(workspace_->data(), /*allows_tf32=*/false);
    timed.set_timing(true);
    Bench bench(one, *random_);
    bench.run(*gemms_);
    const std::vector<float> plain = bench.result();
    bench.restart();
    bench.run(timed);
    bench.expect_right(tolerance(type));
    EXPECT_LT(relative_error(bench.result(), std::vector<double>(plain.begin(), plain.end())),
              tolerance(type));
    ASSERT_EQ(timed.choices().size(), 1u);
    const GemmChoice choice = timed.choices()[0];
    EXPECT_FALSE(choice.shape.empty());
    EXPECT_GE(choice.candidates, 1);
    EXPECT_GT(choice.best_s, 0);
    EXPECT_GE(choice.first_s, choice.best_s * 0.5);
    EXPECT_GT(choice.tflops, 0);
  }
}

TEST_F(GemmTest, AccumulatesRightlyOnceItHasTimedTheShape) {
  const GemmCase one{.d_type = Type::Float32,
                     .rows = 128,
                     .columns = 192,
                     .depth = 320,
                     .is_a_transposed = true,
                     .addend = Addend::Itself};
  gemms_->set_timing(true);
  Bench bench(one, *random_);
  bench.run(*gemms_);  // rubbish: every run of the timing has added to it
  gemms_->set_timing(false);
  bench.restart();
  bench.run(*gemms_);
  bench.expect_right(1e-5);
}

TEST_F(GemmTest, ChoosesOncePerShape) {
  const GemmCase one{.rows = 64, .columns = 128, .depth = 64};
  GemmCase other = one;
  other.rows = 128;
  Bench first(one, *random_), second(other, *random_);
  first.run(*gemms_);
  first.run(*gemms_);
  ASSERT_EQ(gemms_->choices().size(), 1u);
  EXPECT_EQ(gemms_->choices()[0].best_s, 0) << "nothing was timed";
  second.run(*gemms_);
  EXPECT_EQ(gemms_->choices().size(), 2u);
  first.expect_right(tolerance(Type::BFloat16));
  second.expect_right(tolerance(Type::BFloat16));
}

TEST_F(GemmTest, RepeatsItsBits) {
  for (const Type type : kAllTypes) {
    const GemmCase one{.type = type,
                       .d_type = Type::Float32,
                       .rows = 96,
                       .columns = 64,
                       .depth = 4000,
                       .is_a_transposed = true,
                       .addend = Addend::Itself};
    Bench bench(one, *random_);
    bench.run(*gemms_);
    const std::vector<float> first = bench.result();
    bench.restart();
    bench.run(*gemms_);
    EXPECT_EQ(bench.result(), first);
  }
}

}  // namespace penstock::gpu
