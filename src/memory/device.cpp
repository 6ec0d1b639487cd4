#include "trireme/memory/device.hpp"

#include "trireme/base/error.hpp"

#include "memory/device_pool.hpp"

#include <utility>

namespace trireme::memory {

DeviceBuffer::DeviceBuffer() = default;
DeviceBuffer::DeviceBuffer(std::shared_ptr<DevicePool> pool, std::unique_ptr<Block> block)
    : pool_(std::move(pool)), block_(std::move(block)) {}
DeviceBuffer::DeviceBuffer(DeviceBuffer&&) noexcept = default;

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  pool_ = std::move(other.pool_);
  block_ = std::move(other.block_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() { give_back(); }

void DeviceBuffer::give_back() noexcept {
  if (block_) pool_->give_back(std::move(block_));
}

std::span<std::byte> DeviceBuffer::bytes() const {
  if (!block_) return {};
  return {block_->memory, block_->size};
}

DeviceBuffer Device::allocate(Bytes size, std::string label, std::shared_ptr<DeviceStream> stream) {
  ensure(size.value >= 0 && stream, "device memory has a size and a stream");
  return {pool_,
          pool_->take(static_cast<std::size_t>(size.value), std::move(label), std::move(stream))};
}

PinnedBuffer Device::pinned(Bytes size, std::string label) {
  PinnedBuffer buffer;
  buffer.memory = HostBuffer(size, label);
  buffer.pin = pin(buffer.memory.bytes(), std::move(label));
  return buffer;
}

bool Device::owns(std::span<const std::byte> memory) const { return pool_->owns(memory); }
DeviceUsage Device::usage() const { return pool_->usage(); }
void Device::trim() { pool_->trim(); }

}  // namespace trireme::memory
