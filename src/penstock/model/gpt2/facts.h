// What is known of a GPT-2 from its options alone.
#pragma once

#include <cstdint>

#include "penstock/config/recipe.h"

namespace penstock::model {

int64_t gpt2_parameters(const config::ModelOptions& model);

// 6 N + 12 L d T: forward and backward, with all parameters in N, a token embedding's table that is
// not the head's left out, for nothing is multiplied by it; and with attention counted in full
// although half of it is masked. Recomputation does not count.
double gpt2_flop_per_token(const config::ModelOptions& model);

}  // namespace penstock::model
