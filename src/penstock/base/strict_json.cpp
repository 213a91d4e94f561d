#include "penstock/base/strict_json.h"

#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "penstock/base/error.h"
#include "penstock/base/quote.h"

namespace penstock {

using nlohmann::json;

namespace {

// Watches the parser and stops it: the library itself keeps the last of repeated keys and nests
// without limit.
class Watch {
 public:
  explicit Watch(int max_depth) : max_depth_(max_depth) {}

  void on_event(int depth, json::parse_event_t event, const json& value) {
    switch (event) {
      case json::parse_event_t::object_start:
        check_depth(depth);
        keys_.emplace_back();
        break;
      case json::parse_event_t::array_start:
        check_depth(depth);
        break;
      case json::parse_event_t::key:
        check_key(value.get_ref<const std::string&>());
        break;
      case json::parse_event_t::object_end:
        keys_.pop_back();
        break;
      default:
        break;
    }
  }

 private:
  void check_depth(int depth) const {
    if (depth >= max_depth_) {
      throw ConfigError(cat("is nested deeper than ", max_depth_, " levels"));
    }
  }
  void check_key(const std::string& key) {
    if (!keys_.back().insert(key).second) {
      throw ConfigError(cat("repeats the key ", in_quotes(key)));
    }
  }

  int max_depth_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

json parse_strict_json(std::string_view text, int max_depth) {
  if (!is_valid_utf8(text)) {
    throw ConfigError("is not valid UTF-8");
  }
  // The library takes a zero byte for the end of its input and would ignore the rest.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    throw ConfigError(cat("is not valid JSON: zero byte at byte ", zero));
  }
  Watch watch(max_depth);
  try {
    return json::parse(text, [&](int depth, json::parse_event_t event, const json& value) {
      watch.on_event(depth, event, value);
      return true;
    });
  } catch (const json::parse_error& error) {
    throw ConfigError(cat("is not valid JSON near byte ", error.byte));
  } catch (const json::out_of_range&) {
    throw ConfigError("is not valid JSON: number out of range");
  }
}

}  // namespace penstock
