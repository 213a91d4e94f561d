// 1-bit compression of vectors, with error feedback (Seide et al., 2014; Tang et al., 2021). A
// block of values becomes the sign of each and one scale, the root of their mean square; what that
// leaves out is kept as an error, and added to what is sent next. See docs/onebit.md.
//
// An element may be dead: it has had no gradient, so that nothing is known of its variance. It is
// sent as anything, read as zero, and takes no part in the scale.
#pragma once

#include <cstdint>

#include "penstock/kernels/optimizers.h"

namespace penstock::kernels {

// The most elements that share a scale: 4 bytes of scale beside 64 bytes of signs. Few, so that the
// noise of an element is that of its neighbours, not of the largest tensor's.
inline constexpr int64_t kSignBlock = 512;

// Of a bit for each element; bit i % 8 of byte i / 8 is that of element i.
constexpr int64_t bit_bytes(int64_t count) {
  return (count + 7) / 8;
}

// Bits of a block's elements that are alive; null: all are.
using Alive = const uint8_t*;

// Up to kSignBlock elements. error += factor * values is what is to be sent; `signs` gets its signs
// (a set bit: not negative) and `error` what they leave out. Returns the scale.
float compress_signs(
    const float* values, float factor, Alive alive, int64_t count, float* error, uint8_t* signs);

// sum += scale * sign, and values = scale * sign, 0 where dead.
void add_signs(const uint8_t* signs, float scale, int64_t count, float* sum);
void expand_signs(const uint8_t* signs, float scale, Alive alive, int64_t count, float* values);

// What compression becomes where nothing need be compressed: values + error + other_error, 0 where
// dead, and no error is left.
void take_errors(float* values, float* error, float* other_error, Alive alive, int64_t count);

// Sets the bits of elements whose mean square is not zero; others are left as they are. The bits
// begin `first` elements into `bits`.
void mark_alive(const float* mean_square, int64_t count, uint8_t* bits, int64_t first);

// The sum of values, each with a sign that follows from `seed` and its place. Over all seeds, the
// mean of its square is the sum of squares; and such sums can be added up over replicas, which
// squares cannot.
double sum_with_signs(const float* values, int64_t count, uint64_t seed);

// The updates of optimizers whose variance is frozen. `settings` are AdamW's, with a bias correction
// of the variance that no longer follows the number of the step.

// mean += (1 - beta1) * (gradient_scale * gradients - mean)
void blend_mean(float* mean,
                const float* gradients,
                int64_t count,
                float gradient_scale,
                float one_minus_beta1);

// AdamW's step with the moments as they are; dead elements only decay.
void frozen_adam_update(float* weights,
                        const float* mean,
                        const float* mean_square,
                        int64_t count,
                        const AdamSettings& settings);

// Local steps have moved `weights` away from `start`, by `rate` in all. Overwrites the weights with
// the mean momentum that would have done it; and, once that has been averaged over replicas, with
// start * keep moved by the average, which also becomes the mean.
struct LocalSteps {
  float rate;  // the sum of their learning rates, each over the bias correction of its mean
  float keep;  // the product of what weight decay leaves
};
void momentum_of_local_steps(float* weights,
                             const float* start,
                             const float* mean_square,
                             int64_t count,
                             const AdamSettings& settings,
                             const LocalSteps& steps);
void move_together(float* weights,
                   float* mean,
                   const float* start,
                   const float* mean_square,
                   int64_t count,
                   const AdamSettings& settings,
                   const LocalSteps& steps);

// LAMB's: weights -= rate * (Adam's direction + weight decay), with the moments as they are.
void lamb_move(float* weights,
               const float* mean,
               const float* mean_square,
               int64_t count,
               const AdamSettings& settings,
               float rate);

}  // namespace penstock::kernels
