// The pool behind a Device: blocks of raw memory that are asked for once and used again and again,
// in the order of streams. Private to the room.
#pragma once

#include "trireme/memory/device.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace trireme::memory {

// Where raw memory comes from.
class DeviceMemorySource {
 public:
  virtual ~DeviceMemorySource() = default;
  // Returns null when there is none left.
  virtual std::byte* acquire(std::size_t size) = 0;
  virtual void release(std::byte* memory) noexcept = 0;  // nothing uses it any more
  virtual std::size_t total() const = 0;
};

struct DeviceBuffer::Block {
  std::byte* memory = nullptr;
  std::size_t capacity = 0;
  std::size_t size = 0;
  std::string label;
  std::shared_ptr<DeviceStream> stream;   // whose work uses it
  std::shared_ptr<DeviceEvent> last_use;  // set while it is free
};

class DevicePool {
 public:
  // `limit` 0: all that the source has.
  DevicePool(std::unique_ptr<DeviceMemorySource> source, std::size_t limit);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  std::unique_ptr<DeviceBuffer::Block> take(std::size_t size, std::string label,
                                            std::shared_ptr<DeviceStream> stream);
  void give_back(std::unique_ptr<DeviceBuffer::Block> block) noexcept;
  void trim() noexcept;
  bool owns(std::span<const std::byte> memory) const;
  DeviceUsage usage() const;

 private:
  using Block = DeviceBuffer::Block;

  std::unique_ptr<Block> reuse(std::size_t size, DeviceStream& stream);
  std::unique_ptr<Block> acquire(std::size_t capacity);
  static bool is_done_with(Block& block) noexcept;
  [[noreturn]] void throw_out_of_memory(std::size_t size, const std::string& label) const;

  std::unique_ptr<DeviceMemorySource> source_;
  std::size_t limit_;
  std::multimap<std::size_t, std::unique_ptr<Block>> free_;  // by capacity
  std::map<const Block*, std::string> taken_;                // and their labels
  std::size_t in_use_ = 0;
  std::size_t pooled_ = 0;
  std::size_t peak_ = 0;
};

}  // namespace trireme::memory
