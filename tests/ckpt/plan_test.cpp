// The plan of who writes what, for many ranks at once and without any.
#include "ckpt/plan.hpp"

#include "trireme/base/deadline.hpp"
#include "trireme/base/error.hpp"

#include "ckpt/crc_table.hpp"
#include "sample.hpp"
#include <gtest/gtest.h>

#include <chrono>
#include <map>

namespace trireme::testing {
namespace {

using ckpt::Segment;

ckpt::Layout layout_of(const std::vector<TensorSpec>& specs) {
  ckpt::Layout layout;
  layout.head_bytes = 8192;
  std::uint64_t at = layout.head_bytes;
  for (const TensorSpec& spec : specs) {
    layout.offsets.push_back(at);
    at += ckpt::align_up(*ckpt::bytes_of(spec.dtype, spec.shape));
  }
  layout.file_bytes = at;
  return layout;
}

// What each rank writes after the exchange.
std::vector<std::vector<Segment>> plan(const ckpt::FileMap& map, const std::vector<Share>& shares) {
  const int size = static_cast<int>(shares.size());
  std::vector<ckpt::Split> splits;
  for (const Share& share : shares) {
    splits.push_back(ckpt::split_by_owner(map, ckpt::segments_of(map, share.written()), size));
  }
  std::vector<std::vector<Segment>> written;
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    std::vector<Segment> parts;
    for (const ckpt::Split& split : splits) {
      const auto& mine = split.parts_by_rank[rank];
      parts.insert(parts.end(), mine.begin(), mine.end());
    }
    written.push_back(ckpt::merge_parts(map, splits[rank].own, parts));
  }
  return written;
}

TEST(Plan, every_block_of_the_file_has_one_writer_that_holds_all_of_it) {
  const auto specs = sample_specs();
  const ckpt::Layout layout = layout_of(specs);
  const ckpt::FileMap map(specs, layout);
  for (const int size : {1, 2, 3, 5, 8}) {
    for (const Deal deal :
         {Deal::kEven, Deal::kCrumbs, Deal::kFirstRankOnly, Deal::kWholeTensors}) {
      std::vector<Share> shares;
      for (int rank = 0; rank < size; ++rank)
        shares.emplace_back(specs, deal, rank, size).fill(specs, 1);
      std::map<std::uint64_t, int> writer;
      std::map<std::uint64_t, std::uint64_t> filled;
      const auto written = plan(map, shares);
      for (int rank = 0; rank < size; ++rank) {
        for (const Segment& segment : written[static_cast<std::size_t>(rank)]) {
          for (std::uint64_t block = ckpt::align_down(segment.offset); block < segment.end();
               block += ckpt::kFileBlock) {
            const auto [it, is_new] = writer.emplace(block, rank);
            ASSERT_EQ(it->second, rank) << "block at " << block;
            filled[block] +=
                std::min(segment.end(), block + ckpt::kFileBlock) - std::max(segment.offset, block);
          }
        }
      }
      std::uint64_t all = 0;
      for (const auto& [block, bytes] : filled) all += bytes;
      std::uint64_t expected = 0;
      for (std::size_t i = 0; i < specs.size(); ++i) expected += map.bytes(i);
      EXPECT_EQ(all, expected);
    }
  }
}

TEST(Plan, parts_travel_as_they_are) {
  const auto specs = sample_specs();
  const ckpt::Layout layout = layout_of(specs);
  const ckpt::FileMap map(specs, layout);
  Share share(specs, Deal::kCrumbs, 1, 3);
  share.fill(specs, 1);
  const auto split = ckpt::split_by_owner(map, ckpt::segments_of(map, share.written()), 3);
  const auto& sent = split.parts_by_rank[0];
  ASSERT_FALSE(sent.empty());
  const auto message = ckpt::pack_parts(sent);
  std::vector<Segment> received;
  ckpt::unpack_parts(map, message, received);
  ASSERT_EQ(received.size(), sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(received[i].offset, sent[i].offset);
    EXPECT_EQ(received[i].tensor, sent[i].tensor);
    EXPECT_TRUE(std::equal(sent[i].data, sent[i].data + sent[i].bytes, received[i].data));
  }
  const std::span<const std::byte> cut = std::span(message).first(message.size() - 1);
  EXPECT_THROW(ckpt::unpack_parts(map, cut, received), Error);
}

TEST(Plan, takes_no_notice_of_how_many_small_extents_there_are) {
  // A million extents in one tensor: a quadratic plan would take minutes.
  const std::int64_t count = 1000000;
  const std::vector<TensorSpec> specs{{"/w", DType::kFloat32, {count}}};
  const ckpt::Layout layout = layout_of(specs);
  const ckpt::FileMap map(specs, layout);
  const std::vector<float> memory(static_cast<std::size_t>(count));
  std::vector<ckpt::ConstExtent> extents;
  for (std::int64_t i = count - 1; i >= 0; --i) extents.push_back({0, i, 1, memory.data() + i});
  const auto start = Clock::now();
  const auto split = ckpt::split_by_owner(map, ckpt::segments_of(map, extents), 4);
  EXPECT_EQ(split.own.size(), extents.size());
  EXPECT_LT(seconds_since(start), 5.0);
}

TEST(Crc, pieces_that_do_not_tile_a_tensor_are_refused) {
  const std::vector<TensorSpec> specs{{"/w", DType::kUInt8, {100}}};
  const ckpt::Layout layout = layout_of(specs);
  const ckpt::FileMap map(specs, layout);
  EXPECT_EQ(ckpt::join_pieces(map, {{0, 40, 60, 2}, {0, 0, 40, 1}}).at(0).size(), 1U);
  EXPECT_THROW(ckpt::join_pieces(map, {{0, 0, 40, 1}}), Error);
  EXPECT_THROW(ckpt::join_pieces(map, {{0, 0, 40, 1}, {0, 30, 70, 1}}), Error);
  EXPECT_THROW(ckpt::join_pieces(map, {{0, 40, 60, 2}}), Error);
}

}  // namespace
}  // namespace trireme::testing
