#include "penstock/checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <initializer_list>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "penstock/base/checksum.h"
#include "penstock/base/error.h"
#include "penstock/base/file.h"
#include "penstock/base/quote.h"
#include "penstock/checkpoint/strict_json.h"

namespace penstock::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr int kManifestDepth = 3;  // manifest, files, file

template <typename... Parts>
[[noreturn]] void fail_damaged(const std::string& checkpoint, const Parts&... parts) {
  throw damaged(checkpoint, cat(parts...));
}

// What the manifest's own checksum is taken over, as compact JSON with the keys in this order.
ordered_json content_of(const Manifest& manifest) {
  ordered_json files = ordered_json::array();
  for (const FileRecord& file : manifest.files) {
    files.push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"crc32c", checksum_text(file.crc32c)}});
  }
  ordered_json content{{"format", manifest.format},
                       {"step", manifest.step},
                       {"penstock_version", manifest.penstock_version},
                       {"torch_version", manifest.torch_version},
                       {"created", manifest.created}};
  if (manifest.loss_scale) {
    content["loss_scale"] = {{"scale", manifest.loss_scale->scale},
                             {"clean_steps", manifest.loss_scale->clean_steps},
                             {"hysteresis_left", manifest.loss_scale->hysteresis_left}};
  }
  content["files"] = std::move(files);
  return content;
}

uint32_t checksum_of(const ordered_json& content) {
  const std::string text = content.dump();
  return crc32c(text.data(), text.size());
}

bool is_timestamp(std::string_view text) {
  constexpr std::string_view pattern = "0000-00-00T00:00:00Z";
  return std::equal(
      text.begin(), text.end(), pattern.begin(), pattern.end(), [](char letter, char expected) {
        return expected == '0' ? letter >= '0' && letter <= '9' : letter == expected;
      });
}

// Reads the fields of one object; each error says which object and field.
class FieldReader {
 public:
  FieldReader(const std::string& checkpoint,
              std::string where,
              const json& object,
              std::initializer_list<const char*> fields,
              std::initializer_list<const char*> optional_fields = {})
      : checkpoint_(checkpoint), where_(std::move(where)), object_(object) {
    if (!object.is_object()) {
      fail("is no JSON object");
    }
    for (const char* field : fields) {
      if (!object.contains(field)) {
        fail("has no field \"", field, "\"");
      }
    }
    for (const auto& [key, unused] : object.items()) {
      if (!is_among(fields, key) && !is_among(optional_fields, key)) {
        fail("has an unknown field ", in_quotes(key));
      }
    }
  }

  // Null where an optional field is left out.
  const json* find(const char* field) const {
    const auto found = object_.find(field);
    return found == object_.end() ? nullptr : &*found;
  }

  int64_t count(const char* field) const {
    const json& value = object_[field];
    constexpr auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (!value.is_number_unsigned() || value.get<uint64_t>() > most) {
      fail("has a \"", field, "\" that is no whole number from 0 up");
    }
    return value.get<int64_t>();
  }

  double positive(const char* field) const {
    const json& value = object_[field];
    const double number = value.is_number() ? value.get<double>() : 0;
    if (!(number > 0) || !std::isfinite(number)) {
      fail("has a \"", field, "\" that is no number above 0");
    }
    return number;
  }

  std::string text(const char* field) const {
    if (!object_[field].is_string()) {
      fail("has a \"", field, "\" that is no text");
    }
    return object_[field].get<std::string>();
  }

  uint32_t checksum(const char* field) const {
    const std::string digits = text(field);
    uint32_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (checksum_text(value) != digits) {
      fail("has a \"", field, "\" that is no checksum of eight hexadecimal digits");
    }
    return value;
  }

  const json& list(const char* field) const {
    if (!object_[field].is_array()) {
      fail("has a \"", field, "\" that is no list");
    }
    return object_[field];
  }

  template <typename... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    fail_damaged(checkpoint_, where_, " ", parts...);
  }

 private:
  static bool is_among(std::initializer_list<const char*> fields, const std::string& key) {
    return std::find(fields.begin(), fields.end(), key) != fields.end();
  }

  const std::string& checkpoint_;
  std::string where_;
  const json& object_;
};

