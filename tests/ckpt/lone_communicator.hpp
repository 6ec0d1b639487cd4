#pragma once

#include "trireme/comm/communicator.hpp"

namespace trireme::testing {

comm::Communicator lone_communicator();

}  // namespace trireme::testing
