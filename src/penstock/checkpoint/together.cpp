#include "penstock/checkpoint/together.h"

#include <span>
#include <utility>
#include <vector>

#include "penstock/base/error.h"

namespace penstock::checkpoint {

namespace {

// How a rank fared.
constexpr double kWell = 0;
constexpr double kFileError = 1;
constexpr double kCheckpointError = 2;
constexpr double kConfigError = 3;

}  // namespace

void run_together(comm::Group& group, const comm::What& what, const std::function<void()>& work) {
  double own = kWell;
  std::string message;
  try {
    work();
  } catch (const FileError& error) {
    own = kFileError;
    message = error.what();
  } catch (const CheckpointError& error) {
    own = kCheckpointError;
    message = error.what();
  } catch (const ConfigError& error) {
    own = kConfigError;
    message = error.what();
  }
  const std::vector<double> outcomes = group.all_gather(std::span(&own, 1), what);
  for (int32_t rank = 0; rank < group.size(); ++rank) {
    const double outcome = outcomes[static_cast<size_t>(rank)];
    if (outcome == kWell) {
      continue;
    }
    message = share_text(group, rank, std::move(message), what);
    if (outcome == kFileError) {
      throw FileError(message);
    }
    if (outcome == kConfigError) {
      throw ConfigError(message);
    }
    throw CheckpointError(message);
  }
}

std::string share_text(comm::Group& group, int32_t root, std::string text, const comm::What& what) {
  int64_t size = static_cast<int64_t>(text.size());
  group.broadcast(root, &size, sizeof size, what);
  text.resize(static_cast<size_t>(size));
  group.broadcast(root, text.data(), size, what);
  return text;
}

}  // namespace penstock::checkpoint
