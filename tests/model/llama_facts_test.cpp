#include <gtest/gtest.h>

#include "penstock/model/llama/facts.h"

namespace penstock::model {
namespace {

config::ModelOptions options(int64_t layers,
                             int64_t width,
                             int64_t heads,
                             int64_t kv_heads,
                             int64_t hidden,
                             int64_t vocabulary,
                             bool is_tied = false) {
  config::ModelOptions model;
  model.family = "llama";
  model.layers = layers;
  model.width = width;
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.hidden = hidden;
  model.vocabulary = vocabulary;
  model.tied = is_tied;
  return model;
}

TEST(LlamaFacts, ParametersAreThoseOfThePublishedModels) {
  EXPECT_EQ(llama_parameters(options(22, 2048, 32, 4, 5632, 32000)), 1'100'048'384);  // TinyLlama
  EXPECT_EQ(llama_parameters(options(16, 2048, 32, 8, 8192, 128256, true)), 1'235'814'400);  // 3.2
  EXPECT_EQ(llama_parameters(options(28, 3072, 24, 8, 8192, 128256, true)), 3'212'749'824);
  EXPECT_EQ(llama_parameters(options(32, 4096, 32, 0, 11008, 32000)), 6'738'415'616);  // 2
  EXPECT_EQ(llama_parameters(options(40, 5120, 40, 0, 13824, 32000)), 13'015'864'320);
  EXPECT_EQ(llama_parameters(options(80, 8192, 64, 8, 28672, 32000)), 68'976'648'192);
  EXPECT_EQ(llama_parameters(options(32, 4096, 32, 8, 14336, 128256)), 8'030'261'248);  // 3
  EXPECT_EQ(llama_parameters(options(80, 8192, 64, 8, 28672, 128256)), 70'553'706'496);
}

TEST(LlamaFacts, TheMlpIsAsWideAsLlama2sWhereNothingIsSaid) {
  EXPECT_EQ(llama_hidden(options(1, 4096, 32, 0, 0, 32000)), 11008);
  EXPECT_EQ(llama_hidden(options(1, 5120, 40, 0, 0, 32000)), 13824);
  EXPECT_EQ(llama_hidden(options(1, 96, 4, 0, 0, 256)), 256);
}

TEST(LlamaFacts, FlopPerTokenIsSixNPlusAttention) {
  config::ModelOptions model = options(22, 2048, 32, 4, 5632, 32000);
  model.context = 2048;
  const double multiplied = 1'100'048'384.0 - 32000 * 2048;  // the embedding's table is not
  EXPECT_DOUBLE_EQ(llama_flop_per_token(model), 6 * multiplied + 12.0 * 22 * 2048 * 2048);
}

}  // namespace
}  // namespace penstock::model
