// Fused causal attention against softmax in float64, both ways.
#include "penstock/gpu/attention.h"

#include <algorithm>

#include "penstock/base/text.h"

#include "gpu/gpu_test.h"

namespace penstock::gpu {
namespace {

class AttentionTest : public GpuTest {};

constexpr Type kShortTypes[] = {Type::BFloat16, Type::Float16};

std::string text_of(const AttentionShape& shape) {
  return cat(name_of(shape.type),
             " B",
             shape.samples,
             " T",
             shape.tokens,
             " H",
             shape.heads,
             "/",
             shape.num_kv_heads(),
             " D",
             shape.head_width,
             shape.is_deterministic ? " deterministic" : "");
}

// Values, statistics and gradients as they should be, each in the layout of attention.h.
struct Reference {
  Reference(const AttentionShape& given,
            const std::vector<float>& qkv,
            const std::vector<float>& values_gradient)
      : shape(given),
        values(values_gradient.size()),
        statistics(static_cast<size_t>(given.samples * given.heads * given.tokens)),
        qkv_gradient(qkv.size()),
        rounding(qkv.size()) {
    for (int64_t sample = 0; sample < shape.samples; ++sample) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        for (int64_t row = 0; row < shape.tokens; ++row) {
          add_row(qkv, values_gradient, sample, head, row);
        }
      }
    }
  }

  // Where a head of queries (0), or the head of keys (1) or values (2) that it reads, begins.
  size_t packed(int64_t sample, int64_t token, int64_t part, int64_t head) const {
    const int64_t group = shape.heads / shape.num_kv_heads();
    const int64_t place =
        part == 0 ? head : shape.heads + (part - 1) * shape.num_kv_heads() + head / group;
    return static_cast<size_t>((sample * shape.tokens + token) * shape.qkv_width() +
                               place * shape.head_width);
  }
  size_t mixed(int64_t sample, int64_t token, int64_t head) const {
    return static_cast<size_t>(((sample * shape.tokens + token) * shape.heads + head) *
                               shape.head_width);
  }

  AttentionShape shape;
  std::vector<double> values, statistics, qkv_gradient;
  // Gradients per unit of rounding in the stored values, whose product with their gradient is what
  // backward takes from each slope: where slopes differ little, this and not the gradient is large.
  std::vector<double> rounding;

 private:
  // One query: its values, its log-sum-exp, and what it adds to the gradients.
  void add_row(const std::vector<float>& qkv,
               const std::vector<float>& values_gradient,
               int64_t sample,
               int64_t head,
               int64_t row) {
    const size_t width = static_cast<size_t>(shape.head_width);
    const double scale = 1 / std::sqrt(static_cast<double>(shape.head_width));
    const auto number = [](const std::vector<float>& from, size_t index) {
      return static_cast<double>(from[index]);
    };
    const size_t query = packed(sample, row, 0, head);
    const size_t out = mixed(sample, row, head);
    const size_t count = static_cast<size_t>(row) + 1;
    std::vector<double> weights(count), slopes(count);
    for (size_t t = 0; t < count; ++t) {
      const size_t key = packed(sample, static_cast<int64_t>(t), 1, head);
      for (size_t i = 0; i < width; ++i) {
        weights[t] += scale * number(qkv, query + i) * number(qkv, key + i);
      }
    }
    const double most = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) {
      weight = std::exp(weight - most);
      sum += weight;
    }
    statistics[static_cast<size_t>((sample * shape.heads + head) * shape.tokens + row)] =
        most + std::log(sum);
    double mean_slope = 0;
    double mean_magnitude = 0;
    for (size_t t = 0; t < count; ++t) {
      weights[t] /= sum;
      const size_t value = packed(sample, static_cast<int64_t>(t), 2, head);
      for (size_t i = 0; i < width; ++i) {
        values[out + i] += weights[t] * number(qkv, value + i);
        slopes[t] += number(values_gradient, out + i) * number(qkv, value + i);
        qkv_gradient[value + i] += weights[t] * number(values_gradient, out + i);
      }
      mean_slope += weights[t] * slopes[t];
    }
    for (size_t i = 0; i < width; ++i) {
      const double term = number(values_gradient, out + i) * values[out + i];
      mean_magnitude += term * term;  // roundings have either sign: their squares add
    }
    mean_magnitude = std::sqrt(mean_magnitude);
    for (size_t t = 0; t < count; ++t) {
      const size_t key = packed(sample, static_cast<int64_t>(t), 1, head);
      const double slope = scale * weights[t] * (slopes[t] - mean_slope);
      const double unit = scale * weights[t] * mean_magnitude;
      for (size_t i = 0; i < width; ++i) {
        qkv_gradient[query + i] += slope * number(qkv, key + i);
        qkv_gradient[key + i] += slope * number(qkv, query + i);
        rounding[query + i] += unit * std::abs(number(qkv, key + i));
        rounding[key + i] += unit * std::abs(number(qkv, query + i));
      }
    }
  }
};

