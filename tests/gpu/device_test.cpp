// A run's checkpoint from the GPU and back, and what the GPU's account refuses.
#include "penstock/device/device.h"

#include <filesystem>

#include "penstock/checkpoint/checkpoint.h"
#include "penstock/memory/account.h"
#include "penstock/model/gpt2/gpu.h"
#include "penstock/model/parameters.h"
#include "penstock/optim/optimizer.h"

#include "gpu/gpu_model.h"
#include "support/error_text.h"
#include "support/temp_folder.h"

namespace penstock::device {

namespace {

using test::gpu;

class GpuCheckpoint : public test::OnGpu<> {};
class GpuMemory : public test::OnGpu<> {};

config::Recipe small_recipe(const std::filesystem::path& out) {
  config::Recipe recipe;
  recipe.model = {
      .layers = 2, .width = 64, .heads = 4, .context = 32, .vocabulary = 257, .dropout = 0};
  recipe.run.out = out.string();
  return recipe;
}

// Everything a checkpoint holds, on one device.
struct TestRun {
  TestRun(const config::Recipe& recipe, const Device& device, at::ScalarType type, uint64_t seed)
      : shape{.layers = recipe.model.layers,
              .width = recipe.model.width,
              .heads = recipe.model.heads,
              .context = recipe.model.context,
              .vocabulary = recipe.model.vocabulary},
        chain(device.is_gpu() ? model::make_gpt2_for_gpu(shape, device.gpu)
                              : model::make_gpt2(shape)),
        parameters(chain, type, seed, device),
        optimizer(optim::make_optimizer(recipe.train, parameters)) {
    for (const optim::StateBuffer& buffer : optimizer->state()) {
      for (const model::Parameter& parameter : parameters.all()) {
        at::Tensor(buffer.flat)
            .narrow(0, parameter.offset, parameter.spec.count())
            .copy_(test::random_tensor({parameter.spec.count()}, ++seed));
      }
    }
  }

  model::Gpt2Shape shape;
  model::Chain chain;
  model::Parameters parameters;
  std::unique_ptr<optim::Optimizer> optimizer;
};

void expect_same(const TestRun& one, const TestRun& other) {
  const auto packed = [](const TestRun& run, const at::Tensor& flat) {
    return test::packed(run.parameters, flat);
  };
  EXPECT_TRUE(at::equal(packed(one, one.parameters.flat_weights()),
                        packed(other, other.parameters.flat_weights())));
  EXPECT_TRUE(at::equal(packed(one, one.parameters.flat_compute()),
                        packed(other, other.parameters.flat_compute())));
  ASSERT_EQ(one.optimizer->state().size(), other.optimizer->state().size());
  for (size_t i = 0; i < one.optimizer->state().size(); ++i) {
    EXPECT_TRUE(at::equal(packed(one, one.optimizer->state()[i].flat),
                          packed(other, other.optimizer->state()[i].flat)));
  }
  EXPECT_EQ(one.optimizer->steps_done(), other.optimizer->steps_done());
}

constexpr int64_t kMebibyte = int64_t{1} << 20;

at::Tensor bytes_on_gpu(int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions(gpu(false).where).dtype(at::kByte));
}

}  // namespace

TEST_F(GpuCheckpoint, GoesFromTheGpuToTheCpuAndBackBitForBit) {
  const test::TempFolder folder;
  const config::Recipe recipe = small_recipe(folder.path());
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    TestRun first(recipe, gpu(false), type, 1), between(recipe, open_cpu(), type, 2),
        last(recipe, gpu(false), type, 3);
    first.optimizer->set_steps_done(7);
    const auto from_gpu =
        checkpoint::save(recipe, first.chain, first.parameters, *first.optimizer, {.step = 7});
    EXPECT_EQ(checkpoint::load(from_gpu, recipe, between.parameters, *between.optimizer).step, 7);
    expect_same(between, first);
    const auto from_cpu = checkpoint::save(
        recipe, between.chain, between.parameters, *between.optimizer, {.step = 8});
    EXPECT_EQ(checkpoint::load(from_cpu, recipe, last.parameters, *last.optimizer).step, 8);
    expect_same(last, first);
    EXPECT_TRUE(last.parameters.flat_weights().is_cuda());
    std::filesystem::remove_all(from_gpu);
    std::filesystem::remove_all(from_cpu);
  }
}

TEST_F(GpuMemory, CountsWhatTensorsOccupy) {
  memory::Account& account = gpu(false).account();
  EXPECT_FALSE(account.is_cpu());
  const int64_t before = account.usage().current_bytes;
  {
    const memory::PeakMark mark(account);
    EXPECT_EQ(mark.start_bytes(), before);
    at::Tensor one = bytes_on_gpu(1000);
    const at::Tensor other = bytes_on_gpu(3 * kMebibyte);
    EXPECT_EQ(account.usage().current_bytes - before, 1024 + 3 * kMebibyte);
    one.reset();
    EXPECT_EQ(account.usage().current_bytes - before, 3 * kMebibyte);
    EXPECT_EQ(mark.peak_bytes() - before, 1024 + 3 * kMebibyte);
    {
      const memory::PeakMark inner(account);
      const at::Tensor third = bytes_on_gpu(512);
      EXPECT_EQ(inner.peak_bytes() - before, 512 + 3 * kMebibyte);
    }
    EXPECT_EQ(mark.peak_bytes() - before, 1024 + 3 * kMebibyte) << "marks nest";
  }
  EXPECT_EQ(account.usage().current_bytes, before);
}

TEST_F(GpuMemory, RefusesWhatGoesOverTheLimitAndServesAgainWithoutIt) {
  memory::Account& account = gpu(false).account();
  const memory::AccountScope scope(account);
  const int64_t held = account.usage().current_bytes;
  const int64_t limit = held + 128 * kMebibyte;
  const auto ask = [] {
    return memory::refuse_over_limit([] { return bytes_on_gpu(1024 * kMebibyte); });
  };
  account.set_limit(limit);
  EXPECT_EQ(account.limit_bytes(), limit);
  try {
    ask();
    ADD_FAILURE() << "nothing was refused";
  } catch (const memory::LimitError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::Negative);
    EXPECT_EQ(error.limit_bytes(), limit);
    EXPECT_GT(error.held_bytes() + error.asked_bytes(), limit);
  } catch (...) {
    account.set_limit(0);
    throw;
  }
  EXPECT_EQ(account.usage().current_bytes, held) << "a refusal changes nothing";
  EXPECT_NO_THROW(memory::refuse_over_limit([] { return bytes_on_gpu(16 * kMebibyte); }))
      << "what fits is served";
  account.set_limit(0);
  EXPECT_EQ(account.limit_bytes(), 0);
  EXPECT_EQ(ask().numel(), 1024 * kMebibyte);
}

TEST_F(GpuMemory, SaysWhoHoldsTheMemoryWhenTheDeviceIsFull) {
  memory::Account& account = gpu(false).account();
  const memory::AccountScope scope(account);
  account.set_limit(0);
  const int64_t held = account.usage().current_bytes;
  const auto ask = [] {
    memory::refuse_over_limit([] { return bytes_on_gpu(int64_t{10} << 40); });
  };
  const std::string text = test::error_text<Error>(ask);
  for (const char* part : {"out of memory", "nvidia-smi"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  try {
    ask();
  } catch (const memory::LimitError&) {
    ADD_FAILURE() << "no limit was set";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::Negative);
  }
  EXPECT_EQ(account.usage().current_bytes, held);
  EXPECT_EQ(bytes_on_gpu(kMebibyte).numel(), kMebibyte) << "the device works on";
}

}  // namespace penstock::device
