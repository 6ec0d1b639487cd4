// The ids by which the ranks of a new group find each other: made on some ranks, known to all.
// Private to the room.
#pragma once

#include "trireme/comm/communicator.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

// Each id is a meeting point that one process serves; one for many ranks makes large jobs start
// slowly.
inline constexpr int kRanksPerId = 128;

// @collective. Ranks spread evenly make one id each by `make`; returns all of them in one order.
// Throws on every rank what `make` has thrown on one.
std::vector<ByteVector> share_ids(Communicator& comm, int ranks_per_id,
                                  const std::function<ByteVector()>& make);

// @collective. Throws Environment on every rank, naming those whose text is not rank 0's.
void require_alike(Communicator& comm, std::string_view what, const std::string& mine);

// @collective. The same for ids, which are too long to print.
void require_same_ids(Communicator& comm, const std::vector<ByteVector>& ids);

}  // namespace trireme::comm
