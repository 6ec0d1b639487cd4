// One process that writes and loads the sample: what the tests of faults and damage start from.
#pragma once

#include "support/error_of.hpp"
#include "support/temp_dir.hpp"
#include "trireme/base/error.hpp"
#include "trireme/ckpt/checkpoint.hpp"

#include "lone_communicator.hpp"
#include "sample.hpp"
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::testing {

// Saves the values of `save` as step `step`.
inline ckpt::SaveResult save_lone(const std::filesystem::path& folder, std::int64_t step,
                                  std::uint64_t save, ckpt::FaultHook hook = {}, int keep = 0) {
  const auto specs = sample_specs();
  Share share(specs, Deal::kEven, 0, 1);
  share.fill(specs, save);
  comm::Communicator comm = lone_communicator();
  return ckpt::Saver(std::move(hook))
      .save(comm, snapshot_of(specs, share, R"({"tokens": 5})"), {folder, Step(step), keep});
}

struct Loaded {
  std::optional<Step> step;
  std::vector<std::string> warnings;
};

// Loads the newest usable checkpoint and expects in it the values of one of the saves in `allowed`.
inline Loaded load_lone(const std::filesystem::path& folder,
                        const std::vector<std::uint64_t>& allowed) {
  const auto specs = sample_specs();
  Share share(specs, Deal::kEven, 0, 1);
  comm::Communicator comm = lone_communicator();
  Loaded loaded;
  loaded.step = ckpt::load_newest(
      comm, folder,
      [&](const ckpt::Reader& reader) {
        share.clear(specs);
        reader.read(share.wanted());
      },
      [&](const std::string& text) { loaded.warnings.push_back(text); });
  bool matches = false;
  for (const std::uint64_t save : allowed) matches = matches || share.holds(specs, save);
  EXPECT_TRUE(matches) << "the loaded values are those of no save that was allowed";
  return loaded;
}

inline std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline void flip(const std::filesystem::path& path, std::uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 0x10));
}

}  // namespace trireme::testing
