#include "penstock/model/gpt2/facts.h"

namespace penstock::model {

int64_t gpt2_parameters(const config::ModelOptions& model) {
  const int64_t width = model.width;
  const int64_t block = 12 * width * width + 13 * width;  // matrices, biases, two norms
  const int64_t tables = model.tied ? 1 : 2;
  return (tables * model.vocabulary + model.context) * width + model.layers * block + 2 * width;
}

double gpt2_flop_per_token(const config::ModelOptions& model) {
  config::ModelOptions multiplied = model;
  multiplied.tied = true;
  const double attention = 12.0 * static_cast<double>(model.layers) *
                           static_cast<double>(model.width) * static_cast<double>(model.context);
  return 6.0 * static_cast<double>(gpt2_parameters(multiplied)) + attention;
}

}  // namespace penstock::model
