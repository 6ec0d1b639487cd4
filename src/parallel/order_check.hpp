// Ranks must take units in the same order, or they would exchange one unit's bytes for another's.
// Private to the room.
#pragma once

#include "trireme/comm/communicator.hpp"
#include "trireme/parallel/layout.hpp"

#include <functional>
#include <span>
#include <string_view>

namespace trireme::parallel {

// Throws Config: `who` takes `theirs` where this rank takes `mine`.
[[noreturn]] void throw_other_order(const Layout& layout, std::string_view who, std::size_t theirs,
                                    std::size_t mine);

// Tells the unit's number to the ranks that will receive this rank's data and checks the numbers of
// those that will send theirs, before any data moves: one short message each way, against megabytes.
// Throws Config naming a rank that is at another unit.
void require_same_order(comm::Communicator& comm, const Layout& layout, std::size_t unit, int tag,
                        std::span<const int> receivers, std::span<const int> senders,
                        const std::function<void()>& idle = {});

}  // namespace trireme::parallel
