#include "penstock/checkpoint/strict_json.h"

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/strict_json.h"

namespace penstock::checkpoint {

nlohmann::json parse_strict_json(std::string_view text, int max_depth) {
  try {
    return penstock::parse_strict_json(text, max_depth);
  } catch (const ConfigError& error) {
    throw CheckpointError(error.what());
  }
}

nlohmann::json read_strict_json(const std::filesystem::path& file, int max_depth) {
  try {
    return parse_strict_json(read_text_file(file), max_depth);
  } catch (const CheckpointError& error) {
    throw CheckpointError(cat(file.string(), " ", error.what()));
  }
}

}  // namespace penstock::checkpoint
