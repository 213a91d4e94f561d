#include "penstock/report/event_file.h"

#include <array>
#include <bit>
#include <chrono>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "penstock/base/checksum.h"
#include "penstock/base/text.h"

namespace penstock::report {

namespace fs = std::filesystem;

namespace {

// Protobuf: a field is a key (number and wire type), then the value.
enum class Wire { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    out += static_cast<char>((value & 0x7F) | 0x80);
  }
  out += static_cast<char>(value);
}

template <typename Unsigned>
void append_little_endian(std::string& out, Unsigned value) {
  for (size_t byte = 0; byte < sizeof(value); ++byte) {
    out += static_cast<char>(value >> (8 * byte));
  }
}

void append_key(std::string& out, int field, Wire wire) {
  append_varint(out, static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire));
}

void append_int64(std::string& out, int field, int64_t value) {
  append_key(out, field, Wire::Varint);
  append_varint(out, static_cast<uint64_t>(value));
}

void append_double(std::string& out, int field, double value) {
  append_key(out, field, Wire::Fixed64);
  append_little_endian(out, std::bit_cast<uint64_t>(value));
}

void append_float(std::string& out, int field, float value) {
  append_key(out, field, Wire::Fixed32);
  append_little_endian(out, std::bit_cast<uint32_t>(value));
}

// Strings and nested messages.
void append_bytes(std::string& out, int field, const std::string& bytes) {
  append_key(out, field, Wire::Bytes);
  append_varint(out, bytes.size());
  out += bytes;
}

// Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
constexpr int kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
              kEventSessionLog = 7;
constexpr int kSummaryValue = 1, kValueTag = 1, kValueSimpleValue = 2;
constexpr int kSessionLogStatus = 1, kSessionStart = 1;

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string event_at(int64_t step) {
  std::string event;
  append_double(event, kEventWallTime, unix_seconds());
  append_int64(event, kEventStep, step);
  return event;
}

// Records hold checksums of data that may itself hold checksums; the format masks them for that.
uint32_t masked_crc(const std::string& bytes) {
  return std::rotr(crc32c(bytes.data(), bytes.size()), 15) + 0xA282EAD8;
}

std::string host_name() {
  std::array<char, 256> name = {};
  const bool is_known = ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0';
  return is_known ? name.data() : "localhost";
}

// TensorBoard reads the files of a folder in the order of their names.
fs::path new_path(const fs::path& folder) {
  const std::string name = cat("events.out.tfevents.",
                               static_cast<int64_t>(unix_seconds()),
                               ".",
                               host_name(),
                               ".",
                               ::getpid());
  fs::path path = folder / name;
  std::error_code ignored;  // a folder that cannot be searched is reported by the LogFile
  for (int again = 1; fs::exists(path, ignored); ++again) {
    path = folder / cat(name, ".", again);
  }
  return path;
}

}  // namespace

EventFile::EventFile(const fs::path& folder) : file_(new_path(folder)) {
  std::string event;
  append_double(event, kEventWallTime, unix_seconds());
  append_bytes(event, kEventFileVersion, "brain.Event:2");
  add_record(event);
  flush();
}

EventFile::~EventFile() {
  flush();
}

void EventFile::add_scalar(const std::string& tag, double value, int64_t step) {
  std::string entry;
  append_bytes(entry, kValueTag, tag);
  append_float(entry, kValueSimpleValue, static_cast<float>(value));
  std::string summary;
  append_bytes(summary, kSummaryValue, entry);
  std::string event = event_at(step);
  append_bytes(event, kEventSummary, summary);
  add_record(event);
}

void EventFile::forget_from(int64_t step) {
  std::string session;
  append_int64(session, kSessionLogStatus, kSessionStart);
  std::string event = event_at(step);
  append_bytes(event, kEventSessionLog, session);
  add_record(event);
}

void EventFile::flush() {
  if (!pending_.empty()) {
    file_.add(std::exchange(pending_, {}));
  }
}

void EventFile::add_record(const std::string& data) {
  std::string length;
  append_little_endian(length, uint64_t{data.size()});
  pending_ += length;
  append_little_endian(pending_, masked_crc(length));
  pending_ += data;
  append_little_endian(pending_, masked_crc(data));
}

}  // namespace penstock::report
