// Weights as Hugging Face keeps them: what is right is read to the bit, in slices; what is wrong,
// in whatever way, is said with file, tensor and place, and never leads astray.
#include "trireme/ckpt/safetensors.hpp"

#include "trireme/base/random.hpp"

#include "lone_writer.hpp"
#include "runtime.hpp"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

namespace trireme::testing {
namespace {

namespace fs = std::filesystem;
namespace st = ckpt::safetensors;

std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + header + data;
}

std::vector<st::Entry> sample_entries() {
  return {{"a", st::Type::kF32, {2, 3}},
          {"odd \"name\" \xc3\xa9", st::Type::kBF16, {7}},
          {"none", st::Type::kF16, {0, 5}},
          {"scalar", st::Type::kI64, {}},
          {"bytes", st::Type::kU8, {3}}};
}

std::string sample_data() {
  std::string data(24 + 14 + 8 + 3, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + 1);
  return data;
}

void write_sample(const fs::path& path, ckpt::FaultHook hook = {}) {
  st::Writer writer(path, sample_entries(), {{"format", "pt"}}, std::move(hook));
  const std::string data = sample_data();
  // In pieces that end anywhere.
  for (std::size_t at = 0; at < data.size(); at += 5)
    writer.write(
        std::as_bytes(std::span(data)).subspan(at, std::min<std::size_t>(5, data.size() - at)));
  writer.finish();
}

class Safetensors : public ::testing::Test {
 protected:
  // Expects that a file of these bytes is refused with a message that holds `what` and the path.
  void expect_refused(const std::string& bytes, const std::string& what) {
    write_file(path_, bytes);
    const Error error = error_of([&] { st::Reader reader(path_); });
    EXPECT_EQ(error.kind, ErrorKind::kCorrupt) << error.report();
    EXPECT_NE(error.message.find(what), std::string::npos) << error.message;
    EXPECT_TRUE(error.message.starts_with(path_.string())) << error.message;
  }

  TempDir folder_;
  fs::path path_ = folder_ / "model.safetensors";
};

TEST_F(Safetensors, what_was_written_is_read_to_the_bit) {
  write_sample(path_);
  const st::Reader reader(folder_.path());
  ASSERT_EQ(reader.tensors().size(), 5U);
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  const std::string data = sample_data();
  std::size_t at = 0;
  for (const st::Entry& entry : sample_entries()) {
    const auto found = reader.find(entry.name);
    ASSERT_TRUE(found.has_value()) << entry.name;
    const st::Tensor& tensor = reader.tensors()[*found];
    EXPECT_EQ(tensor.shape, entry.shape);
    EXPECT_EQ(tensor.type, entry.type);
    std::vector<std::byte> bytes(tensor.bytes);
    reader.read_bytes(*found, 0, bytes);
    EXPECT_TRUE(tensor.bytes == 0 ||
                std::memcmp(bytes.data(), data.data() + at, bytes.size()) == 0);
    at += tensor.bytes;
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes_of_file(path_).data(), sizeof(length));
  EXPECT_EQ(length % 8, 0U) << "data starts on an 8-byte border";
}

TEST_F(Safetensors, slices_are_read_and_halves_widened) {
  const std::string halves("\x80\x3f\x00\xc0\x80\x7f", 6);  // 1, -2, infinity in bf16
  const std::string header =
      R"({"w":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},"n":{"dtype":"I32","shape":[1],"data_offsets":[6,10]}})";
  write_file(path_, file_of(header, halves + "1234"));
  const st::Reader reader(path_);
  std::vector<float> two(2);
  reader.read(*reader.find("w"), 1, two);
  EXPECT_EQ(two[0], -2.0f);
  EXPECT_TRUE(std::isinf(two[1]));
  const Error error = error_of([&] { reader.read(*reader.find("n"), 0, std::span(two).first(1)); });
  EXPECT_EQ(error.kind, ErrorKind::kConfig);
  EXPECT_NE(error.message.find("'n'"), std::string::npos) << error.message;
  EXPECT_EQ(error_of([&] { reader.read(*reader.find("w"), 2, two); }).kind, ErrorKind::kInternal);
}

TEST_F(Safetensors, a_header_that_is_none_is_refused) {
  expect_refused("", "it has 0 bytes");
  expect_refused("1234567", "it has 7 bytes");
  expect_refused(std::string(8, '\xff'), "its header is said to have 18446744073709551615 bytes");
  expect_refused(std::string("\x03\0\0\0\0\0\0\0{}", 10), "its header is said to have 3 bytes");
  expect_refused(file_of("", ""), "no JSON at byte 8");
  expect_refused(file_of("{\"a\":", ""), "no JSON at byte");
  expect_refused(file_of("[]", ""), "no JSON object");
  expect_refused(file_of("7", ""), "no JSON object");
  expect_refused(file_of("{} {}", ""), "no JSON at byte");
  expect_refused(file_of("{\"\xff\":1}", ""), "no JSON at byte");
  expect_refused(file_of("{\"a\":" + std::string(100000, '['), ""), "a list in a wrong place");
  expect_refused(file_of("{\"a\":{\"dtype\":{}}}", ""), "an object within an object");
}

std::string entry(const std::string& rest) { return "{\"w\":{" + rest + "}}"; }

TEST_F(Safetensors, an_entry_that_is_none_names_its_tensor) {
  const std::vector<std::pair<std::string, std::string>> wrong{
      {R"("shape":[1],"data_offsets":[0,4])", "lacks dtype"},
      {R"("dtype":"F32","data_offsets":[0,4])", "lacks dtype, shape"},
      {R"("dtype":"F33","shape":[1],"data_offsets":[0,4])", "unknown type 'F33'"},
      {R"("dtype":4,"shape":[1],"data_offsets":[0,4])", "a number in a wrong place"},
      {R"("dtype":"F32","shape":1,"data_offsets":[0,4])", "a number in a wrong place"},
      {R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])", "a text in a wrong place"},
      {R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])", "a list in a wrong place"},
      {R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])", "the negative number -1"},
      {R"("dtype":"F32","shape":[1.5],"data_offsets":[0,4])", "has 1.5 where a whole number"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[0,99999999999999999999])",
       "a whole number of 64 bits"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[4,0])", "data_offsets that are no range"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[0])", "data_offsets that are no range"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0,4])", "needs 8 bytes, but has 4"},
      {R"("dtype":"BF16","shape":[1],"data_offsets":[0,4])", "needs 2 bytes, but has 4"},
      {R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4])", "impossible shape"},
      {R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4])", "impossible shape"},
      {R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])", "has 'dtype' twice"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"file":"x")", "unknown field 'file'"},
      {R"("dtype":null,"shape":[1],"data_offsets":[0,4])", "'null' in a wrong place"},
  };
  for (const auto& [rest, what] : wrong) {
    expect_refused(file_of(entry(rest), "data"), what);
    expect_refused(file_of(entry(rest), "data"), "tensor 'w'");
  }
}

