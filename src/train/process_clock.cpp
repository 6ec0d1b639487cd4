#include "process_clock.hpp"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

namespace trireme::train {

double process_age() {
  std::ifstream file("/proc/self/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const auto name_end = text.rfind(')');  // the name may hold spaces
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 2));
  constexpr int kStartTime = 22;  // proc(5); the first field after the name is number 3
  std::string value;
  for (int field = 3; field <= kStartTime; ++field) fields >> value;
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double uptime = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  return uptime - std::stod(value) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace trireme::train
