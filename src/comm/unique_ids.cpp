#include "comm/unique_ids.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <span>

namespace trireme::comm {

namespace {

// FNV-1a: enough to tell ids apart that are random.
std::uint64_t digest(const std::vector<ByteVector>& ids) {
  std::uint64_t hash = 14695981039346656037U;
  for (const ByteVector& id : ids) {
    for (const std::byte byte : id) {
      hash ^= static_cast<std::uint64_t>(byte);
      hash *= 1099511628211U;
    }
  }
  return hash;
}

}  // namespace

std::vector<ByteVector> share_ids(Communicator& comm, int ranks_per_id,
                                  const std::function<ByteVector()>& make) {
  ensure(ranks_per_id > 0, "an id serves at least one rank");
  // Id k is made by the first rank r with r * num_ids / size == k.
  const int num_ids = (comm.size() + ranks_per_id - 1) / ranks_per_id;
  const auto group_of = [&](std::int64_t rank) { return rank * num_ids / comm.size(); };
  const std::int64_t rank = comm.rank().value;
  const bool makes_one = rank == 0 || group_of(rank) != group_of(rank - 1);

  ByteVector mine;
  comm.agree("making the ids of a group", [&] {
    if (makes_one) mine = make();
  });
  std::vector<ByteVector> ids = comm.all_gather(mine, "sharing the ids of a group");
  std::erase_if(ids, [](const ByteVector& id) { return id.empty(); });
  ensure(ids.size() == static_cast<std::size_t>(num_ids), "every id of a group arrives");
  return ids;
}

void require_alike(Communicator& comm, std::string_view what, const std::string& mine) {
  const auto bytes = std::as_bytes(std::span(mine));
  std::vector<std::string> texts;
  for (const ByteVector& theirs : comm.all_gather(bytes, what))
    texts.emplace_back(reinterpret_cast<const char*>(theirs.data()), theirs.size());
  std::vector<std::string> others;
  for (std::size_t r = 1; r < texts.size(); ++r) {
    if (texts[r] != texts[0]) others.push_back(fmt::format("rank {} has {}", r, texts[r]));
  }
  if (others.empty()) return;
  Error error(
      ErrorKind::kEnvironment,
      fmt::format("ranks differ in {}: rank 0 has {}, {}", what, texts[0], fmt::join(others, ", ")),
      "all ranks run the same program with the same libraries: look at the modules and the "
      "LD_LIBRARY_PATH of each node");
  error.everywhere = true;
  throw error;
}

void require_same_ids(Communicator& comm, const std::vector<ByteVector>& ids) {
  require_alike(comm, "the ids of a group",
                fmt::format("{} with digest {:016x}", ids.size(), digest(ids)));
}

}  // namespace trireme::comm
