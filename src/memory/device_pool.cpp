#include "memory/device_pool.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace trireme::memory {

namespace {

constexpr std::size_t kSmallGrain = 512;
constexpr std::size_t kLargeGrain = std::size_t{2} << 20;  // a page of the device
// A free block serves a smaller request if it wastes no more than this part of it.
constexpr std::size_t kWaste = 4;
// For work that still uses memory which is to go back.
constexpr std::chrono::seconds kPatience{10};

std::size_t capacity_for(std::size_t size) {
  const std::size_t grain = size < kLargeGrain ? kSmallGrain : kLargeGrain;
  return std::max<std::size_t>((size + grain - 1) / grain, 1) * grain;
}

Bytes bytes(std::size_t size) { return Bytes(static_cast<std::int64_t>(size)); }

}  // namespace

DevicePool::DevicePool(std::unique_ptr<DeviceMemorySource> source, std::size_t limit)
    : source_(std::move(source)), limit_(limit == 0 ? source_->total() : limit) {}

DevicePool::~DevicePool() { trim(); }

std::unique_ptr<DeviceBuffer::Block> DevicePool::take(std::size_t size, std::string label,
                                                      std::shared_ptr<DeviceStream> stream) {
  auto block = reuse(size, *stream);
  if (!block) block = acquire(capacity_for(size));
  if (!block) {
    trim();
    block = acquire(capacity_for(size));
  }
  if (!block) throw_out_of_memory(size, label);
  block->size = size;
  block->label = std::move(label);
  block->stream = std::move(stream);
  in_use_ += block->capacity;
  peak_ = std::max(peak_, in_use_);
  taken_.emplace(block.get(), block->label);
  return block;
}

std::unique_ptr<DeviceBuffer::Block> DevicePool::reuse(std::size_t size, DeviceStream& stream) {
  const std::size_t capacity = capacity_for(size);
  const auto fits = [&](auto at) { return at->first <= capacity + capacity / kWaste; };
  const auto begin = free_.lower_bound(capacity);
  auto chosen = free_.end();
  for (auto at = begin; at != free_.end() && fits(at); ++at) {
    const Block& block = *at->second;
    const bool at_once = block.stream.get() == &stream || block.last_use->reached();
    if (chosen == free_.end() || at_once) chosen = at;
    if (at_once) break;
  }
  if (chosen == free_.end()) return nullptr;
  auto block = std::move(chosen->second);
  free_.erase(chosen);
  pooled_ -= block->capacity;
  if (block->stream.get() != &stream) stream.after(block->last_use);
  block->last_use.reset();
  return block;
}

std::unique_ptr<DeviceBuffer::Block> DevicePool::acquire(std::size_t capacity) {
  if (in_use_ + pooled_ + capacity > limit_) return nullptr;
  std::byte* const memory = source_->acquire(capacity);
  if (memory == nullptr) return nullptr;
  auto block = std::make_unique<Block>();
  block->memory = memory;
  block->capacity = capacity;
  return block;
}

void DevicePool::give_back(std::unique_ptr<Block> block) noexcept {
  taken_.erase(block.get());
  in_use_ -= block->capacity;
  try {
    block->last_use = block->stream->record();
    pooled_ += block->capacity;
    free_.emplace(block->capacity, std::move(block));
  } catch (...) {
    // The device has failed: nothing waits for it any more, and wait() says why.
    if (block) source_->release(block->memory);
  }
}

// Memory that a stuck stream may still write to is lost rather than given to others.
void DevicePool::trim() noexcept {
  for (auto& [capacity, block] : free_) {
    if (is_done_with(*block)) source_->release(block->memory);
  }
  free_.clear();
  pooled_ = 0;
}

bool DevicePool::is_done_with(Block& block) noexcept {
  try {
    if (!block.last_use->reached())
      block.stream->wait("memory of the device to be free", Deadline::after(kPatience));
    return true;
  } catch (const Error& error) {
    return error.kind != ErrorKind::kTimeout;  // a stream that failed runs nothing any more
  } catch (...) {
    return true;
  }
}

bool DevicePool::owns(std::span<const std::byte> memory) const {
  return std::any_of(taken_.begin(), taken_.end(), [&](const auto& entry) {
    const Block& block = *entry.first;
    return memory.data() >= block.memory &&
           memory.data() + memory.size() <= block.memory + block.size;
  });
}

DeviceUsage DevicePool::usage() const {
  return {bytes(limit_), bytes(in_use_), bytes(pooled_), bytes(peak_)};
}

void DevicePool::throw_out_of_memory(std::size_t size, const std::string& label) const {
  std::map<std::string, std::size_t> by_label;
  for (const auto& [block, name] : taken_) by_label[name] += block->capacity;
  std::vector<std::pair<std::size_t, std::string>> largest;
  for (const auto& [name, held] : by_label) largest.emplace_back(held, name);
  std::sort(largest.rbegin(), largest.rend());
  std::string holders;
  for (std::size_t i = 0; i < std::min<std::size_t>(largest.size(), 5); ++i) {
    holders += fmt::format("{}{} {}", i == 0 ? "" : ", ", human(bytes(largest[i].first)),
                           largest[i].second);
  }
  throw Error(ErrorKind::kOutOfMemory,
              fmt::format("the device has no {} for {}: {} of {} are in use ({})",
                          human(bytes(size)), label, human(bytes(in_use_)), human(bytes(limit_)),
                          holders.empty() ? "nothing by trireme" : holders),
              "lower the micro-batch size, recompute activations, offload more, or use more ranks");
}

}  // namespace trireme::memory
