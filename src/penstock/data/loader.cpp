#include "penstock/data/loader.h"

#include <utility>

#include "penstock/base/error.h"

namespace penstock::data {

Loader::Loader(const Dataset& dataset, LoaderOptions options)
    : dataset_(dataset), options_(options), order_(dataset.samples(), options.seed) {
  PENSTOCK_CHECK(options_.batch > 0, "batch ", options_.batch);
  PENSTOCK_CHECK(options_.first_sample >= 0, "first sample ", options_.first_sample);
  PENSTOCK_CHECK(options_.ahead > 0, "ahead ", options_.ahead);
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

Batch Loader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !ready_.empty() || error_ != nullptr; });
  if (ready_.empty()) {
    std::rethrow_exception(error_);
  }
  Batch batch = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return batch;
}

void Loader::run(const std::stop_token& stop) {
  try {
    read_ahead(stop);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

void Loader::read_ahead(const std::stop_token& stop) {
  const auto has_room = [this] { return ready_.size() < static_cast<size_t>(options_.ahead); };
  for (int64_t first = options_.first_sample;; first += options_.batch) {
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, has_room)) {
        return;
      }
    }
    Batch batch = make_batch(dataset_, first, options_.batch);
    for (int64_t row = 0; row < options_.batch; ++row) {
      // Asked per sample: a large batch from a cold disk can take seconds.
      if (stop.stop_requested()) {
        return;
      }
      read_row(dataset_, order_.at(first + row), row, batch);
    }
    const std::lock_guard lock(mutex_);
    ready_.push_back(std::move(batch));
    changed_.notify_all();
  }
}

}  // namespace penstock::data
