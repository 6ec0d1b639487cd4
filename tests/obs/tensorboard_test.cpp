// Files are compared byte for byte with what TensorBoard's own writer made (data/*.tfevents, copied
// from the golden data; oracle tensorboard 2.21.0), and taken apart by a small decoder that shares
// no code with the encoder.
#include "trireme/obs/tensorboard.hpp"

#include "support/temp_dir.hpp"
#include "trireme/base/error.hpp"
#include "trireme/obs/metrics.hpp"

#include "files.hpp"
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

namespace trireme::obs {
namespace {

std::string reference(const std::string& name) {
  std::string bytes = content(std::string(TRIREME_TEST_DATA) + "/obs/data/" + name + ".tfevents");
  EXPECT_FALSE(bytes.empty()) << name;
  return bytes;
}

// ---- decoder ----

std::uint32_t slow_crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1U) != 0 ? (crc >> 1U) ^ 0x82F63B78U : crc >> 1U;
  }
  return ~crc;
}

std::uint32_t masked(std::string_view bytes) {
  const std::uint32_t crc = slow_crc32c(bytes);
  return ((crc >> 15U) | (crc << 17U)) + 0xA282EAD8U;
}

template <class T>
T take(std::string_view& bytes) {
  T value;
  if (bytes.size() < sizeof(T)) throw std::runtime_error("cut");
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return value;
}

std::vector<std::string> records(std::string_view bytes) {
  std::vector<std::string> found;
  while (!bytes.empty()) {
    const std::string_view length_bytes = bytes.substr(0, 8);
    const auto length = take<std::uint64_t>(bytes);
    EXPECT_EQ(take<std::uint32_t>(bytes), masked(length_bytes));
    found.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
    EXPECT_EQ(take<std::uint32_t>(bytes), masked(found.back()));
  }
  return found;
}

struct Message {
  std::multimap<std::uint64_t, std::uint64_t> numbers;
  std::multimap<std::uint64_t, std::string> texts;
};

std::uint64_t take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (unsigned shift = 0;; shift += 7) {
    const auto byte = take<unsigned char>(bytes);
    value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
    if (byte < 0x80) return value;
  }
}

Message decode(std::string_view bytes) {
  Message message;
  while (!bytes.empty()) {
    const std::uint64_t key = take_varint(bytes);
    switch (key & 7U) {
      case 0:
        message.numbers.emplace(key >> 3U, take_varint(bytes));
        break;
      case 1:
        message.numbers.emplace(key >> 3U, take<std::uint64_t>(bytes));
        break;
      case 5:
        message.numbers.emplace(key >> 3U, take<std::uint32_t>(bytes));
        break;
      case 2: {
        const std::uint64_t length = take_varint(bytes);
        message.texts.emplace(key >> 3U, bytes.substr(0, length));
        bytes.remove_prefix(length);
        break;
      }
      default:
        throw std::runtime_error("wire type");
    }
  }
  return message;
}

std::filesystem::path event_file_in(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) return entry.path();
  }
  return {};
}

// ---- tests ----

TEST(TensorBoard, writes_the_bytes_of_the_reference_one_scalar_per_event) {
  double time = 1700000000.0;
  std::string bytes = event_record(version_event(time));
  const struct {
    std::int64_t step;
    float loss, lr;
  } steps[] = {{0, 10.5F, 0},
               {1, 9.25F, 0.0001F},
               {2, 8.125F, 0.0002F},
               {3, 7.000001F, 0.0003F},
               {10, 0.1F, 1e-7F}};
  for (const auto& [step, loss, lr] : steps) {
    const Scalar first[] = {{"loss", loss}};
    const Scalar second[] = {{"lr", lr}};
    time += 0.5;
    bytes += event_record(scalar_event(time, step, first));
    bytes += event_record(scalar_event(time, step, second));
  }
  EXPECT_EQ(bytes, reference("train"));
}

