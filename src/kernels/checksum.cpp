// CRC32C in four interleaved lanes: the CRC instruction takes three cycles but starts every cycle,
// so independent lanes keep it busy. Lanes are joined by multiplying with the matrix "append n zero
// bytes" over GF(2). The instruction is chosen when the program runs (SSE4.2, ARMv8 CRC); without
// one, slicing by eight.
#include "trireme/kernels/checksum.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace trireme::kernels {

namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78U;  // reflected
constexpr std::size_t kLanes = 4;
constexpr std::size_t kLongLane = 2048;  // a stripe of four stays in the first-level cache
constexpr std::size_t kShortLane = 128;
constexpr std::size_t kCopyChunk = 16384;

// Column i is the image of bit i. "Register" below means the CRC before its final inversion.
using Matrix = std::array<std::uint32_t, 32>;

constexpr std::uint32_t multiply(const Matrix& matrix, std::uint32_t vector) {
  std::uint32_t sum = 0;
  for (std::size_t bit = 0; vector != 0; ++bit, vector >>= 1) {
    if ((vector & 1) != 0) sum ^= matrix[bit];
  }
  return sum;
}

constexpr Matrix square(const Matrix& matrix) {
  Matrix result{};
  for (std::size_t bit = 0; bit < 32; ++bit) result[bit] = multiply(matrix, matrix[bit]);
  return result;
}

constexpr Matrix append_zero_bit() {
  Matrix result{};
  result[0] = kPolynomial;
  for (std::size_t bit = 1; bit < 32; ++bit) result[bit] = 1U << (bit - 1);
  return result;
}

// Entry k appends 2^k zero bytes.
constexpr std::array<Matrix, 64> append_zero_bytes_powers() {
  std::array<Matrix, 64> powers{};
  powers[0] = square(square(square(append_zero_bit())));
  for (std::size_t k = 1; k < powers.size(); ++k) powers[k] = square(powers[k - 1]);
  return powers;
}

constexpr std::array<Matrix, 64> kAppendZeros = append_zero_bytes_powers();

constexpr std::uint32_t append_zeros(std::uint32_t reg, std::uint64_t bytes) {
  for (std::size_t k = 0; bytes != 0; ++k, bytes >>= 1) {
    if ((bytes & 1) != 0) reg = multiply(kAppendZeros[k], reg);
  }
  return reg;
}

// The matrix of one fixed length, unrolled into four byte-indexed tables.
using Tables = std::array<std::array<std::uint32_t, 256>, 4>;

constexpr Tables tables_appending(std::uint64_t bytes) {
  Tables tables{};
  for (std::size_t position = 0; position < 4; ++position) {
    for (std::uint32_t value = 0; value < 256; ++value) {
      tables[position][value] = append_zeros(value << (8 * position), bytes);
    }
  }
  return tables;
}

constexpr Tables kAppendLongLane = tables_appending(kLongLane);
constexpr Tables kAppendShortLane = tables_appending(kShortLane);

constexpr std::uint32_t look_up(const Tables& tables, std::uint32_t reg) {
  return tables[0][reg & 0xff] ^ tables[1][(reg >> 8) & 0xff] ^ tables[2][(reg >> 16) & 0xff] ^
         tables[3][reg >> 24];
}

