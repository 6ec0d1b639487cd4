// One set of tests for every kind of device; a GPU's are skipped, with the reason, where there is none.
#include "trireme/memory/device.hpp"

#include "trireme/base/error.hpp"

#include "support/error_of.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <future>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace trireme::memory {
namespace {

using ::testing::HasSubstr;
using trireme::testing::error_of;

Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

std::span<std::byte> bytes_of(std::vector<std::uint32_t>& values) { return std::as_writable_bytes(std::span(values)); }

std::vector<std::uint32_t> numbers(std::size_t count, std::uint32_t first) {
  std::vector<std::uint32_t> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

enum class Kind { kEarlyHost, kLateHost, kGpu };

std::unique_ptr<Device> open(Kind kind, Bytes limit = Bytes(0)) {
  if (kind == Kind::kGpu) return open_gpu({0, limit});
  return open_host_device({0, limit}, kind == Kind::kLateHost ? HostTiming::kLate : HostTiming::kEarly);
}

class EveryDevice : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    try {
      device = open(GetParam());
    } catch (const Error& error) {
      GTEST_SKIP() << error.message;
    }
  }
  bool is_host() const { return GetParam() != Kind::kGpu; }

  std::vector<std::uint32_t> download(const DeviceBuffer& from, DeviceStream& stream) {
    std::vector<std::uint32_t> values(from.bytes().size() / 4);
    device->copy(bytes_of(values), from.bytes(), stream);
    stream.wait("a copy to the host", soon());
    return values;
  }

  std::unique_ptr<Device> device;
};

TEST_P(EveryDevice, takes_bytes_there_and_back) {
  EXPECT_FALSE(device->describe().empty());
  const auto stream = device->stream("copies");
  for (const std::size_t count : {1U, 1000U, 3U << 20}) {
    auto values = numbers(count, 7);
    const Bytes size(static_cast<std::int64_t>(count * 4));
    const DeviceBuffer a = device->allocate(size, "a", stream);
    const DeviceBuffer b = device->allocate(size, "b", stream);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.bytes().data()) % 512, 0U);
    PinnedBuffer pinned = device->pinned(size, "staging");
    std::memcpy(pinned.memory.bytes().data(), values.data(), count * 4);
    device->copy(a.bytes(), pinned.memory.bytes().first(count * 4), *stream);
    device->copy(b.bytes(), a.bytes(), *stream);
    device->zero(a.bytes(), *stream);
    EXPECT_EQ(download(b, *stream), values);
    EXPECT_EQ(download(a, *stream), std::vector<std::uint32_t>(count));
  }
}

TEST_P(EveryDevice, does_the_work_of_a_stream_in_order) {
  const auto stream = device->stream("calls");
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) stream->run([&order, i] { order.push_back(i); });
  stream->wait("calls", soon());
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

// The producer is slow: without the event the consumer would see what was there before.
TEST_P(EveryDevice, lets_one_stream_wait_for_a_moment_of_another) {
  const auto producer = device->stream("producer", StreamPriority::kHigh);
  const auto consumer = device->stream("consumer");
  std::atomic<int> value = 0;
  int seen_at_event = 0;
  producer->run([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    value = 1;
  });
  const auto event = producer->record();
  EXPECT_FALSE(event->reached());
  consumer->after(event);
  consumer->run([&] { seen_at_event = value; });
  consumer->wait("the consumer", soon());
  EXPECT_EQ(seen_at_event, 1);
  EXPECT_TRUE(event->reached());
}

TEST_P(EveryDevice, runs_streams_at_the_same_time) {
  const auto first = device->stream("first");
  const auto second = device->stream("second");
  std::promise<void> meeting;
  const std::shared_future<void> met = meeting.get_future().share();
  bool together = false;
  first->run([&] { together = met.wait_for(std::chrono::seconds(20)) == std::future_status::ready; });
  const auto first_done = first->record();
  second->run([&] { meeting.set_value(); });
  if (GetParam() == Kind::kLateHost) {  // which holds streams that nobody waits for
    second->wait("the second", soon());
  }
  first->wait("the first", soon());
  EXPECT_TRUE(together);
  EXPECT_TRUE(first_done->reached());
}

