// Counter-based random numbers: value i of a stream is a pure function of (key, i), so no result
// depends on how many ranks drew before, and any position is reached in O(1). Philox4x32-10: Salmon
// et al., "Parallel random numbers: as easy as 1, 2, 3", SC11.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace trireme {

// Returns four independent 32-bit words for 128-bit counter `counter` under 64-bit `key`.
std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_low,
                                    std::uint64_t counter_high = 0);

// Mixes two words into one key (the finaliser of SplitMix64 over both).
std::uint64_t mix(std::uint64_t a, std::uint64_t b);

// Returns the key of the stream that belongs to (seed, name); the same on every machine.
std::uint64_t stream_key(std::uint64_t seed, std::string_view name);

// Returns a number in [0, 1) with 24 random bits.
inline float unit_float(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

}  // namespace trireme
