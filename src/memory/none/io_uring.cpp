// Stands in for io_uring/ where liburing was not found.
#include "memory/tier_io.hpp"

namespace trireme::memory {

std::unique_ptr<TierIo> make_io_uring(int, TierIo::Done, std::string& why_not) {
  why_not = "this program was built without liburing";
  return nullptr;
}

}  // namespace trireme::memory