TEST_P(EveryDevice, names_what_does_not_end_in_time) {
  const auto stream = device->stream("slow");
  std::promise<void> open_up;
  const std::shared_future<void> opened = open_up.get_future().share();
  stream->run([opened] { opened.wait_for(std::chrono::seconds(20)); });
  int turns = 0;
  const auto start = Clock::now();
  const Error error = error_of([&] {
    stream->wait("the gather of h.3", Deadline::after(std::chrono::milliseconds(80)), [&] { ++turns; });
  });
  EXPECT_EQ(error.kind, ErrorKind::kTimeout);
  EXPECT_THAT(error.message, HasSubstr("'the gather of h.3' did not end in time on stream slow"));
  EXPECT_LT(seconds_since(start), 10);
  EXPECT_GT(turns, 2);
  open_up.set_value();
  EXPECT_NO_THROW(stream->wait("the gather of h.3", soon()));
}

TEST_P(EveryDevice, hands_on_what_work_has_thrown) {
  const auto stream = device->stream("failing");
  bool ran = false;
  stream->run([] { throw Error(ErrorKind::kPeerLost, "rank 3 has ended"); });
  const auto event = stream->record();
  if (is_host()) stream->run([&] { ran = true; });
  EXPECT_EQ(error_of([&] { stream->wait("work", soon()); }).message, "rank 3 has ended");
  EXPECT_FALSE(ran);
  if (!is_host()) return;  // there the stream's later work goes on
  const auto dependent = device->stream("dependent");
  dependent->after(event);
  dependent->run([&] { ran = true; });
  const Error error = error_of([&] { dependent->wait("what comes after", soon()); });
  EXPECT_EQ(error.kind, ErrorKind::kPeerLost);
  EXPECT_FALSE(ran);
}

// Waiting may fail for a reason of the waiter's own: a rank that has died.
TEST_P(EveryDevice, ends_a_wait_by_what_is_thrown_meanwhile) {
  const auto stream = device->stream("slow");
  std::promise<void> open_up;
  const std::shared_future<void> opened = open_up.get_future().share();
  stream->run([opened] { opened.wait_for(std::chrono::seconds(20)); });
  const auto look = [] { throw Error(ErrorKind::kPeerLost, "rank 1 has ended"); };
  EXPECT_EQ(error_of([&] { stream->wait("work", soon(), look); }).kind, ErrorKind::kPeerLost);
  open_up.set_value();
  stream->wait("work", soon());
}

TEST_P(EveryDevice, refuses_what_makes_no_sense) {
  const auto stream = device->stream("s");
  const DeviceBuffer buffer = device->allocate(Bytes(1024), "buffer", stream);
  std::vector<std::uint32_t> host(10);
  EXPECT_THROW(device->copy(buffer.bytes(), bytes_of(host), *stream), Error);
  EXPECT_THROW(device->allocate(Bytes(8), "no stream", nullptr), Error);
  EXPECT_THROW(device->allocate(Bytes(-8), "no size", stream), Error);
  class Stranger : public DeviceEvent {
    bool reached() override { return true; }
  };
  EXPECT_THROW(stream->after(std::make_shared<Stranger>()), Error);
  EXPECT_TRUE(DeviceBuffer().bytes().empty());
}

TEST_P(EveryDevice, knows_its_own_memory) {
  const auto stream = device->stream("s");
  const DeviceBuffer buffer = device->allocate(Bytes(1000), "buffer", stream);
  EXPECT_TRUE(device->owns(buffer.bytes()));
  EXPECT_TRUE(device->owns(buffer.bytes().subspan(10, 20)));
  EXPECT_FALSE(device->owns({buffer.bytes().data() + 990, 20}));
  std::vector<std::uint32_t> host(10);
  EXPECT_FALSE(device->owns(bytes_of(host)));
}

TEST_P(EveryDevice, pins_memory_once) {
  HostBuffer memory(Bytes(1 << 20), "memory");
  auto pin = device->pin(memory.bytes(), "first");
  EXPECT_THROW(device->pin(memory.bytes(), "again"), Error);
  pin.reset();
  EXPECT_NO_THROW(pin = device->pin(memory.bytes(), "later"));
}

