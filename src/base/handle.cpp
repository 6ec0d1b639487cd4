#include "trireme/base/handle.hpp"

#include <unistd.h>

namespace trireme {

void FileDescriptorTraits::close(int fd) noexcept { ::close(fd); }

}  // namespace trireme
