#include "penstock/model/llama/facts.h"

namespace penstock::model {

int64_t llama_kv_heads(const config::ModelOptions& model) {
  return model.kv_heads > 0 ? model.kv_heads : model.heads;
}

int64_t llama_hidden(const config::ModelOptions& model) {
  constexpr int64_t kUnit = 256;
  return model.hidden > 0 ? model.hidden : (8 * model.width / 3 + kUnit - 1) / kUnit * kUnit;
}

int64_t llama_parameters(const config::ModelOptions& model) {
  const int64_t width = model.width;
  const int64_t kv_width = width / model.heads * llama_kv_heads(model);
  const int64_t attention = 2 * width * width + 2 * width * kv_width;
  const int64_t block = attention + 3 * width * llama_hidden(model) + 2 * width;
  const int64_t tables = model.tied ? 1 : 2;
  return tables * model.vocabulary * width + model.layers * block + width;
}

double llama_flop_per_token(const config::ModelOptions& model) {
  config::ModelOptions multiplied = model;
  multiplied.tied = true;
  const double attention = 12.0 * static_cast<double>(model.layers) *
                           static_cast<double>(model.width) * static_cast<double>(model.context);
  return 6.0 * static_cast<double>(llama_parameters(multiplied)) + attention;
}

}  // namespace penstock::model
