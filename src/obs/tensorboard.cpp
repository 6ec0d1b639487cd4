#include "trireme/obs/tensorboard.hpp"

#include "trireme/base/environment.hpp"

#include "append.hpp"
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>

namespace trireme::obs {

namespace {

// Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
enum : std::uint32_t {
  kEventWallTime = 1,
  kEventStep = 2,
  kEventFileVersion = 3,
  kEventSummary = 5,
  kEventSessionLog = 7,
  kEventSourceMetadata = 10,
  kSummaryValue = 1,
  kValueTag = 1,
  kValueSimple = 2,
  kSessionLogStatus = 1,
  kSourceMetadataWriter = 1,
};

enum : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr std::uint64_t kSessionStart = 1;

template <class Word>
void put_little_endian(std::string& out, Word word) {
  for (std::size_t i = 0; i < sizeof(Word); ++i)
    out += static_cast<char>((word >> (8 * i)) & 0xFFU);
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7FU) | 0x80U);
  out += static_cast<char>(value);
}

void put_key(std::string& out, std::uint32_t field, std::uint32_t type) {
  put_varint(out, field << 3U | type);
}

void put_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

// proto3 leaves zeros out.
void put_integer(std::string& out, std::uint32_t field, std::uint64_t value) {
  if (value == 0) return;
  put_key(out, field, kVarint);
  put_varint(out, value);
}

std::string event_header(double wall_time, std::int64_t step) {
  std::string out;
  put_key(out, kEventWallTime, kFixed64);
  put_little_endian(out, std::bit_cast<std::uint64_t>(wall_time));
  put_integer(out, kEventStep, static_cast<std::uint64_t>(step));
  return out;
}

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82F63B78U : 0U);
    table[i] = crc;
  }
  return table;
}

// CRC-32C (Castagnoli). A table is enough for a few hundred bytes a step; `kernels` has a fast one
// for checkpoints.
std::uint32_t masked_crc(std::string_view bytes) {
  static constexpr auto kTable = make_crc_table();
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char c : bytes)
    crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFFU] ^ (crc >> 8U);
  crc = ~crc;
  return std::rotr(crc, 15) + 0xA282EAD8U;  // TFRecord's mask, for records inside records
}

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string version_event(double wall_time, std::string_view writer) {
  std::string out = event_header(wall_time, 0);
  put_bytes(out, kEventFileVersion, "brain.Event:2");
  if (!writer.empty()) {
    std::string metadata;
    put_bytes(metadata, kSourceMetadataWriter, writer);
    put_bytes(out, kEventSourceMetadata, metadata);
  }
  return out;
}

std::string session_start_event(double wall_time, std::int64_t step) {
  std::string log;
  put_integer(log, kSessionLogStatus, kSessionStart);
  std::string out = event_header(wall_time, step);
  put_bytes(out, kEventSessionLog, log);
  return out;
}

std::string scalar_event(double wall_time, std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, kValueTag, scalar.tag);
    put_key(value, kValueSimple, kFixed32);  // in a oneof, so zero is written too
    put_little_endian(value, std::bit_cast<std::uint32_t>(scalar.value));
    put_bytes(summary, kSummaryValue, value);
  }
  std::string out = event_header(wall_time, step);
  put_bytes(out, kEventSummary, summary);
  return out;
}

std::string event_record(std::string_view message) {
  std::string out;
  put_little_endian(out, static_cast<std::uint64_t>(message.size()));
  put_little_endian(out, masked_crc(out));
  out += message;
  put_little_endian(out, masked_crc(message));
  return out;
}

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t first_step) {
  const double now = unix_time();
  const std::string base = fmt::format("events.out.tfevents.{:010}.{}.{}",
                                       static_cast<std::int64_t>(now), host_name(), ::getpid());
  // Two files in one second of one process: only the name of the later one changes.
  for (int attempt = 0; !file_; ++attempt) {
    path_ = folder / (attempt == 0 ? base : fmt::format("{}.{}", base, attempt));
    file_ = detail::open_to_append(path_, O_CREAT | O_EXCL);
  }
  append(version_event(now, "trireme"));
  if (first_step > 1) append(session_start_event(now, first_step));
}

void EventFile::write(std::int64_t step, std::span<const Scalar> scalars) {
  append(scalar_event(unix_time(), step, scalars));
}

void EventFile::append(const std::string& message) {
  detail::append_whole(file_.get(), event_record(message), path_);
}

}  // namespace trireme::obs