std::string two(const std::string& a, const std::string& b) {
  return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[)" + a +
         R"(]},"b":{"dtype":"U8","shape":[4],"data_offsets":[)" + b + "]}}";
}

TEST_F(Safetensors, tensors_that_do_not_tile_the_file_are_refused) {
  write_file(path_, file_of(two("4,8", "0,4"), "datadata"));
  EXPECT_EQ(st::Reader(path_).tensors()[0].name, "b");
  expect_refused(file_of(two("0,4", "3,7"), "datadat"), "tensors 'a' and 'b' overlap at byte");
  expect_refused(file_of(two("0,4", "0,4"), "data"), "tensors 'a' and 'b' overlap at byte");
  expect_refused(file_of(two("0,4", "5,9"), "datadatad"), "1 bytes at byte");
  expect_refused(file_of(two("1,5", "5,9"), "datadatad"), "before tensor 'a'");
  expect_refused(file_of(two("0,4", "4,8"), "datadat"),
                 "tensor 'b' (data_offsets 4 to 8) ends behind");
  expect_refused(file_of(two("0,4", "4,8"), ""), "tensor 'a' (data_offsets 0 to 4) ends behind");
  expect_refused(file_of(two("0,4", "4,8"), "datadata!"), "1 bytes at byte");
  expect_refused(file_of(two("0,4", "18446744073709551611,18446744073709551615"), "datadata"),
                 "'b'");
  std::string same = two("0,4", "4,8");
  same[same.find("\"b\"") + 1] = 'a';
  expect_refused(file_of(same, "datadata"), "tensor 'a' is listed twice");
}

TEST_F(Safetensors, any_change_of_a_file_is_refused_or_harmless) {
  // A short walk by default; TRIREME_FUZZ_RUNS lengthens it.
  const char* wanted = std::getenv("TRIREME_FUZZ_RUNS");
  const std::uint64_t runs = wanted == nullptr ? 3000 : std::strtoull(wanted, nullptr, 10);
  write_sample(path_);
  const std::string good = bytes_of_file(path_);
  const std::vector<std::string> words{"18446744073709551615",
                                       "-1",
                                       "9223372036854775807",
                                       "{",
                                       "}",
                                       "[",
                                       "]",
                                       "\"",
                                       ",",
                                       ":",
                                       "0",
                                       "1e999",
                                       "null",
                                       "\\ud800",
                                       "\"dtype\"",
                                       "4294967296",
                                       "\xc0\x80"};
  std::size_t opened = 0;
  for (std::uint64_t run = 0; run < runs; ++run) {
    std::string bytes = good;
    const auto dice = philox(20260801, run);
    for (std::uint32_t change = 0; change <= dice[0] % 3; ++change) {
      const auto roll = philox(mix(run, change), 7);
      const std::size_t at = roll[1] % bytes.size();
      switch (roll[0] % 6) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << roll[2] % 8));
          break;
        case 1:
          bytes.resize(at + 1);
          break;
        case 2:
          bytes.insert(at, words[roll[2] % words.size()]);
          break;
        case 3:
          bytes.erase(at, 1 + roll[2] % 9);
          break;
        case 4:
          bytes.insert(at, bytes.substr(roll[2] % bytes.size(), roll[3] % 40));
          break;
        default:
          bytes.replace(at, std::min<std::size_t>(roll[3] % 8, bytes.size() - at),
                        words[roll[2] % words.size()]);
      }
      if (bytes.empty()) bytes = "x";
      // Half of the changes keep the length field true, so that they reach what is behind it.
      if (roll[3] % 2 == 0 && bytes.size() > 8) {
        const std::size_t end = bytes.find_last_of('}');
        const std::uint64_t length = end == bytes.npos || end < 8 ? bytes.size() - 8 : end - 7;
        std::memcpy(bytes.data(), &length, sizeof(length));
      }
    }
    write_file(path_, bytes);
    try {
      const st::Reader reader(path_);
      for (std::size_t i = 0; i < reader.tensors().size(); ++i) {
        ASSERT_LE(reader.tensors()[i].bytes, bytes.size());
        std::vector<std::byte> all(reader.tensors()[i].bytes);
        reader.read_bytes(i, 0, all);
      }
      ++opened;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind, ErrorKind::kCorrupt) << "run " << run << ": " << error.report();
      ASSERT_TRUE(error.message.starts_with(path_.string()))
          << "run " << run << ": " << error.message;
    }
  }
  EXPECT_GT(opened, runs / 300) << "the walk also passes through files that are right";
  EXPECT_LT(opened, runs);
}

