#include "trireme/kernels/checksum.hpp"

#include "trireme/base/random.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string_view>
#include <vector>

namespace trireme::kernels {
namespace {

std::vector<std::byte> random_bytes(std::size_t size, std::uint64_t key) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(philox(key, i)[0]);
  return bytes;
}

std::vector<std::byte> counting(int first, int step) {
  std::vector<std::byte> bytes(32);
  for (int i = 0; i < 32; ++i)
    bytes[static_cast<std::size_t>(i)] = static_cast<std::byte>(first + i * step);
  return bytes;
}

// The definition, a bit at a time.
std::uint32_t slow_crc32c(std::span<const std::byte> bytes) {
  std::uint32_t reg = ~0U;
  for (const std::byte byte : bytes) {
    reg ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) reg = (reg >> 1) ^ ((reg & 1) != 0 ? 0x82f63b78U : 0U);
  }
  return ~reg;
}

TEST(Crc32c, gives_the_vectors_of_rfc_3720) {
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0})), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43U);
  EXPECT_EQ(crc32c(counting(0, 1)), 0x46dd794eU);
  EXPECT_EQ(crc32c(counting(31, -1)), 0x113fdb5cU);
  const std::string_view digits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(digits))), 0xe3069283U);
  EXPECT_EQ(crc32c({}), 0U);
}

TEST(Crc32c, agrees_with_its_definition_at_every_length_and_alignment) {
  const auto bytes = random_bytes(40000, 1);
  for (const std::size_t length :
       {0UL, 1UL, 7UL, 8UL, 511UL, 512UL, 513UL, 8191UL, 8192UL, 8193UL, 9000UL, 39990UL}) {
    for (std::size_t start = 0; start < 9; ++start) {
      const auto part = std::span<const std::byte>(bytes).subspan(start, length);
      ASSERT_EQ(crc32c(part), slow_crc32c(part)) << length << " bytes from " << start;
      ASSERT_EQ(detail::crc32c_in_software(part), slow_crc32c(part))
          << length << " bytes from " << start;
    }
  }
}

TEST(Crc32c, continues_from_a_previous_value) {
  const auto bytes = random_bytes(20000, 2);
  const std::span<const std::byte> all(bytes);
  for (const std::size_t cut : {0UL, 1UL, 4095UL, 8192UL, 19999UL, 20000UL}) {
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c(all)) << cut;
  }
}

TEST(Crc32c, combines_the_values_of_two_parts) {
  const auto bytes = random_bytes(20000, 3);
  const std::span<const std::byte> all(bytes);
  for (const std::size_t cut : {0UL, 1UL, 4095UL, 8192UL, 19999UL, 20000UL}) {
    EXPECT_EQ(crc32c_combine(crc32c(all.first(cut)), crc32c(all.subspan(cut)), all.size() - cut),
              crc32c(all));
  }
}

TEST(Crc32c, copies_and_checks_in_one_pass) {
  const auto bytes = random_bytes(70001, 4);
  std::vector<std::byte> copy(bytes.size() + 1, std::byte{0x5a});
  EXPECT_EQ(copy_crc32c(bytes, copy, crc32c(counting(0, 1))),
            crc32c(bytes, crc32c(counting(0, 1))));
  EXPECT_EQ(std::memcmp(copy.data(), bytes.data(), bytes.size()), 0);
  EXPECT_EQ(copy.back(), std::byte{0x5a});
}

TEST(Crc32c, finds_any_single_flipped_bit) {
  auto bytes = random_bytes(300, 5);
  const std::uint32_t before = crc32c(bytes);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte(1U << (bit % 8));
    ASSERT_NE(crc32c(bytes), before);
    bytes[bit / 8] ^= std::byte(1U << (bit % 8));
  }
}

}  // namespace
}  // namespace trireme::kernels
