// What every schedule owes, whoever wrote it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "penstock/plan/lower.h"
#include "penstock/program/verify.h"

namespace penstock::test {

// Every layer goes backward once, from the last to the first, and was kept once before that.
inline void expect_contract(const plan::CostTable& table, const plan::Operations& operations) {
  using plan::OperationKind;
  const int32_t layers = static_cast<int32_t>(table.layers.size());
  std::vector<int> kept(table.layers.size(), 0);
  int32_t next_backward = layers;  // the loss comes first
  for (const plan::Operation& operation : operations) {
    if (operation.kind == OperationKind::Loss || operation.kind == OperationKind::Backward) {
      const bool is_loss = operation.kind == OperationKind::Loss;
      ASSERT_EQ(is_loss, next_backward == layers);
      ASSERT_EQ(operation.layer, next_backward);
      ASSERT_TRUE(is_loss || kept[static_cast<size_t>(operation.layer)] == 1);
      --next_backward;
    } else if (operation.kind == OperationKind::ForwardAll) {
      ++kept[static_cast<size_t>(operation.layer)];
    }
  }
  EXPECT_EQ(next_backward, -1);
  EXPECT_EQ(std::count(kept.begin(), kept.end(), 1), layers);
}

// The highest bytes of the program of one micro-batch, which must be sound.
inline int64_t peak_of(const plan::CostTable& table, const plan::Operations& operations) {
  const program::Verdict verdict = program::verify(plan::lower(table, operations, 1, 0));
  EXPECT_TRUE(verdict.is_sound()) << verdict.violation->text;
  return verdict.is_sound() ? verdict.peaks[0].bytes : -1;
}

}  // namespace penstock::test
