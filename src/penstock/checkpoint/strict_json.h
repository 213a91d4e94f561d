// penstock/base/strict_json.h with this folder's error. For sources only: what is public here
// speaks no JSON.
#pragma once

#include <filesystem>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace penstock::checkpoint {

// Throws CheckpointError; it reads on from the name of what was parsed: "is not valid JSON ...".
nlohmann::json parse_strict_json(std::string_view text, int max_depth);

// The same for a file; the error begins with its path.
nlohmann::json read_strict_json(const std::filesystem::path& file, int max_depth);

}  // namespace penstock::checkpoint
