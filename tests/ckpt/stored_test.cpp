// A checkpoint that a program of the first format wrote is read for ever: tests/ckpt/data holds one,
// and what is in it is said here in numbers, without the code that wrote it.
//
// TRIREME_STORE_CHECKPOINT=FOLDER writes such a checkpoint with the code of today, as is needed once
// for each new version of the format; files that are stored are never written again.
#include "support/golden.hpp"
#include "trireme/ckpt/tools.hpp"

#include "lone_writer.hpp"
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;

const fs::path& first_format() {
  static const fs::path path = test_data() / "ckpt" / "data" / "format-1" / "step-00000003";
  return path;
}

template <class T, class Value>
std::vector<T> sequence(std::int64_t count, Value value) {
  std::vector<T> result;
  for (std::int64_t i = 0; i < count; ++i) result.push_back(static_cast<T>(value(i)));
  return result;
}

// What the stored checkpoint holds.
struct Content {
  std::vector<float> weight =
      sequence<float>(7 * 41, [](std::int64_t i) { return 0.25 * static_cast<double>(i) - 3; });
  // More than a block of the file, so that the next tensor lies two blocks on.
  std::vector<float> moment =
      sequence<float>(1031, [](std::int64_t i) { return -1.0 / static_cast<double>(1 + i); });
  std::vector<std::uint16_t> half =
      sequence<std::uint16_t>(3 * 5, [](std::int64_t i) { return 0x3f80 + i; });
  std::vector<double> scale{65536.5};
  std::vector<std::int64_t> step{-3};
  std::vector<std::uint8_t> bytes =
      sequence<std::uint8_t>(257, [](std::int64_t i) { return 255 - i % 256; });
  std::map<std::string, std::string> texts{
      {"training", R"({"step": 3})"}, {"config", "model: {type: gpt2}\n"}, {"empty", ""}};

  template <class Sink>
  void each(Sink sink) const {
    sink({"/model/h.0.weight", DType::kFloat32, {7, 41}}, std::as_bytes(std::span(weight)));
    sink({"/optimizer/exp_avg/h.0.weight", DType::kFloat32, {1031}},
         std::as_bytes(std::span(moment)));
    sink({"/model/half", DType::kBFloat16, {3, 5}}, std::as_bytes(std::span(half)));
    sink({"/scaler/scale", DType::kFloat64, {}}, std::as_bytes(std::span(scale)));
    sink({"/optimizer/step", DType::kInt64, {1}}, std::as_bytes(std::span(step)));
    sink({"/rng/\xc3\xa9tat", DType::kUInt8, {257}}, std::as_bytes(std::span(bytes)));
    sink({"/model/empty", DType::kFloat32, {0, 13}}, {});
  }
};

TEST(Stored, a_checkpoint_of_the_first_format_reads_as_it_was_written) {
  const ckpt::Reader reader(first_format());
  const Content content;
  EXPECT_EQ(reader.step(), Step(3));
  EXPECT_EQ(reader.world_size(), 1);
  EXPECT_EQ(reader.extra(), content.texts);
  std::size_t tensors = 0;
  content.each([&](const TensorSpec& spec, std::span<const std::byte> expected) {
    ++tensors;
    const auto found = reader.find(spec.path);
    ASSERT_TRUE(found.has_value()) << spec.path;
    EXPECT_EQ(reader.tensors()[*found].dtype, spec.dtype) << spec.path;
    EXPECT_EQ(reader.tensors()[*found].shape, spec.shape) << spec.path;
    std::vector<std::byte> bytes(expected.size(), std::byte{0xee});
    const ckpt::Extent extent{*found, 0, elements_of(spec), bytes.data()};
    reader.read({&extent, 1});
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.begin())) << spec.path;
  });
  EXPECT_EQ(reader.tensors().size(), tensors);
  reader.verify();
}

TEST(Stored, the_digest_of_the_first_format_stays_what_it_was) {
  EXPECT_EQ(ckpt::content_hash(first_format()), "65bd32eba03a8e4853b25538aeb2522b");
  EXPECT_NE(ckpt::describe(first_format(), false).find("step 3, format 1"), std::string::npos);
}

TEST(Stored, what_is_stored_today_equals_the_first_format) {
  const char* keep = std::getenv("TRIREME_STORE_CHECKPOINT");
  const TempDir scratch;
  const fs::path folder = keep == nullptr ? scratch.path() : fs::path(keep);
  const Content content;
  ckpt::Snapshot snapshot;
  content.each([&](const TensorSpec& spec, std::span<const std::byte> bytes) {
    snapshot.extents.push_back({snapshot.tensors.size(), 0, elements_of(spec), bytes.data()});
    snapshot.tensors.push_back(spec);
  });
  snapshot.extra = content.texts;
  comm::Communicator comm = lone_communicator();
  const fs::path path = ckpt::save(comm, snapshot, {folder, Step(3), 0});
  if (keep != nullptr) return;
  EXPECT_TRUE(ckpt::compare(path, first_format()).empty());
}

}  // namespace
}  // namespace trireme::testing