// One problem with its buffers. The workspace starts as NaN: its contents must not matter.
struct Bench {
  Bench(Attention& the_attention, const AttentionShape& given, Random& random)
      : attention(the_attention),
        shape(given),
        host_qkv(rounded(given.type, random.normal(qkv_count(given)))),
        host_gradient(rounded(given.type, random.normal(count_of(given)))),
        qkv(given.type, host_qkv),
        values_gradient(given.type, host_gradient),
        values(given.type, count_of(given)),
        qkv_gradient(given.type, qkv_count(given)),
        statistics(Type::Float32, given.samples * given.heads * given.tokens) {}

  static int64_t count_of(const AttentionShape& shape) {
    return shape.samples * shape.tokens * shape.heads * shape.head_width;
  }
  static int64_t qkv_count(const AttentionShape& shape) {
    return shape.samples * shape.tokens * shape.qkv_width();
  }

  void forward() {
    const DeviceBytes workspace(std::max<int64_t>(1, attention.forward_workspace_bytes(shape)));
    attention.forward(shape,
                      {.qkv = qkv.data(),
                       .values = values.data(),
                       .statistics = statistics.floats(),
                       .workspace = workspace.data()},
                      nullptr);
    EXPECT_TRUE(workspace.is_guard_intact());
  }
  void backward() {
    const DeviceBytes workspace(std::max<int64_t>(1, attention.backward_workspace_bytes(shape)));
    attention.backward(shape,
                       {.qkv = qkv.data(),
                        .values = values.data(),
                        .values_gradient = values_gradient.data(),
                        .statistics = statistics.floats(),
                        .qkv_gradient = qkv_gradient.data(),
                        .workspace = workspace.data()},
                       nullptr);
    EXPECT_TRUE(workspace.is_guard_intact());
  }

  Attention& attention;
  AttentionShape shape;
  std::vector<float> host_qkv, host_gradient;
  DeviceBuffer qkv, values_gradient, values, qkv_gradient, statistics;
};

// Queries, keys or values alone: an error in a small part must not hide behind a large one.
template <typename T>
std::vector<T> part_of(const std::vector<T>& packed, const AttentionShape& shape, int64_t part) {
  const int64_t kv_width = shape.num_kv_heads() * shape.head_width;
  const int64_t width = part == 0 ? shape.heads * shape.head_width : kv_width;
  const int64_t begin = part == 0 ? 0 : shape.heads * shape.head_width + (part - 1) * kv_width;
  std::vector<T> out;
  for (int64_t token = 0; token < shape.samples * shape.tokens; ++token) {
    const auto first = packed.begin() + token * shape.qkv_width() + begin;
    out.insert(out.end(), first, first + width);
  }
  return out;
}

double unit_roundoff(Type type) {
  return type == Type::BFloat16 ? 0x1p-8 : 0x1p-11;
}

