// Strong types for the integers that are easily confused, and how sizes and times are written for
// people.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace trireme {

template <class Tag>
struct Strong {
  std::int64_t value = 0;

  constexpr Strong() = default;
  constexpr explicit Strong(std::int64_t v) : value(v) {}
  constexpr auto operator<=>(const Strong&) const = default;
};

using Rank = Strong<struct RankTag>;
using Step = Strong<struct StepTag>;
using Bytes = Strong<struct BytesTag>;

// Returns e.g. "1.5 GiB"; exact below 1 KiB.
std::string human(Bytes bytes);

// Returns e.g. "10.8 M" for a count.
std::string human_count(std::int64_t count);

// Returns e.g. "1h02m", "3m10s", "4.2s".
std::string human_seconds(double seconds);

}  // namespace trireme
