// Reads TensorBoard event files back, sharing no code with the writer: its own checksum (bit by
// bit) and its own protobuf parser.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::report {

struct ReadEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  std::string tag;
  std::optional<float> value;
  std::optional<uint64_t> session_status;
};

class ProtoReader {
 public:
  explicit ProtoReader(std::string_view data) : rest_(data) {}

  // Moves to the next field; false at the end.
  bool next() {
    if (rest_.empty()) {
      return false;
    }
    const uint64_t key = read_varint();
    field = static_cast<int>(key >> 3);
    switch (key & 7) {
      case 0:
        number = read_varint();
        break;
      case 1:
        bytes = take(8);
        break;
      case 2:
        bytes = take(read_varint());
        break;
      case 5:
        bytes = take(4);
        break;
      default:
        throw std::runtime_error("unknown wire type");
    }
    return true;
  }

  int field = 0;
  uint64_t number = 0;
  std::string_view bytes;

 private:
  std::string_view take(size_t count) {
    if (count > rest_.size()) {
      throw std::runtime_error("message too short");
    }
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  uint64_t read_varint() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) {
        return value;
      }
    }
  }

  std::string_view rest_;
};

template <typename Number>
Number number_from(std::string_view bytes) {
  Number number;
  if (bytes.size() != sizeof(number)) {
    throw std::runtime_error("wrong size");
  }
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number;
}

inline uint32_t masked_crc_bit_by_bit(std::string_view data) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char letter : data) {
    crc ^= static_cast<unsigned char>(letter);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    }
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

// The data of each record. Throws when a length or a checksum is wrong.
inline std::vector<std::string> read_records(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> records;
  for (std::string_view rest = all; !rest.empty();) {
    const auto part = [&](size_t begin, size_t count) {
      if (begin > rest.size() || count > rest.size() - begin) {
        throw std::runtime_error("record cut short");
      }
      return rest.substr(begin, count);
    };
    const auto length = number_from<uint64_t>(part(0, 8));
    const std::string_view data = part(12, length);
    if (number_from<uint32_t>(part(8, 4)) != masked_crc_bit_by_bit(part(0, 8)) ||
        number_from<uint32_t>(part(12 + length, 4)) != masked_crc_bit_by_bit(data)) {
      throw std::runtime_error("wrong checksum");
    }
    records.emplace_back(data);
    rest.remove_prefix(16 + length);
  }
  return records;
}

inline ReadEvent parse_event(std::string_view data) {
  ReadEvent event;
  for (ProtoReader fields(data); fields.next();) {
    if (fields.field == 1) {
      event.wall_time = number_from<double>(fields.bytes);
    } else if (fields.field == 2) {
      event.step = static_cast<int64_t>(fields.number);
    } else if (fields.field == 3) {
      event.file_version = fields.bytes;
    } else if (fields.field == 5) {
      ProtoReader summary(fields.bytes);
      summary.next();
      for (ProtoReader value(summary.bytes); value.next();) {
        if (value.field == 1) {
          event.tag = value.bytes;
        } else if (value.field == 2) {
          event.value = number_from<float>(value.bytes);
        }
      }
    } else if (fields.field == 7) {
      ProtoReader session(fields.bytes);
      session.next();
      event.session_status = session.number;
    } else {
      throw std::runtime_error("unexpected field of Event");
    }
  }
  return event;
}

inline std::vector<ReadEvent> read_events(const std::filesystem::path& path) {
  std::vector<ReadEvent> events;
  for (const std::string& record : read_records(path)) {
    events.push_back(parse_event(record));
  }
  return events;
}

}  // namespace penstock::report
