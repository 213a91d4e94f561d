#include "penstock/kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/random_floats.h"

namespace penstock::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Reference {
  Reference(const std::vector<float>& logits, size_t target) {
    largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
    double sum = 0;
    for (const float logit : logits) {
      sum += std::exp(static_cast<double>(logit) - largest);
    }
    for (const float logit : logits) {
      probabilities.push_back(std::exp(static_cast<double>(logit) - largest) / sum);
    }
    loss = std::log(sum) + largest - static_cast<double>(logits[target]);
  }

  double largest = 0;
  double loss = 0;
  std::vector<double> probabilities;
};

// Loss and gradient against double precision, and the two variants against each other.
void expect_correct(const std::vector<float>& logits, size_t target, float scale) {
  const Reference reference(logits, target);
  const int64_t vocabulary = static_cast<int64_t>(logits.size());
  const std::vector<float> before = logits;
  const float loss = cross_entropy(logits.data(), vocabulary, static_cast<int64_t>(target));
  ASSERT_EQ(logits, before);
  if (std::isfinite(reference.loss)) {
    ASSERT_NEAR(loss, reference.loss, 1e-6 + 2e-7 * std::abs(reference.loss));
  } else {
    ASSERT_EQ(loss, kInfinity);
  }

  std::vector<float> gradient = logits;
  const float same_loss =
      cross_entropy_backward(gradient.data(), vocabulary, static_cast<int64_t>(target), scale);
  ASSERT_EQ(std::bit_cast<uint32_t>(same_loss), std::bit_cast<uint32_t>(loss));
  const double factor = static_cast<double>(scale);
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double probability = reference.probabilities[i];
    // Rounding of logit - largest weighs in proportion to it.
    const double distance = std::min(reference.largest - static_cast<double>(logits[i]), 100.0);
    const double tolerance = factor * (probability * (5e-7 + 6e-8 * distance) + 1e-36);
    const double expected = factor * (probability - (i == target ? 1 : 0));
    ASSERT_NEAR(gradient[i], expected, i == target ? factor * 1e-6 : tolerance) << i;
    sum += static_cast<double>(gradient[i]);
  }
  ASSERT_NEAR(sum, 0, factor * 1e-6);
}

TEST(CrossEntropy, MatchesDoublePrecisionForEveryShortRow) {
  for (size_t vocabulary = 1; vocabulary <= 70; ++vocabulary) {
    for (const float deviation : {0.1f, 3.0f, 30.0f}) {
      const std::vector<float> logits =
          random_floats(vocabulary, static_cast<uint32_t>(vocabulary), deviation);
      for (const size_t target : {size_t{0}, vocabulary / 2, vocabulary - 1}) {
        SCOPED_TRACE(testing::Message() << vocabulary << " logits, target " << target);
        ASSERT_NO_FATAL_FAILURE(expect_correct(logits, target, 0.125f));
      }
    }
  }
}

TEST(CrossEntropy, MatchesDoublePrecisionForTheVocabularyOfGpt2) {
  for (const float deviation : {0.02f, 1.0f, 10.0f}) {
    const std::vector<float> logits = random_floats(50257, 1, deviation);
    for (const size_t target : {size_t{0}, size_t{31337}, size_t{50256}}) {
      ASSERT_NO_FATAL_FAILURE(expect_correct(logits, target, 1.0f));
    }
  }
}

TEST(CrossEntropy, OfEqualLogitsIsTheLogarithmOfTheirNumber) {
  for (const size_t vocabulary : {1u, 2u, 16u, 17u, 1024u, 50257u}) {
    for (const float logit : {0.0f, -1e4f, 1e4f}) {
      const std::vector<float> logits(vocabulary, logit);
      const float loss = cross_entropy(logits.data(), static_cast<int64_t>(vocabulary), 0);
      EXPECT_NEAR(loss, std::log(static_cast<double>(vocabulary)), 2e-6) << vocabulary;
    }
  }
}

TEST(CrossEntropy, HugeLogitsStayFinite) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::vector<float> logits = random_floats(40, seed, 5000);
    logits[seed] = 1e4f;
    logits[39 - seed] = -1e4f;
    ASSERT_NO_FATAL_FAILURE(expect_correct(logits, seed, 1.0f));
    ASSERT_NO_FATAL_FAILURE(expect_correct(logits, 39 - seed, 1.0f));
  }
}

TEST(CrossEntropy, MinusInfinityIsAProbabilityOfZero) {
  std::vector<float> logits = random_floats(50, 3);
  logits[0] = logits[20] = logits[49] = -kInfinity;
  ASSERT_NO_FATAL_FAILURE(expect_correct(logits, 1, 1.0f));
  const float loss = cross_entropy(logits.data(), 50, 20);
  EXPECT_EQ(loss, kInfinity);
  std::vector<float> one(33, -kInfinity);
  one[32] = 5;
  EXPECT_EQ(cross_entropy(one.data(), 33, 32), 0.0f);
}

TEST(CrossEntropy, ANanIsNotHidden) {
  for (size_t at = 0; at < 40; ++at) {
    std::vector<float> logits = random_floats(40, 4);
    logits[at] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(cross_entropy(logits.data(), 40, 7))) << at;
    EXPECT_TRUE(std::isnan(cross_entropy_backward(logits.data(), 40, 7, 1.0f))) << at;
  }
}

TEST(CrossEntropy, ScaleMultipliesTheGradientAlone) {
  const std::vector<float> logits = random_floats(100, 5);
  std::vector<float> plain = logits, halved = logits;
  const float loss = cross_entropy_backward(plain.data(), 100, 3, 1.0f);
  EXPECT_EQ(cross_entropy_backward(halved.data(), 100, 3, 0.5f), loss);
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(halved[i], plain[i] / 2);
  }
}

}  // namespace
}  // namespace penstock::kernels
