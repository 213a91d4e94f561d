// JSON from files that are not to be trusted. For sources only: what is public here speaks no JSON.
#pragma once

#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace penstock {

// Throws ConfigError when `text` is no JSON, repeats a key within an object, or nests deeper than
// `max_depth` (a lone object is depth 1). The error reads on from the name of what was parsed: "is
// not valid JSON ...".
nlohmann::json parse_strict_json(std::string_view text, int max_depth);

}  // namespace penstock
