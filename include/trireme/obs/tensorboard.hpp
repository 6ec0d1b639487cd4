// TensorBoard event files: protobuf messages encoded by hand, framed with lengths and masked
// CRC-32C, one write per event. Only scalars; the format is TensorFlow's TFRecord with
// tensorflow.Event messages inside.
#pragma once

#include "trireme/base/handle.hpp"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace trireme::obs {

struct Scalar {
  std::string_view tag;
  float value = 0;
};

// Returns the message that opens every file; `writer` may be empty.
std::string version_event(double wall_time, std::string_view writer = {});

// Returns the message that tells readers to forget what earlier files hold from `step` on: a
// resumed run repeats it.
std::string session_start_event(double wall_time, std::int64_t step);

// Returns one message with all scalars of a step.
std::string scalar_event(double wall_time, std::int64_t step, std::span<const Scalar> scalars);

// Returns `message` as it stands in a file: length, its checksum, the message, its checksum.
std::string event_record(std::string_view message);

class EventFile {
 public:
  // Creates `folder`/events.out.tfevents.<time>.<host>.<pid>; never touches an existing file. A
  // `first_step` above 1 says that a run is resumed there. Throws Io.
  explicit EventFile(const std::filesystem::path& folder, std::int64_t first_step = 1);

  // Throws Io when the file system refuses.
  void write(std::int64_t step, std::span<const Scalar> scalars);

  const std::filesystem::path& path() const { return path_; }

 private:
  void append(const std::string& message);

  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace trireme::obs
