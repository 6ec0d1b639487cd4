// A stranger's program: uses the installed library through its public headers only.
#include <cstdio>
#include <string>

#include "trireme/base/error.hpp"
#include "trireme/base/units.hpp"
#include "trireme/base/version.hpp"

int main() {
  const std::string version(trireme::build::kVersion);
  std::printf("trireme %s, %s\n", version.c_str(), trireme::human(trireme::Bytes(1536)).c_str());
  return trireme::exit_code(trireme::ErrorKind::kConfig) == 64 ? 0 : 1;
}
