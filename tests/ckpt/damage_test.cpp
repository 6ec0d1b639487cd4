// Stored bytes that are not those that were written are found, named and never handed out.
#include "trireme/kernels/checksum.hpp"

#include "ckpt/manifest.hpp"
#include "lone_writer.hpp"
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;

// Checkpoints 1 and 2; tests damage 2.
class Damage : public ::testing::Test {
 protected:
  Damage() {
    save_lone(folder_.path(), 1, 1);
    save_lone(folder_.path(), 2, 2);
    manifest_ = ckpt::read_manifest(newest_);
  }

  // Expects that 2 is found bad with a message that holds `name`, and 1 is loaded.
  void expect_fall_back(const std::string& name) {
    const Error error = error_of([&] { ckpt::Reader(newest_).verify(); });
    EXPECT_EQ(error.kind, ErrorKind::kCorrupt) << error.report();
    EXPECT_NE(error.message.find(name), std::string::npos) << error.message;
    const Loaded loaded = load_lone(folder_.path(), {1});
    EXPECT_EQ(loaded.step, Step(1));
    ASSERT_EQ(loaded.warnings.size(), 1U);
    EXPECT_NE(loaded.warnings[0].find(name), std::string::npos) << loaded.warnings[0];
  }

  TempDir folder_;
  fs::path newest_ = folder_ / "step-00000002";
  fs::path state_ = newest_ / "state.h5";
  fs::path manifest_path_ = newest_ / "manifest.json";
  ckpt::Manifest manifest_;
};

TEST_F(Damage, a_flipped_byte_in_hdf5s_own_part_is_found) {
  const auto& text = manifest_.files[0].layout.texts.at(0);
  for (const std::uint64_t offset :
       {std::uint64_t{0}, std::uint64_t{9}, std::uint64_t{60}, std::uint64_t{700}, text.offset,
        manifest_.files[0].layout.head_bytes - 1}) {
    flip(state_, offset);
    expect_fall_back("state.h5: HDF5's own metadata is damaged in block 0");
    flip(state_, offset);
  }
  ckpt::Reader(newest_).verify();
}

TEST_F(Damage, a_flipped_byte_of_any_tensor_names_dataset_and_block) {
  for (std::size_t tensor = 0; tensor < manifest_.tensors.size(); ++tensor) {
    const auto& spec = manifest_.tensors[tensor];
    const std::uint64_t bytes = *ckpt::bytes_of(spec.dtype, spec.shape);
    if (bytes == 0) continue;
    for (const std::uint64_t at : {std::uint64_t{0}, bytes / 2, bytes - 1}) {
      flip(state_, manifest_.files[0].layout.offsets[tensor] + at);
      expect_fall_back(
          fmt::format("dataset {} is damaged in block {} ", spec.path, at / ckpt::kCrcBlock));
      flip(state_, manifest_.files[0].layout.offsets[tensor] + at);
    }
  }
  ckpt::Reader(newest_).verify();
}

TEST_F(Damage, a_flipped_byte_between_tensors_is_found_by_verify) {
  const std::size_t bias = *ckpt::Reader(newest_).find("/model/h.0.bias");
  flip(state_, manifest_.files[0].layout.offsets[bias] + 28);
  const Error error = error_of([&] { ckpt::Reader(newest_).verify(); });
  EXPECT_NE(error.message.find("padding behind dataset /model/h.0.bias"), std::string::npos)
      << error.message;
  // It harms nobody.
  EXPECT_EQ(load_lone(folder_.path(), {2}).step, Step(2));
}

TEST_F(Damage, a_flipped_byte_of_the_manifest_is_found_wherever_it_is) {
  const std::uint64_t size = fs::file_size(manifest_path_);
  for (std::uint64_t offset = 0; offset<size; offset += offset> size - 40 ? 1 : 37) {
    flip(manifest_path_, offset);
    const Error error = error_of([&] { ckpt::Reader reader(newest_); });
    ASSERT_EQ(error.kind, ErrorKind::kCorrupt);
    ASSERT_NE(error.message.find("manifest.json"), std::string::npos) << error.message;
    flip(manifest_path_, offset);
  }
  flip(manifest_path_, size / 2);
  expect_fall_back("manifest.json: its own checksum does not fit");
}

