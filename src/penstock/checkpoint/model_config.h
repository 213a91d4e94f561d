// config.json beside the weights: what Hugging Face's from_pretrained needs to build the model.
#pragma once

#include <filesystem>
#include <string>

#include "penstock/config/recipe.h"

namespace penstock::checkpoint {

std::string hugging_face_config(const config::ModelOptions& model, const std::string& tokenizer);

// Where a config.json lies beside the weights, in `folder`, checks that it describes the recipe's
// model: a wrong number of heads, say, shows in no shape. Throws CheckpointError naming the key.
void require_same_model(const std::filesystem::path& folder, const config::ModelOptions& model);

}  // namespace penstock::checkpoint
