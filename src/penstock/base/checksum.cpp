#include "penstock/base/checksum.h"

#include <array>
#include <cstring>

namespace penstock {

namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected
using Table = std::array<uint32_t, 256>;

// kTables[k][b] is the effect of byte b followed by k zero bytes, so eight bytes take eight
// look-ups.
constexpr std::array<Table, 8> make_tables() {
  std::array<Table, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    }
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t shorter = tables[k - 1][byte];
      tables[k][byte] = (shorter >> 8) ^ tables[0][shorter & 0xFF];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kTables = make_tables();

// A sum is a polynomial modulo kPolynomial, the highest bit the factor of x^0.
constexpr uint32_t kOne = uint32_t{1} << 31;
constexpr uint32_t kXToThe8 = kOne >> 8;

constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    product ^= (a & bit) != 0 ? b : 0;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);  // times x
  }
  return product;
}

uint32_t update_in_software(const unsigned char* data, size_t bytes, uint32_t crc) {
  for (; bytes >= 8; data += 8, bytes -= 8) {
    uint32_t low, high;
    std::memcpy(&low, data, 4);
    std::memcpy(&high, data + 4, 4);
    low ^= crc;
    crc = kTables[7][low & 0xFF] ^ kTables[6][(low >> 8) & 0xFF] ^ kTables[5][(low >> 16) & 0xFF] ^
          kTables[4][low >> 24] ^ kTables[3][high & 0xFF] ^ kTables[2][(high >> 8) & 0xFF] ^
          kTables[1][(high >> 16) & 0xFF] ^ kTables[0][high >> 24];
  }
  for (; bytes > 0; ++data, --bytes) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ *data) & 0xFF];
  }
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t update_in_hardware(const unsigned char* data,
                                                              size_t bytes,
                                                              uint32_t crc) {
  uint64_t wide = crc;
  for (; bytes >= 8; data += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    wide = __builtin_ia32_crc32di(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; bytes > 0; ++data, --bytes) {
    crc = __builtin_ia32_crc32qi(crc, *data);
  }
  return crc;
}
#endif

}  // namespace

uint32_t crc32c(const void* data, size_t bytes, uint32_t before) {
  const unsigned char* input = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) {
    return ~update_in_hardware(input, bytes, ~before);
  }
#endif
  return ~update_in_software(input, bytes, ~before);
}

uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_bytes) {
  // Each byte that follows multiplies what came before by x^8.
  uint32_t shifted = first;
  for (uint32_t power = kXToThe8; second_bytes > 0; second_bytes >>= 1) {
    if ((second_bytes & 1) != 0) {
      shifted = multiply(shifted, power);
    }
    power = multiply(power, power);
  }
  return shifted ^ second;
}

}  // namespace penstock
