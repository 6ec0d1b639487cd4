#include "trireme/base/units.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace trireme {

std::string human(Bytes bytes) {
  constexpr std::array<const char*, 6> kNames{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double size = static_cast<double>(bytes.value);
  std::size_t unit = 0;
  while (std::abs(size) >= 1024 && unit + 1 < kNames.size()) {
    size /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes.value)
                   : fmt::format("{:.1f} {}", size, kNames[unit]);
}

std::string human_count(std::int64_t count) {
  constexpr std::array<const char*, 5> kNames{"", " K", " M", " G", " T"};
  double size = static_cast<double>(count);
  std::size_t unit = 0;
  while (std::abs(size) >= 1000 && unit + 1 < kNames.size()) {
    size /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{}", count) : fmt::format("{:.1f}{}", size, kNames[unit]);
}

std::string human_seconds(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  if (seconds < 60) return fmt::format("{:.1f}s", seconds);
  const auto whole = static_cast<long>(std::lround(seconds));
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

}  // namespace trireme