double norm_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) {
    sum += value * value;
  }
  return std::sqrt(sum);
}

void expect_right(Attention& attention, const AttentionShape& shape, Random& random) {
  SCOPED_TRACE(text_of(shape));
  ASSERT_TRUE(can_attend(shape));
  Bench bench(attention, shape, random);
  const Reference reference(shape, bench.host_qkv, bench.host_gradient);
  bench.forward();
  EXPECT_LT(relative_error(bench.values.download(), reference.values), tolerance(shape.type));
  EXPECT_TRUE(bench.values.is_guard_intact());
  EXPECT_LT(relative_error(bench.statistics.download(), reference.statistics), 1e-3);
  EXPECT_TRUE(bench.statistics.is_guard_intact());

  bench.backward();
  EXPECT_TRUE(bench.qkv_gradient.is_guard_intact());
  const std::vector<float> gradient = bench.qkv_gradient.download();
  EXPECT_LT(relative_error(gradient, reference.qkv_gradient), tolerance(shape.type));
  const double whole = norm_of(reference.qkv_gradient);
  for (int64_t part = 0; part < 3; ++part) {
    const std::vector<double> expected = part_of(reference.qkv_gradient, shape, part);
    const double norm = norm_of(expected);
    // With one token queries and keys have no gradient: nothing to be relative to.
    if (norm > 1e-3 * whole) {
      const double rounding =
          2 * unit_roundoff(shape.type) * norm_of(part_of(reference.rounding, shape, part)) / norm;
      EXPECT_LT(relative_error(part_of(gradient, shape, part), expected),
                2 * tolerance(shape.type) + rounding)
          << "part " << part << ", of which " << rounding << " for the rounded values";
    }
  }
  EXPECT_EQ(bench.qkv.download(), bench.host_qkv) << "the input was written";
}

const std::vector<AttentionShape>& shapes() {
  static const std::vector<AttentionShape> all{
      {.samples = 1, .tokens = 2, .heads = 1, .head_width = 64},
      {.samples = 2, .tokens = 7, .heads = 3, .head_width = 64},
      {.samples = 3, .tokens = 17, .heads = 4, .head_width = 16},
      {.samples = 1, .tokens = 64, .heads = 12, .head_width = 64},
      {.samples = 1, .tokens = 65, .heads = 2, .head_width = 80},
      {.samples = 3, .tokens = 130, .heads = 2, .head_width = 32},
      {.samples = 2, .tokens = 256, .heads = 4, .head_width = 128},
      {.samples = 1, .tokens = 333, .heads = 2, .head_width = 64},
      {.samples = 2, .tokens = 130, .heads = 4, .head_width = 64, .kv_heads = 2},
      {.samples = 3, .tokens = 17, .heads = 6, .head_width = 32, .kv_heads = 1},
      {.samples = 1, .tokens = 256, .heads = 8, .head_width = 128, .kv_heads = 2},
      {.samples = 2, .tokens = 65, .heads = 4, .head_width = 16, .kv_heads = 4}};
  return all;
}

}  // namespace

TEST_F(AttentionTest, MatchesFloat64BothWaysForAnyShape) {
  Random random;
  Attention attention;
  for (AttentionShape shape : shapes()) {
    for (const Type type : kShortTypes) {
      for (const bool is_deterministic : {false, true}) {
        shape.type = type;
        shape.is_deterministic = is_deterministic;
        expect_right(attention, shape, random);
      }
    }
  }
}

// What can_attend promises must hold for a single token as well: generation and odd recipes ask.
TEST_F(AttentionTest, GoesBothWaysForASingleTokenOrSaysThatItCannot) {
  Random random;
  Attention attention;
  for (const Type type : kShortTypes) {
    for (const bool is_deterministic : {false, true}) {
      const AttentionShape shape{.type = type,
                                 .samples = 1,
                                 .tokens = 1,
                                 .heads = 2,
                                 .head_width = 64,
                                 .is_deterministic = is_deterministic};
      if (can_attend(shape)) {
        expect_right(attention, shape, random);
      }
    }
  }
}

