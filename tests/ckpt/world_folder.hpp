// One temporary folder for all ranks of a test, and how a sample of state is saved to it and read
// back.
#pragma once

#include "support/temp_dir.hpp"

#include "sample.hpp"
#include "world.hpp"
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace trireme::testing {

// Removed by root when all have left.
class WorldFolder {
 public:
  WorldFolder() {
    comm::ByteVector name;
    if (world().is_root()) {
      folder_.emplace();
      const std::string text = folder_->path().string();
      const auto bytes = std::as_bytes(std::span(text));
      name.assign(bytes.begin(), bytes.end());
    }
    name = world().broadcast(std::move(name), "test folder");
    path_ = std::string(reinterpret_cast<const char*>(name.data()), name.size());
  }
  ~WorldFolder() { world().barrier("test end"); }
  WorldFolder(const WorldFolder&) = delete;
  WorldFolder& operator=(const WorldFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  static comm::Communicator& world() { return CommWorld::get(); }
  std::optional<TempDir> folder_;
  std::filesystem::path path_;
};

inline Share share_of(const comm::Communicator& comm, const std::vector<TensorSpec>& specs,
                      Deal deal) {
  return {specs, deal, static_cast<int>(comm.rank().value), comm.size()};
}

inline std::filesystem::path save_sample(comm::Communicator& comm,
                                         const std::filesystem::path& folder, Deal deal,
                                         std::int64_t step) {
  const auto specs = sample_specs();
  Share share = share_of(comm, specs, deal);
  share.fill(specs, static_cast<std::uint64_t>(step));
  return ckpt::save(comm, snapshot_of(specs, share, R"({"step": 1})"), {folder, Step(step), 0});
}

inline void expect_sample(const comm::Communicator& comm, const std::filesystem::path& checkpoint,
                          Deal deal, std::int64_t step) {
  const auto specs = sample_specs();
  Share share = share_of(comm, specs, deal);
  share.clear(specs);
  const ckpt::Reader reader(checkpoint);
  reader.read(share.wanted());
  share.expect_values(specs, static_cast<std::uint64_t>(step));
}

}  // namespace trireme::testing
