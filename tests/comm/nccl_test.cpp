// What of NCCL works without a GPU: its ids on their way between ranks.
#include "comm/nccl/unique_id.hpp"
#include "comm/unique_ids.hpp"
#include "session.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

namespace trireme::comm {
namespace {

TEST(NcclIds, reach_every_rank_whole) {
  Session session(nullptr, nullptr, testing::session_options());
  Communicator& world = session.world();
  for (const int ranks_per_id : {1, 2, kRanksPerId}) {
    const auto shared = share_ids(world, ranks_per_id, make_nccl_id);
    require_same_ids(world, shared);
    const std::vector<ncclUniqueId> ids = as_nccl(shared);
    EXPECT_EQ(ids.size(), static_cast<std::size_t>((world.size() + ranks_per_id - 1) / ranks_per_id));
    for (const ByteVector& theirs : world.all_gather(std::as_bytes(std::span(ids)), "test")) {
      ASSERT_EQ(theirs.size(), ids.size() * sizeof(ncclUniqueId));
      EXPECT_EQ(std::memcmp(theirs.data(), ids.data(), theirs.size()), 0);
    }
    std::set<std::string> texts;
    for (const ByteVector& id : shared) texts.insert(testing::text_of(id));
    EXPECT_EQ(texts.size(), shared.size()) << "no two ids are alike";
  }
}

TEST(NcclIds, that_are_cut_short_are_refused) {
  EXPECT_THROW(as_nccl({ByteVector(sizeof(ncclUniqueId) - 1)}), Error);
}

}  // namespace
}  // namespace trireme::comm