std::vector<FileRecord> read_records(const std::string& checkpoint, const json& list) {
  std::vector<FileRecord> files;
  std::set<std::string> names;
  for (const json& item : list) {
    const std::string where = cat("file ", files.size() + 1, " in ", kManifestName);
    const FieldReader fields(checkpoint, where, item, {"name", "bytes", "crc32c"});
    FileRecord file{fields.text("name"), fields.count("bytes"), fields.checksum("crc32c")};
    if (!is_plain_name(file.name)) {
      fields.fail("is named ", in_quotes(file.name), ", which is no plain file name");
    }
    if (!names.insert(file.name).second) {
      fields.fail("repeats the name ", in_quotes(file.name));
    }
    files.push_back(std::move(file));
  }
  return files;
}

optim::LossScaleState read_loss_scale(const std::string& checkpoint, const json& object) {
  const FieldReader fields(checkpoint,
                           cat("\"loss_scale\" in ", kManifestName),
                           object,
                           {"scale", "clean_steps", "hysteresis_left"});
  return {fields.positive("scale"), fields.count("clean_steps"), fields.count("hysteresis_left")};
}

// Ahead of all other checks, since another format has other fields.
void check_format(const std::string& checkpoint, const json& root) {
  if (!root.is_object() || !root.contains("format") || !root["format"].is_number_unsigned()) {
    fail_damaged(checkpoint, kManifestName, " has no format number");
  }
  const uint64_t format = root["format"].get<uint64_t>();
  if (format != kManifestFormat) {
    throw CheckpointError(cat("checkpoint ",
                              checkpoint,
                              " has format ",
                              format,
                              "; this Penstock reads format ",
                              kManifestFormat));
  }
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts;
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text;
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

bool is_plain_name(std::string_view name) {
  const bool has_control = std::any_of(name.begin(), name.end(), [](char letter) {
    return static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F;
  });
  return !name.empty() && is_valid_utf8(name) && !has_control && name != "." &&
         name != kManifestName && name.find('/') == std::string_view::npos &&
         name.find("..") == std::string_view::npos;
}

std::string manifest_text(const Manifest& manifest) {
  PENSTOCK_CHECK(manifest.step >= 0, "step ", manifest.step);
  PENSTOCK_CHECK(is_valid_utf8(manifest.penstock_version), "Penstock's version is not UTF-8");
  PENSTOCK_CHECK(is_valid_utf8(manifest.torch_version), "LibTorch's version is not UTF-8");
  PENSTOCK_CHECK(is_timestamp(manifest.created), "created ", in_quotes(manifest.created));
  PENSTOCK_CHECK(!manifest.loss_scale || optim::is_possible(*manifest.loss_scale),
                 "loss scale ",
                 manifest.loss_scale->scale);
  for (const FileRecord& file : manifest.files) {
    PENSTOCK_CHECK(is_plain_name(file.name), "file name ", in_quotes(file.name));
  }
  ordered_json content = content_of(manifest);
  content["crc32c"] = checksum_text(checksum_of(content));
  return content.dump(/*indent=*/2) + "\n";
}

Manifest parse_manifest(std::string_view text, const std::string& checkpoint) {
  json root;
  try {
    root = parse_strict_json(text, kManifestDepth);
  } catch (const CheckpointError& error) {
    fail_damaged(checkpoint, kManifestName, " ", error.what());
  }
  check_format(checkpoint, root);
  const FieldReader fields(
      checkpoint,
      kManifestName,
      root,
      {"format", "step", "penstock_version", "torch_version", "created", "files", "crc32c"},
      {"loss_scale"});
  Manifest manifest;
  manifest.step = fields.count("step");
  manifest.penstock_version = fields.text("penstock_version");
  manifest.torch_version = fields.text("torch_version");
  manifest.created = fields.text("created");
  if (!is_timestamp(manifest.created)) {
    fields.fail("has a \"created\" that is no time in UTC");
  }
  if (const json* loss_scale = fields.find("loss_scale")) {
    manifest.loss_scale = read_loss_scale(checkpoint, *loss_scale);
  }
  manifest.files = read_records(checkpoint, fields.list("files"));
  const uint32_t said = fields.checksum("crc32c");
  const uint32_t found = checksum_of(content_of(manifest));
  if (found != said) {
    fields.fail("has checksum ", checksum_text(found), ", but says ", checksum_text(said));
  }
  return manifest;
}

Manifest read_manifest(const fs::path& folder) {
  return parse_manifest(read_text_file(folder / kManifestName), folder.string());
}

CheckpointError damaged(const fs::path& folder, const std::string& what) {
  return CheckpointError(
      cat("checkpoint ", folder.string(), " is damaged: ", what, "; use an older checkpoint"));
}

std::string checksum_text(uint32_t checksum) {
  std::array<char, 9> text;
  std::snprintf(text.data(), text.size(), "%08x", checksum);
  return text.data();
}

}  // namespace penstock::checkpoint