// The memory of a stream that is still at work is given to another stream, which must come after.
TEST_P(EveryDevice, reuses_memory_in_the_order_of_streams) {
  const auto old_user = device->stream("old");
  const auto new_user = device->stream("new");
  auto old_values = numbers(1000, 1);
  auto new_values = numbers(1000, 5000);
  std::optional<DeviceBuffer> buffer = device->allocate(Bytes(4000), "first", old_user);
  const std::byte* const address = buffer->bytes().data();
  std::vector<std::uint32_t> seen(1000);
  device->copy(buffer->bytes(), bytes_of(old_values), *old_user);
  const auto written = old_user->record();
  written->push();
  for (const Deadline deadline = soon(); !written->reached() && !deadline.expired();) std::this_thread::yield();
  old_user->run([] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); });
  device->copy(bytes_of(seen), buffer->bytes(), *old_user);
  buffer.reset();  // what is queued may still use it

  const DeviceBuffer next = device->allocate(Bytes(4000), "second", new_user);
  EXPECT_EQ(next.bytes().data(), address);
  device->copy(next.bytes(), bytes_of(new_values), *new_user);
  EXPECT_EQ(download(next, *new_user), new_values);
  old_user->wait("the old user", soon());
  EXPECT_EQ(seen, old_values);
}

TEST_P(EveryDevice, counts_its_memory_and_says_who_holds_it) {
  device = open(GetParam(), Bytes(64 << 20));
  const auto stream = device->stream("s");
  {
    const DeviceBuffer weights = device->allocate(Bytes(40 << 20), "weights", stream);
    const DeviceBuffer sums = device->allocate(Bytes(10 << 20), "sums of gradients", stream);
    EXPECT_EQ(device->usage().in_use, Bytes(50 << 20));
    const Error error = error_of([&] { device->allocate(Bytes(20 << 20), "activations", stream); });
    EXPECT_EQ(error.kind, ErrorKind::kOutOfMemory);
    EXPECT_THAT(error.message, HasSubstr("for activations"));
    EXPECT_THAT(error.message, HasSubstr("weights"));
    EXPECT_THAT(error.message, HasSubstr("sums of gradients"));
  }
  EXPECT_EQ(device->usage().in_use, Bytes(0));
  EXPECT_EQ(device->usage().pooled, Bytes(50 << 20));
  EXPECT_EQ(device->usage().peak, Bytes(50 << 20));
  // No free block is large enough: all go back to the device first.
  const DeviceBuffer large = device->allocate(Bytes(60 << 20), "all of it", stream);
  EXPECT_EQ(device->usage().pooled, Bytes(0));
}

TEST_P(EveryDevice, buffers_outlive_the_device_object) {
  const auto stream = device->stream("s");
  auto values = numbers(10, 3);
  DeviceBuffer buffer = device->allocate(Bytes(40), "late", stream);
  device->copy(buffer.bytes(), bytes_of(values), *stream);
  device.reset();
  stream->wait("a copy", soon());
  buffer = {};
}

INSTANTIATE_TEST_SUITE_P(of, EveryDevice, ::testing::Values(Kind::kEarlyHost, Kind::kLateHost, Kind::kGpu),
                         [](const auto& kind) {
                           return std::string(kind.param == Kind::kGpu         ? "gpu"
                                              : kind.param == Kind::kEarlyHost ? "early_host"
                                                                               : "late_host");
                         });

TEST(LateHost, does_nothing_before_somebody_waits) {
  const auto device = open(Kind::kLateHost);
  const auto stream = device->stream("s");
  std::atomic<bool> first = false;
  std::atomic<bool> second = false;
  stream->run([&] { first = true; });
  const auto event = stream->record();
  stream->run([&] { second = true; });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(first);
  const auto other = device->stream("other");
  other->after(event);
  other->wait("the first call", soon());
  EXPECT_TRUE(first);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(second) << "nobody has waited for it";
}

TEST(HostDevice, gives_memory_that_is_not_zero) {
  const auto device = open(Kind::kEarlyHost);
  const DeviceBuffer buffer = device->allocate(Bytes(64), "b", device->stream("s"));
  EXPECT_EQ(buffer.bytes()[0], std::byte{0x5a});
  EXPECT_EQ(error_of([] { open_host_device({1, Bytes(0)}); }).kind, ErrorKind::kEnvironment);
}

TEST(Gpu, that_is_missing_is_an_error_of_the_environment) {
  try {
    open_gpu({});
    GTEST_SKIP() << "there is a GPU";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kEnvironment);
    EXPECT_EQ(exit_code(error.kind), 69);
    EXPECT_THAT(error.message, HasSubstr("no GPU can be used: "));
    EXPECT_FALSE(error.hint.empty());
  }
}

TEST(Gpu, with_an_index_that_no_machine_has_is_refused) {
  EXPECT_EQ(error_of([] { open_gpu({1000, Bytes(0)}); }).kind, ErrorKind::kEnvironment);
}

}  // namespace
}  // namespace trireme::memory
