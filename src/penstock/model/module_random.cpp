#include "penstock/model/module_random.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "penstock/base/philox.h"
#include "penstock/memory/cpu_allocator.h"

namespace penstock::model {

namespace {

std::recursive_mutex& generator_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

uint64_t seed_of(const Pass& pass) {
  // One step of splitmix64 for each number, so that neighbours have nothing in common.
  uint64_t mixed = pass.seed;
  for (const int64_t number : {pass.step, pass.first_sample, pass.layer}) {
    mixed += 0x9e3779b97f4a7c15 + static_cast<uint64_t>(number);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    mixed ^= mixed >> 31;
  }
  return mixed;
}

// 5 KB, which are no part of a step.
at::Tensor generator_state() {
  static thread_local memory::Account& aside = memory::make_account();
  const memory::AccountScope scope(aside);
  return at::detail::getDefaultCPUGenerator().get_state();
}

}  // namespace

bool has_dropout(const torch::nn::Module& module) {
  bool found = false;
  module.apply([&](const torch::nn::Module& part) {
    found = found || part.name().find("Dropout") != std::string::npos;
  });
  return found;
}

bool draws_random_numbers(const std::function<void()>& call) {
  const std::lock_guard lock(generator_mutex());
  const at::Tensor before = generator_state();
  call();
  return !at::equal(before, generator_state());
}

RandomScope::RandomScope(uint64_t seed) : lock_(generator_mutex()) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> own(generator.mutex());
  generator.set_current_seed(seed);
}

RandomScope::RandomScope(const Pass& pass) : RandomScope(seed_of(pass)) {}

}  // namespace penstock::model