inline std::uint64_t load64(const std::byte* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// kSlices[i][v]: byte v followed by i zero bytes.
constexpr std::array<std::array<std::uint32_t, 256>, 8> make_slices() {
  std::array<std::array<std::uint32_t, 256>, 8> slices{};
  for (std::uint32_t value = 0; value < 256; ++value) {
    for (std::size_t i = 0; i < 8; ++i) slices[i][value] = append_zeros(value, i + 1);
  }
  return slices;
}

constexpr auto kSlices = make_slices();

std::uint32_t update_in_software(const std::byte* at, std::size_t size, std::uint32_t reg) {
  for (; size >= 8; at += 8, size -= 8) {
    const std::uint64_t word = load64(at) ^ reg;
    reg = 0;
    for (std::size_t i = 0; i < 8; ++i) reg ^= kSlices[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; size > 0; ++at, --size) {
    reg = (reg >> 8) ^ kSlices[0][(reg ^ static_cast<std::uint32_t>(*at)) & 0xff];
  }
  return reg;
}

#if defined(__x86_64__)
#define TRIREME_CRC_TARGET __attribute__((target("sse4.2")))
TRIREME_CRC_TARGET inline std::uint32_t step64(std::uint32_t reg, std::uint64_t word) {
  return static_cast<std::uint32_t>(_mm_crc32_u64(reg, word));
}
TRIREME_CRC_TARGET inline std::uint32_t step8(std::uint32_t reg, std::uint8_t byte) {
  return _mm_crc32_u8(reg, byte);
}
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#elif defined(__aarch64__) && defined(__linux__)
#define TRIREME_CRC_TARGET __attribute__((target("arch=armv8-a+crc")))
TRIREME_CRC_TARGET inline std::uint32_t step64(std::uint32_t reg, std::uint64_t word) {
  return __crc32cd(reg, word);
}
TRIREME_CRC_TARGET inline std::uint32_t step8(std::uint32_t reg, std::uint8_t byte) {
  return __crc32cb(reg, byte);
}
bool has_instruction() { return (getauxval(AT_HWCAP) & (1UL << 7)) != 0; }  // HWCAP_CRC32
#endif

#if defined(TRIREME_CRC_TARGET)

// Consumes whole stripes of four lanes and leaves the rest to the caller.
TRIREME_CRC_TARGET std::uint32_t update_stripes(const std::byte*& at, std::size_t& size,
                                                std::uint32_t reg, std::size_t lane,
                                                const Tables& append_lane) {
  for (; size >= kLanes * lane; at += kLanes * lane, size -= kLanes * lane) {
    std::uint32_t r0 = reg;
    std::uint32_t r1 = 0;
    std::uint32_t r2 = 0;
    std::uint32_t r3 = 0;
    for (std::size_t i = 0; i < lane; i += 8) {
      r0 = step64(r0, load64(at + i));
      r1 = step64(r1, load64(at + lane + i));
      r2 = step64(r2, load64(at + 2 * lane + i));
      r3 = step64(r3, load64(at + 3 * lane + i));
    }
    reg = look_up(append_lane, r0) ^ r1;
    reg = look_up(append_lane, reg) ^ r2;
    reg = look_up(append_lane, reg) ^ r3;
  }
  return reg;
}

TRIREME_CRC_TARGET std::uint32_t update_by_instruction(const std::byte* at, std::size_t size,
                                                       std::uint32_t reg) {
  reg = update_stripes(at, size, reg, kLongLane, kAppendLongLane);
  reg = update_stripes(at, size, reg, kShortLane, kAppendShortLane);
  for (; size >= 8; at += 8, size -= 8) reg = step64(reg, load64(at));
  for (; size > 0; ++at, --size) reg = step8(reg, static_cast<std::uint8_t>(*at));
  return reg;
}

#else

bool has_instruction() { return false; }
std::uint32_t update_by_instruction(const std::byte* at, std::size_t size, std::uint32_t reg) {
  return update_in_software(at, size, reg);
}

#endif

}  // namespace

namespace detail {

std::uint32_t crc32c_in_software(std::span<const std::byte> bytes, std::uint32_t previous) {
  return ~update_in_software(bytes.data(), bytes.size(), ~previous);
}

}  // namespace detail

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t previous) {
  static const bool by_instruction = has_instruction();
  if (!by_instruction) return detail::crc32c_in_software(bytes, previous);
  return ~update_by_instruction(bytes.data(), bytes.size(), ~previous);
}

std::uint32_t copy_crc32c(std::span<const std::byte> from, std::span<std::byte> to,
                          std::uint32_t previous) {
  std::uint32_t crc = previous;
  // The CRC is taken from the copy, still in cache: it stays true if somebody scribbles over the
  // source meanwhile.
  for (std::size_t done = 0; done < from.size(); done += kCopyChunk) {
    const std::size_t count = std::min(kCopyChunk, from.size() - done);
    std::memcpy(to.data() + done, from.data() + done, count);
    crc = crc32c(std::span<const std::byte>(to.data() + done, count), crc);
  }
  return crc;
}

std::uint32_t crc32c_combine(std::uint32_t a, std::uint32_t b, std::uint64_t length_b) {
  return append_zeros(a, length_b) ^ b;
}

}  // namespace trireme::kernels
