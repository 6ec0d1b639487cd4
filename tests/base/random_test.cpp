#include "trireme/base/random.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <string>

namespace trireme {
namespace {

using Words = std::array<std::uint32_t, 4>;

// From kat_vectors of Random123, the authors' own library, for philox4x32 with 10 rounds.
TEST(Philox, gives_the_known_answers_of_its_authors) {
  EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ULL, ~0ULL, ~0ULL), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // Digits of pi: counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0.
  EXPECT_EQ(philox(0x299f31d0a4093822ULL, 0x85a308d3243f6a88ULL, 0x0370734413198a2eULL),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Stored checkpoints and published losses hang on these: a change of the rule must not go unseen.
TEST(StreamKey, is_the_same_for_ever) {
  EXPECT_EQ(stream_key(42, "h.0.attn.weight"), 0x9c491bce3e49afd3ULL);
  EXPECT_EQ(stream_key(0, ""), 0xf217f353d397f728ULL);
}

TEST(StreamKey, differs_for_every_seed_and_name) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (int name = 0; name < 50; ++name) keys.insert(stream_key(seed, "h." + std::to_string(name)));
  }
  EXPECT_EQ(keys.size(), 2500U);
}

TEST(Mix, depends_on_the_order_of_its_words) {
  EXPECT_NE(mix(1, 2), mix(2, 1));
  EXPECT_NE(mix(0, 0), 0U);
}

TEST(UnitFloat, stays_below_one) {
  EXPECT_EQ(unit_float(0), 0.0F);
  EXPECT_EQ(unit_float(0xffffffffU), 1.0F - 0x1p-24F);
  EXPECT_EQ(unit_float(0x80000000U), 0.5F);
}

}  // namespace
}  // namespace trireme
