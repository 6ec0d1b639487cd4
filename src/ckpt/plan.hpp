// Who writes which bytes of state.h5, as pure arithmetic: no file, no message is touched here.
//
// A 4 KiB block of the file has one writer. Where this rank holds all that a block needs, it is
// this rank; otherwise the parts that ranks hold travel to the block's owner, a function of the
// block's number alone, so that nobody needs to know who holds what. Owners are spread in strides
// of 1 MiB, so that neighbouring blocks are still written together.
#pragma once

#include "trireme/comm/communicator.hpp"

#include "ckpt/format.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::ckpt {

// Bytes of one tensor at a place in the file.
struct Segment {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  const std::byte* data = nullptr;
  std::size_t tensor = 0;
  // Where data is null: the extent that makes the bytes, and where in it they begin.
  const ConstExtent* made_by = nullptr;
  std::uint64_t at = 0;

  std::uint64_t end() const { return offset + bytes; }
  // Makes the bytes from `begin` of the segment on.
  void make(std::uint64_t begin, std::span<std::byte> out) const { made_by->move(at + begin, out); }
};

// The specs and the layout together, as the plan needs them.
class FileMap {
 public:
  FileMap(const std::vector<TensorSpec>& tensors, const Layout& layout);

  std::uint64_t begin(std::size_t tensor) const { return begins_[tensor]; }
  std::uint64_t bytes(std::size_t tensor) const { return bytes_[tensor]; }
  std::uint64_t end(std::size_t tensor) const { return begins_[tensor] + bytes_[tensor]; }
  const TensorSpec& spec(std::size_t tensor) const { return (*tensors_)[tensor]; }
  std::size_t size() const { return begins_.size(); }

 private:
  const std::vector<TensorSpec>* tensors_;
  std::vector<std::uint64_t> begins_;
  std::vector<std::uint64_t> bytes_;
};

// Throws Internal when an extent is out of its tensor's range, or has elements but nothing to hold
// or make them.
void check_extents(const std::vector<TensorSpec>& tensors, std::span<const ConstExtent> extents);
void check_extents(const std::vector<TensorSpec>& tensors, std::span<const Extent> extents);

// Returns the extents in file order, without empty ones; throws Internal when two overlap. Segments
// may point to the extents.
std::vector<Segment> segments_of(const FileMap& map, std::span<const ConstExtent> extents);

struct Split {
  std::vector<Segment> own;                         // what this rank writes from its own memory
  std::vector<std::vector<Segment>> parts_by_rank;  // parts of shared blocks, by owner
};
Split split_by_owner(const FileMap& map, std::span<const Segment> segments, int num_ranks);

// Parts of blocks as messages and back. Unpacked segments point into the message.
comm::ByteVector pack_parts(std::span<const Segment> parts);
void unpack_parts(const FileMap& map, std::span<const std::byte> message,
                  std::vector<Segment>& parts);

// Returns own and received segments in file order; throws Internal when any two overlap or a
// received block is not complete, naming the tensor and the elements that nobody or more than one
// rank gave.
std::vector<Segment> merge_parts(const FileMap& map, std::vector<Segment> own,
                                 std::vector<Segment> parts);

}  // namespace trireme::ckpt
