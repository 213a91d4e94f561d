#include "penstock/data/loader.h"

#include <utility>

#include "penstock/base/error.h"

namespace penstock::data {

namespace {

LoaderOptions checked(const DatasetPtr& dataset, LoaderOptions options) {
  PENSTOCK_CHECK(dataset != nullptr, "no dataset");
  PENSTOCK_CHECK(options.batch > 0, "batch ", options.batch);
  PENSTOCK_CHECK(options.first_sample >= 0, "first sample ", options.first_sample);
  PENSTOCK_CHECK(options.ahead > 0, "ahead ", options.ahead);
  if (options.rows == -1) {
    options.rows = options.batch - options.first_row;
  }
  PENSTOCK_CHECK(options.first_row >= 0 && options.rows > 0 &&
                     options.rows <= options.batch - options.first_row,
                 "rows ",
                 options.first_row,
                 " + ",
                 options.rows,
                 " of ",
                 options.batch);
  return options;
}

}  // namespace

Loader::Loader(DatasetPtr dataset, LoaderOptions options)
    : dataset_(std::move(dataset)),
      options_(checked(dataset_, std::move(options))),
      fields_(chosen_fields(*dataset_, options_.fields)),
      order_(dataset_->samples(), options_.seed) {
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

int64_t Loader::bytes() const {
  int64_t sample = 0;
  for (const size_t field : fields_) {
    sample += dataset_->fields()[field].bytes();
  }
  return options_.ahead * options_.rows * sample;
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
    Batch batch{.first_sample = first,
                .samples = options_.batch,
                .first_row = options_.first_row,
                .rows = options_.rows};
    make_room(*dataset_, fields_, batch);
    for (int64_t row = 0; row < batch.rows; ++row) {
      // Asked per sample: a large batch from a cold disk can take seconds.
      if (stop.stop_requested()) {
        return;
      }
      read_row(*dataset_, fields_, order_.at(first + batch.first_row + row), row, batch);
    }
    read_bytes_ += batch.read_bytes;
    const std::lock_guard lock(mutex_);
    ready_.push_back(std::move(batch));
    changed_.notify_all();
  }
}

}  // namespace penstock::data
