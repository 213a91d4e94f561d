// What is known of a Llama from its options alone.
#pragma once

#include <cstdint>

#include "penstock/config/recipe.h"

namespace penstock::model {

int64_t llama_kv_heads(const config::ModelOptions& model);

// 8/3 of the width, in multiples of 256, where the recipe does not say.
int64_t llama_hidden(const config::ModelOptions& model);

int64_t llama_parameters(const config::ModelOptions& model);

// 6 N + 12 L d T, as for GPT-2: a table that only embeds is left out, attention is counted in full.
double llama_flop_per_token(const config::ModelOptions& model);

}  // namespace penstock::model