TEST_F(Damage, cut_lengthened_and_zeroed_files_are_found) {
  const std::uint64_t size = fs::file_size(state_);
  const std::string bytes = bytes_of_file(state_);
  fs::resize_file(state_, size - 4096);
  expect_fall_back(fmt::format("state.h5 has {} bytes instead of {}", size - 4096, size));
  // Extended again: a hole that reads as zeros.
  fs::resize_file(state_, size);
  expect_fall_back("dataset /big is damaged in block 2");
  // An end within a block: what is read past the page cache never gets there.
  fs::resize_file(state_, size - 5000);
  std::size_t damages = 0;
  const auto count = [&](const ckpt::Damage&) { ++damages; };
  ckpt::Reader(newest_, count).verify(count);
  EXPECT_GT(damages, 1U);
  fs::resize_file(state_, size + 1);
  expect_fall_back("instead of");
  write_file(state_, std::string(size, '\0'));
  expect_fall_back("HDF5's own metadata");
  fs::resize_file(state_, 0);
  expect_fall_back("has 0 bytes");
  write_file(state_, bytes);
  for (const std::uint64_t length :
       {std::uint64_t{0}, std::uint64_t{100}, fs::file_size(manifest_path_) - 1}) {
    fs::resize_file(manifest_path_, length);
    expect_fall_back("manifest.json");
  }
}

TEST_F(Damage, missing_and_exchanged_files_are_found) {
  fs::rename(state_, folder_ / "aside");
  expect_fall_back("state.h5 is missing");
  fs::copy_file(folder_ / "step-00000001" / "state.h5", state_);
  expect_fall_back("HDF5's own metadata is damaged");
  fs::remove(state_);
  fs::rename(folder_ / "aside", state_);
  fs::rename(manifest_path_, folder_ / "aside");
  expect_fall_back("manifest.json is missing");
  fs::create_directory(manifest_path_);
  expect_fall_back("manifest.json is not a file");
}

TEST_F(Damage, when_no_checkpoint_is_good_that_is_an_error) {
  for (const char* step : {"step-00000001", "step-00000002"})
    fs::remove(folder_ / step / "state.h5");
  comm::Communicator comm = lone_communicator();
  const Error error = error_of([&] {
    ckpt::load_newest(
        comm, folder_.path(), [](const ckpt::Reader&) {}, [](const std::string&) {});
  });
  EXPECT_EQ(error.kind, ErrorKind::kCorrupt);
  EXPECT_NE(error.message.find("none of the 2 checkpoints"), std::string::npos) << error.message;
}

TEST_F(Damage, an_error_that_is_not_damage_is_not_hidden_by_an_older_checkpoint) {
  comm::Communicator comm = lone_communicator();
  const Error error = error_of([&] {
    ckpt::load_newest(
        comm, folder_.path(),
        [](const ckpt::Reader&) { throw Error(ErrorKind::kConfig, "another model"); },
        [](const std::string&) {});
  });
  EXPECT_EQ(error.message, "another model");
}

// A manifest that checks, but lies.
std::string forged(const std::string& text, const std::string& from, const std::string& to) {
  std::string body = text.substr(0, text.rfind(",\n\"crc32c\""));
  const std::size_t at = body.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  body.replace(at, from.size(), to);
  const auto crc = kernels::crc32c(std::as_bytes(std::span(std::as_const(body))));
  return fmt::format("{},\n\"crc32c\": \"{:08x}\"}}\n", body, crc);
}

TEST_F(Damage, no_number_of_a_manifest_is_believed) {
  const std::string good = bytes_of_file(manifest_path_);
  const std::vector<std::pair<std::string, std::string>> lies{
      {"[257,1031]", "[257,-1031]"},
      {"[257,1031]", "[4611686018427387904,4611686018427387904]"},
      {"[257,1031]", "[9999999999]"},
      {"[257,1031]", "[257,1030.5]"},
      {"[257,1031]", "\"257\""},
      {"\"dtype\":\"F32\"", "\"dtype\":\"F31\""},
      {"\"offset\":", "\"offset\":999999999"},
      {"\"offset\":", "\"offset\":-"},
      {"\"file\":0", "\"file\":1"},
      {"\"block_bytes\":1048576", "\"block_bytes\":0"},
      {"\"step\":2", "\"step\":-2"},
      {"\"step\":2", "\"step\":99999999999999999999"},
      {"/model/h.0.bias", "/model/h.0.weight"},
      {"/model/h.0.bias", "/model/../bias"},
      {"\"name\":\"state.h5\"", "\"name\":\"/etc/passwd\""},
      {"\"tensors\": [", "\"tensors\": [[[[["},
      {"\"bytes\":", "\"bytes\":1"},
      {"\"versions\":", "\"visions\":"},
  };
  for (const auto& [from, to] : lies) {
    write_file(manifest_path_, forged(good, from, to));
    const Error error = error_of([&] { ckpt::Reader reader(newest_); });
    EXPECT_EQ(error.kind, ErrorKind::kCorrupt) << to;
  }
}

TEST_F(Damage, a_newer_format_is_refused_rather_than_skipped) {
  write_file(manifest_path_,
             forged(bytes_of_file(manifest_path_), "\"version\":1", "\"version\":3"));
  const Error error = error_of([&] { load_lone(folder_.path(), {1, 2}); });
  EXPECT_EQ(error.kind, ErrorKind::kConfig);
  EXPECT_NE(error.message.find("format version 3"), std::string::npos);
}

}  // namespace
}  // namespace trireme::testing
