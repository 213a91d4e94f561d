// What a load costs beside what is loaded.
#include <fstream>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "penstock/checkpoint/checkpoint.h"
#include "penstock/memory/cpu_allocator.h"
#include "penstock/model/gpt2/gpt2.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"

#include "support/temp_folder.h"

namespace penstock::checkpoint {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// A line of /proc/self/status, in bytes.
int64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) {
      return 1024 * std::stoll(line.substr(key.size() + 1));
    }
  }
  return 0;
}

// Makes VmHWM count from now on.
bool restart_resident_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

config::Recipe large_recipe(const std::filesystem::path& out) {
  config::Recipe recipe;
  recipe.model = {
      .layers = 4, .width = 512, .heads = 8, .context = 64, .vocabulary = 1000, .dropout = 0};
  recipe.run.out = out.string();
  return recipe;
}

model::Chain chain_of(const config::ModelOptions& model) {
  return model::make_gpt2({.layers = model.layers,
                           .width = model.width,
                           .heads = model.heads,
                           .context = model.context,
                           .vocabulary = model.vocabulary});
}

TEST(LoadMemory, IsTheShareOfTheRankAndAFewMebibytes) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer has memory of its own";
#endif
  const test::TempFolder folder;
  const config::Recipe recipe = large_recipe(folder.path());
  const model::Chain chain = chain_of(recipe.model);
  std::filesystem::path saved;
  {
    const model::Parameters parameters(chain, at::kFloat, /*seed=*/1);
    const auto optimizer = optim::make_optimizer(recipe.train, parameters);
    saved = save(recipe, chain, parameters, *optimizer, {.step = 1});
  }
  ASSERT_GT(std::filesystem::file_size(saved / "optimizer.safetensors"), 100'000'000u);

  // One of four replicas that have a quarter of everything.
  const model::Replication replication{
      .shard = program::Shard::Parameters,
      .replicas = 4,
      .replica = 1,
      .units = model::make_units(chain, {0, static_cast<int32_t>(chain.size())}, 0)};
  model::Parameters parameters(
      chain, chain.whole(), at::kFloat, /*seed=*/2, device::open_cpu(), replication);
  const auto optimizer = optim::make_optimizer(recipe.train, parameters);
  for (const optim::StateBuffer& buffer : optimizer->state()) {
    at::Tensor(buffer.flat).fill_(1);  // so that its pages are there
  }
  memory::release_cpu_cache();
  memory::Account& account = memory::process_account();
  const int64_t held = account.usage().current_bytes;
  account.restart_peak();
  ASSERT_TRUE(restart_resident_peak());
  const int64_t resident = status_bytes("VmRSS");
  ASSERT_GT(resident, 0);

  load(saved, recipe, parameters, *optimizer);

  EXPECT_EQ(account.usage().peak_bytes, held);
  EXPECT_LT(status_bytes("VmHWM"), resident + 16 * kMiB);
  const model::Segment& segment = parameters.segments().front();
  EXPECT_EQ(
      optimizer->state()[0].flat.narrow(0, segment.offset, segment.count).abs().max().item<float>(),
      0);
}

}  // namespace
}  // namespace penstock::checkpoint