TEST_F(AttentionTest, LooksAtNoLaterToken) {
  Random random;
  Attention attention;
  const AttentionShape shape{.samples = 1, .tokens = 40, .heads = 2, .head_width = 32};
  Bench bench(attention, shape, random);
  bench.forward();
  const std::vector<float> before = bench.values.download();
  std::vector<float> changed = bench.host_qkv;
  const int64_t from = 25;
  for (size_t i = static_cast<size_t>(from * 3 * 2 * 32); i < changed.size(); ++i) {
    changed[i] = -changed[i];
  }
  bench.qkv.upload(changed);
  bench.values.poison();
  bench.forward();
  const std::vector<float> after = bench.values.download();
  const auto first = from * 2 * 32;
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + first, after.begin()));
  EXPECT_FALSE(std::equal(before.begin() + first, before.end(), after.begin() + first));
}

TEST_F(AttentionTest, RepeatsItsBitsWhereItIsDeterministic) {
  Random random;
  Attention attention;
  for (AttentionShape shape : shapes()) {
    for (const Type type : kShortTypes) {
      shape.type = type;
      shape.is_deterministic = true;
      SCOPED_TRACE(text_of(shape));
      Bench bench(attention, shape, random);
      bench.forward();
      bench.backward();
      const auto values = bench.values.bits();
      const auto statistics = bench.statistics.bits();
      const auto gradient = bench.qkv_gradient.bits();
      for (int run = 0; run < 3; ++run) {
        bench.values.poison();
        bench.statistics.poison();
        bench.qkv_gradient.poison();
        bench.forward();
        bench.backward();
        EXPECT_EQ(bench.values.bits(), values);
        EXPECT_EQ(bench.statistics.bits(), statistics);
        EXPECT_EQ(bench.qkv_gradient.bits(), gradient);
      }
    }
  }
}

TEST_F(AttentionTest, TakesRowsOfOneValue) {  // softmax over equal scores is their mean
  Attention attention;
  const AttentionShape shape{.samples = 1, .tokens = 32, .heads = 1, .head_width = 64};
  const std::vector<float> ones(static_cast<size_t>(3 * Bench::count_of(shape)), 1.0f);
  Random random(1);
  Bench bench(attention, shape, random);
  bench.qkv.upload(ones);
  bench.forward();
  for (const float value : bench.values.download()) {
    EXPECT_NEAR(value, 1.0f, 1e-2f);
  }
  // Row t sums t + 1 terms of exp(64 / 8).
  const std::vector<float> statistics = bench.statistics.download();
  for (size_t t = 0; t < statistics.size(); ++t) {
    EXPECT_NEAR(statistics[t], 8 + std::log(static_cast<double>(t + 1)), 1e-3);
  }
}

TEST_F(AttentionTest, RefusesFloat32AndHeadsThatCudnnDoesNotTake) {
  const AttentionShape good{.samples = 1, .tokens = 64, .heads = 2, .head_width = 64};
  EXPECT_TRUE(can_attend(good));
  AttentionShape other = good;
  other.type = Type::Float32;
  EXPECT_FALSE(can_attend(other));
  other = good;
  other.head_width = 12;
  EXPECT_FALSE(can_attend(other));
  other.head_width = 136;
  EXPECT_FALSE(can_attend(other));
  other = good;
  other.kv_heads = 1;
  EXPECT_TRUE(can_attend(other));
  other.heads = 3;
  other.kv_heads = 2;
  EXPECT_FALSE(can_attend(other));
  other = good;
  other.head_width = 128;
  other.type = Type::Float16;
  EXPECT_TRUE(can_attend(other));
}

}  // namespace penstock::gpu