TEST(TensorBoard, writes_the_bytes_of_the_reference_all_scalars_in_one_event) {
  double time = 1717171717.125;
  std::string bytes =
      event_record(version_event(time, "tensorboard.summary.writer.event_file_writer"));
  const struct {
    std::int64_t step;
    float loss, lr, speed;
  } steps[] = {
      {1, 3.5F, 0.001F, 123456.0F}, {128, 2.5F, 0.0005F, 130000.0F}, {3000000000, 1.5F, 0, 1e30F}};
  for (const auto& [step, loss, lr, speed] : steps) {
    const Scalar scalars[] = {{"loss", loss}, {"lr", lr}, {"train/tokens_per_second", speed}};
    bytes += event_record(scalar_event(time += 1.25, step, scalars));
  }
  EXPECT_EQ(bytes, reference("together"));
}

TEST(TensorBoard, writes_the_bytes_of_the_reference_for_odd_values) {
  using Limits = std::numeric_limits<float>;
  int count = 0;
  std::string bytes = event_record(version_event(1.0));
  const struct {
    std::int64_t step;
    Scalar scalar;
  } events[] = {{0, {"x", Limits::quiet_NaN()}},
                {1, {"x", Limits::infinity()}},
                {2, {"x", -Limits::infinity()}},
                {3, {"x", -0.0F}},
                {4, {"x", Limits::denorm_min()}},
                {5, {"x", Limits::max()}},
                {6, {"\xC3\xA9t\xC3\xA9/\xE6\xB0\xB4", 1.0F}},
                {-1, {"x", 2.0F}}};
  for (const auto& [step, scalar] : events)
    bytes += event_record(scalar_event(1.0 + ++count * 0.001, step, {&scalar, 1}));
  EXPECT_EQ(bytes, reference("odd_values"));
}

TEST(TensorBoard, writes_a_file_that_the_decoder_takes_apart) {
  const testing::TempDir folder;
  EventFile file(folder.path());
  const Scalar scalars[] = {{"train/loss", 2.5F}, {"train/lr", 0.0F}};
  file.write(300, scalars);
  const auto found = records(content(file.path()));
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(decode(found[0]).texts.find(3)->second, "brain.Event:2");
  const Message event = decode(found[1]);
  EXPECT_EQ(event.numbers.find(2)->second, 300U);
  const Message summary = decode(event.texts.find(5)->second);
  ASSERT_EQ(summary.texts.count(1), 2U);
  const Message value = decode(summary.texts.find(1)->second);
  EXPECT_EQ(value.texts.find(1)->second, "train/loss");
  EXPECT_EQ(value.numbers.find(2)->second, std::bit_cast<std::uint32_t>(2.5F));
}

TEST(TensorBoard, starts_a_session_when_a_run_is_resumed) {
  const testing::TempDir folder;
  const EventFile file(folder.path(), 101);
  const auto found = records(content(file.path()));
  ASSERT_EQ(found.size(), 2U);
  const Message event = decode(found[1]);
  EXPECT_EQ(event.numbers.find(2)->second, 101U);
  EXPECT_EQ(decode(event.texts.find(7)->second).numbers.find(1)->second, 1U);  // SessionLog::START
}

TEST(TensorBoard, never_touches_an_existing_file) {
  const testing::TempDir folder;
  const EventFile first(folder.path());
  const EventFile second(folder.path());
  EXPECT_NE(first.path(), second.path());
  EXPECT_FALSE(content(first.path()).empty());
}

TEST(TensorBoard, has_every_measured_value_of_a_step) {
  const testing::TempDir folder;
  MetricsWriter writer(folder.path(), 0, true);
  StepMetrics metrics;
  metrics.step = 5;
  metrics.loss = 1.0;
  metrics.tokens = 4096;
  metrics.eval_loss = 2.0;
  writer.write(metrics);
  const auto found = records(content(event_file_in(folder.path())));
  ASSERT_EQ(found.size(), 2U);
  std::string tags;
  const Message summary = decode(decode(found[1]).texts.find(5)->second);
  for (const auto& [field, value] : summary.texts)
    tags += decode(value).texts.find(1)->second + " ";
  EXPECT_EQ(tags, "train/loss progress/tokens eval/loss ");
}

TEST(TensorBoard, is_not_written_when_not_asked_for) {
  const testing::TempDir folder;
  const MetricsWriter writer(folder.path(), 0, false);
  EXPECT_TRUE(event_file_in(folder.path()).empty());
}

}  // namespace
}  // namespace trireme::obs