void write_one(const fs::path& path, const std::string& name) {
  st::Writer writer(path, {{name, st::Type::kU8, {1}}}, {});
  writer.write(std::as_bytes(std::span("x", 1)));
  writer.finish();
}

TEST_F(Safetensors, shards_and_their_index_must_say_the_same) {
  const fs::path index = folder_ / "model.safetensors.index.json";
  write_one(folder_ / "one.safetensors", "a");
  write_one(folder_ / "two.safetensors", "b");
  const auto expect = [&](const std::string& map, const std::string& what) {
    write_file(index, "{\"metadata\":{\"total_size\":2},\"weight_map\":{" + map + "}}");
    const Error error = error_of([&] { st::Reader reader(folder_.path()); });
    EXPECT_EQ(error.kind, ErrorKind::kCorrupt);
    EXPECT_NE(error.message.find(what), std::string::npos) << error.message;
  };
  const std::string a = R"("a":"one.safetensors")";
  const std::string b = R"("b":"two.safetensors")";
  expect(a + "," + b + R"(,"c":"two.safetensors")", "two.safetensors does not hold tensor 'c'");
  expect(a + R"(,"c":"two.safetensors")", "it holds tensor 'b', which");
  expect(R"("a":"two.safetensors","b":"one.safetensors")", "it holds tensor");
  expect(a + "," + b + "," + a, "lists a tensor twice");
  expect(a + R"(,"b":"../two.safetensors")", "no name in this folder");
  expect(a + R"(,"b":"three.safetensors")", "three.safetensors is missing");
  expect(a + R"(,"b":7)", "no name in this folder");
  for (const char* text : {"", "[]", "{}", R"({"weight_map":[]})", "{\"weight_map\":{"}) {
    write_file(index, text);
    EXPECT_EQ(error_of([&] { st::Reader reader(index); }).kind, ErrorKind::kCorrupt) << text;
  }
  write_file(index, "{\"weight_map\":{" + a + "," + b + "}}");
  const st::Reader reader(folder_.path());
  EXPECT_EQ(reader.files().size(), 2U);
  EXPECT_EQ(reader.tensors()[*reader.find("b")].file, 1U);
}

TEST_F(Safetensors, what_is_not_there_is_a_question_to_the_user) {
  EXPECT_EQ(error_of([&] { st::Reader reader(folder_ / "none"); }).kind, ErrorKind::kConfig);
  EXPECT_EQ(error_of([&] { st::Reader reader(folder_.path()); }).kind, ErrorKind::kConfig);
}

TEST_F(Safetensors, a_file_has_its_name_only_when_it_is_whole) {
  std::set<std::string> calls;
  write_sample(path_, [&](std::string_view call, bool) {
    calls.insert(std::string(call));
    return 0;
  });
  EXPECT_EQ(calls, (std::set<std::string>{"create", "write", "fsync", "commit", "fsync-folder"}));
  const std::string good = bytes_of_file(path_);
  for (const std::string& name : calls) {
    if (name == "fsync-folder") continue;  // from the rename on, the new one counts
    write_file(path_, "old");
    const Error error = error_of([&] {
      write_sample(path_, [&](std::string_view call, bool done) {
        return !done && call == name ? ENOSPC : 0;
      });
    });
    EXPECT_EQ(error.kind, ErrorKind::kIo);
    EXPECT_EQ(bytes_of_file(path_), "old") << name;
    EXPECT_FALSE(fs::exists(folder_ / "model.safetensors.tmp")) << name;
  }
  EXPECT_EQ(error_of([&] {
              st::Writer writer(path_, sample_entries(), {});
              writer.write(std::as_bytes(std::span("abc", 3)));
              writer.finish();
            }).kind,
            ErrorKind::kInternal);
  EXPECT_EQ(bytes_of_file(path_), "old");
}

}  // namespace
}  // namespace trireme::testing
