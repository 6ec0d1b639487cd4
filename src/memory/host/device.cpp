// The host as a device: the rules of a GPU, kept where they cost nothing to check, on ordinary
// memory.
#include "trireme/memory/device.hpp"

#include "trireme/base/error.hpp"

#include "memory/device_pool.hpp"
#include "memory/host/stream.hpp"
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

namespace trireme::memory {

namespace {

class HostSource final : public DeviceMemorySource {
 public:
  explicit HostSource(std::size_t total) : total_(total) {}
  std::byte* acquire(std::size_t size) override {
    constexpr std::size_t kPage = 4096;
    const std::size_t whole = (size + kPage - 1) / kPage * kPage;
    void* const memory = std::aligned_alloc(kPage, whole);
    // As on a device, nobody may count on zeros.
    if (memory != nullptr) std::memset(memory, 0x5a, size);
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory) noexcept override { std::free(memory); }
  std::size_t total() const override { return total_; }

 private:
  std::size_t total_;
};

// Which memory is pinned: the rules of a GPU's driver, kept here too.
using Pinned = std::map<const std::byte*, std::size_t>;

class HostPin final : public Pin {
 public:
  HostPin(std::shared_ptr<Pinned> all, const std::byte* memory)
      : all_(std::move(all)), memory_(memory) {}
  ~HostPin() override { all_->erase(memory_); }
  HostPin(const HostPin&) = delete;
  HostPin& operator=(const HostPin&) = delete;

 private:
  std::shared_ptr<Pinned> all_;  // shared: pins may outlive the device object
  const std::byte* memory_;
};

class HostDevice final : public Device {
 public:
  HostDevice(std::size_t limit, HostTiming timing)
      : Device(std::make_shared<DevicePool>(std::make_unique<HostSource>(limit), limit)),
        timing_(timing) {}

  std::string describe() const override { return "the host as a device"; }

  std::shared_ptr<DeviceStream> stream(std::string label, StreamPriority /*priority*/) override {
    return make_host_stream(std::move(label), timing_);
  }

  std::unique_ptr<Pin> pin(std::span<std::byte> memory, std::string label) override {
    const auto above = pinned_->upper_bound(memory.data());
    const bool reaches = above != pinned_->end() && above->first < memory.data() + memory.size();
    const bool reached = above != pinned_->begin() &&
                         std::prev(above)->first + std::prev(above)->second > memory.data();
    ensure(!reaches && !reached, fmt::format("memory is pinned once: {}", label));
    (*pinned_)[memory.data()] = memory.size();
    return std::make_unique<HostPin>(pinned_, memory.data());
  }

  void copy(std::span<std::byte> to, std::span<const std::byte> from,
            DeviceStream& stream) override {
    ensure(to.size() == from.size(), "a copy has one size");
    if (!to.empty()) stream.run([to, from] { std::memmove(to.data(), from.data(), to.size()); });
  }
  void zero(std::span<std::byte> to, DeviceStream& stream) override {
    if (!to.empty()) stream.run([to] { std::memset(to.data(), 0, to.size()); });
  }

 private:
  HostTiming timing_;
  std::shared_ptr<Pinned> pinned_ = std::make_shared<Pinned>();
};

}  // namespace

std::unique_ptr<Device> open_host_device(const DeviceOptions& options, HostTiming timing) {
  constexpr std::size_t kAll = std::size_t{1} << 46;
  if (options.index != 0)
    throw Error(ErrorKind::kEnvironment, "the host is one device: its index is 0");
  return std::make_unique<HostDevice>(
      options.limit.value == 0 ? kAll : static_cast<std::size_t>(options.limit.value), timing);
}

}  // namespace trireme::memory
