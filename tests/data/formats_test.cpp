// The readers against files that Megatron, llm.c's layout and Python's json made, whole and broken:
// tests/data/golden/expected.json says what is in each or what must be said of it.
#include "support/golden.hpp"
#include "support/temp_dir.hpp"
#include "trireme/base/error.hpp"
#include "trireme/data/documents.hpp"
#include "trireme/data/interleave.hpp"

#include "data/parts.hpp"
#include "data/token_file.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zlib.h>
#include <zstd.h>

#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>

namespace trireme::data {
namespace {

using nlohmann::json;
using ::testing::AnyOf;
using ::testing::HasSubstr;

std::filesystem::path folder() { return trireme::testing::test_data() / "data" / "golden"; }

json cases_of(const std::string& format) {
  json chosen = json::array();
  const json all = json::parse(std::ifstream(folder() / "expected.json"));
  for (const json& one : all.at("cases"))
    if (one.at("format") == format) chosen.push_back(one);
  EXPECT_GE(chosen.size(), 4U) << "a test of no cases proves nothing";
  return chosen;
}

std::vector<std::int64_t> all_tokens(const detail::TokenFile& file) {
  std::vector<std::int64_t> tokens(file.num_tokens());
  file.read(0, tokens);
  return tokens;
}

// What a message must say for the name of an error in expected.json.
::testing::Matcher<std::string> says(const std::string& error) {
  if (error == "bad_magic") return HasSubstr("magic");
  if (error == "bad_version") return HasSubstr("version");
  if (error == "bad_dtype") return HasSubstr("type code");
  if (error == "truncated") return HasSubstr("truncated");
  if (error == "size_mismatch") return HasSubstr("size mismatch");
  if (error == "not_a_multiple") return HasSubstr("not a multiple");
  if (error == "missing_file") return HasSubstr("No such file");
  return AnyOf(HasSubstr("negative"), HasSubstr("points"), HasSubstr("boundary"));
}

template <class Action>
std::optional<std::string> message_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.message;
  }
  return std::nullopt;
}

template <class Open>
void refused(const json& one, Open open) {
  const auto message = message_of(open);
  ASSERT_TRUE(message) << one.at("name") << " was accepted";
  auto expected = says(one.at("error"));
  if (one.contains("also")) expected = AnyOf(expected, says(one.at("also").at(0)));
  EXPECT_THAT(*message, expected) << one.at("name");
}

TEST(Formats, megatron_files_are_read_as_megatron_wrote_them) {
  for (const json& one : cases_of("megatron")) {
    const std::filesystem::path prefix = folder() / one.at("name").get<std::string>();
    if (one.contains("error")) {
      refused(one, [&] { detail::open_megatron(prefix); });
    } else {
      const auto index = detail::read_megatron_index(prefix.string() + ".idx");
      EXPECT_EQ(index.type, one.at("dtype"));
      EXPECT_EQ(json(index.documents), one.at("documents"));
      std::vector<std::int64_t> tokens;
      for (const json& sequence : one.at("sequences"))
        tokens.insert(tokens.end(), sequence.begin(), sequence.end());
      const auto file = detail::open_megatron(prefix);
      EXPECT_EQ(all_tokens(*file), tokens) << one.at("name");
      ASSERT_EQ(index.lengths.size(), one.at("sequences").size());
      for (std::size_t s = 0; s < index.lengths.size(); ++s)
        EXPECT_EQ(index.lengths[s], one.at("sequences")[s].size());
    }
  }
}

TEST(Formats, document_ends_are_in_tokens_and_without_empty_documents) {
  const auto several = detail::open_megatron(folder() / "megatron/several.idx");
  EXPECT_THAT(several->document_ends(), ::testing::ElementsAre(5, 23, 26));
  const auto empty = detail::open_megatron(folder() / "megatron/empty_document.bin");
  EXPECT_THAT(empty->document_ends(), ::testing::ElementsAre(3, 7));
}

TEST(Formats, llm_c_and_bare_files_have_the_expected_tokens_or_error) {
  for (const json& one : cases_of("llm_c")) {
    const auto path = folder() / one.at("name").get<std::string>();
    if (one.contains("error")) {
      refused(one, [&] { detail::open_llm_c(path); });
    } else {
      EXPECT_EQ(json(all_tokens(*detail::open_llm_c(path))), one.at("tokens")) << one.at("name");
    }
  }
  for (const json& one : cases_of("raw")) {
    const auto path = folder() / one.at("name").get<std::string>();
    const bool wide = one.at("dtype") == "uint32";
    if (one.contains("error")) {
      refused(one, [&] { detail::open_raw(path, wide); });
    } else {
      EXPECT_EQ(json(all_tokens(*detail::open_raw(path, wide))), one.at("tokens"));
    }
  }
}

TEST(Formats, json_lines_have_the_expected_texts_and_stop_at_the_first_error) {
  for (const json& one : cases_of("jsonl")) {
    const auto path = folder() / one.at("name").get<std::string>();
    const auto reader = open_documents({path, "jsonl", one.at("key")});
    json texts = json::array();
    const auto message = message_of([&] {
      for (std::string text; reader->next(text);) texts.push_back(text);
    });
    if (one.at("errors").empty()) {
      EXPECT_EQ(message, std::nullopt) << one.at("name");
      EXPECT_EQ(texts, one.at("texts")) << one.at("name");
    } else {
      ASSERT_TRUE(message) << one.at("name");
      const auto line = one.at("errors")[0][0].get<int>();
      EXPECT_THAT(*message, HasSubstr(path.string() + ":" + std::to_string(line) + " (offset "));
    }
  }
}

TEST(Formats, every_bad_line_is_refused_for_its_reason) {
  const std::map<std::string, std::string> words{
      {"invalid_json", "not JSON"},     {"invalid_utf8", "not JSON"},
      {"lone_surrogate", "not JSON"},   {"missing_key", "no key"},
      {"not_a_string", "not a string"}, {"not_an_object", "not an object"}};
  for (const json& one : cases_of("jsonl")) {
    std::ifstream file(folder() / one.at("name").get<std::string>(), std::ios::binary);
    std::vector<std::string> lines(1);
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    for (const json& error : one.at("errors")) {
      const auto number = error[0].get<std::size_t>();
      const auto message = message_of([&] { text_of_line(lines.at(number), one.at("key")); });
      ASSERT_TRUE(message) << one.at("name") << " line " << number;
      EXPECT_THAT(*message, HasSubstr(words.at(error[1]))) << one.at("name") << " line " << number;
    }
  }
}

class Packed : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  std::filesystem::path gzip(const std::string& name, const std::string& text, int members = 1) {
    for (int i = 0; i < members; ++i) {
      gzFile file = gzopen((folder_ / name).c_str(), i == 0 ? "wb" : "ab");
      gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
      gzclose(file);
    }
    return folder_ / name;
  }
  std::filesystem::path zstd(const std::string& name, const std::string& text) {
    std::string packed(ZSTD_compressBound(text.size()), '\0');
    packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1));
    return write(name, packed);
  }
  static std::vector<std::string> texts(const TextSource& source) {
    std::vector<std::string> all;
    const auto reader = open_documents(source);
    for (std::string text; reader->next(text);) all.push_back(text);
    return all;
  }
  trireme::testing::TempDir folder_;
};

std::string many_lines() {
  std::string text;
  for (int i = 0; i < 20000; ++i)
    text += "{\"text\": \"line " + std::to_string(i * 7919 % 100003) + "\"}\n";
  return text;
}

TEST_F(Packed, gzip_and_zstd_give_what_was_packed) {
  const auto plain = texts({write("a.jsonl", many_lines()), "jsonl"});
  ASSERT_EQ(plain.size(), 20000U);
  EXPECT_EQ(texts({gzip("a.jsonl.gz", many_lines()), "jsonl"}), plain);
  EXPECT_EQ(texts({zstd("a.jsonl.zst", many_lines()), "jsonl"}), plain);
  EXPECT_EQ(texts({gzip("b.jsonl.gz", many_lines(), 2), "jsonl"}).size(), 40000U);
}

TEST_F(Packed, a_cut_or_damaged_file_is_named) {
  for (const auto& path : {gzip("a.jsonl.gz", many_lines()), zstd("a.jsonl.zst", many_lines())}) {
    std::filesystem::resize_file(path, std::filesystem::file_size(path) - 3);
    const auto message = message_of([&] { texts({path, "jsonl"}); });
    ASSERT_TRUE(message) << path;
    EXPECT_THAT(*message, ::testing::AllOf(HasSubstr(path.string()), HasSubstr("truncated")));
    write(path.filename().string(), "no packed data at all");
    EXPECT_THAT(message_of([&] { texts({path, "jsonl"}); }).value_or(""), HasSubstr("near offset"));
  }
}

TEST_F(Packed, ranges_of_a_file_share_its_lines_out) {
  const auto path = write("a.jsonl", many_lines());
  const auto whole = texts({path, "jsonl"});
  const std::uint64_t size = std::filesystem::file_size(path);
  for (const std::uint64_t step : {size, size / 2, std::uint64_t{1000}, std::uint64_t{65536}}) {
    std::vector<std::string> joined;
    for (std::uint64_t begin = 0; begin < size; begin += step)
      for (const std::string& text : texts({path, "jsonl", "text", begin, begin + step}))
        joined.push_back(text);
    EXPECT_EQ(joined, whole) << step;
  }
}

TEST(Interleave, every_stretch_has_each_sources_share) {
  const std::vector<std::uint64_t> counts{700, 200, 0, 90, 10};
  const Interleave mixture(counts);
  std::vector<std::uint64_t> seen(counts.size());
  for (std::uint64_t at = 0; at < mixture.size(); ++at) {
    const auto [source, index] = mixture.at(at);
    ASSERT_EQ(index, seen[source]++);
    for (std::size_t s = 0; s < counts.size(); ++s) {
      const double share = static_cast<double>((at + 1) * counts[s]) / 1000;
      ASSERT_NEAR(static_cast<double>(seen[s]), share, 3.0) << at;
    }
  }
  EXPECT_EQ(seen, counts);
}

TEST(Interleave, seeks_in_epochs_of_any_length) {
  const std::vector<std::uint64_t> counts{std::uint64_t{1} << 61, 1, std::uint64_t{1} << 61};
  const Interleave mixture(counts);
  const auto last = mixture.at(mixture.size() - 1);
  EXPECT_EQ(last.index, counts[last.source] - 1);
}

using Parts = Packed;

TEST_F(Parts, tokens_and_documents_come_back_across_parts) {
  const std::vector<std::uint32_t> a{1, 2, 3};
  const std::vector<std::uint32_t> b{70000, 5};
  for (const std::uint64_t part : {0U, 1U}) {
    detail::PartWriter writer(folder_.path(), {.part = part, .parts = 2, .vocabulary = 100000});
    writer.add(a);
    writer.add({});
    writer.add(b);
    writer.commit();
    detail::verify_part(detail::part_path(folder_.path(), part, 2));
  }
  const auto file = detail::open_parts(folder_.path());
  EXPECT_THAT(all_tokens(*file), ::testing::ElementsAre(1, 2, 3, 70000, 5, 1, 2, 3, 70000, 5));
  EXPECT_THAT(file->document_ends(), ::testing::ElementsAre(3, 5, 8, 10));
  std::vector<std::int64_t> middle(4);
  file->read(3, middle);
  EXPECT_THAT(middle, ::testing::ElementsAre(70000, 5, 1, 2));
}

TEST_F(Parts, a_missing_part_and_every_flipped_bit_are_noticed) {
  const std::vector<std::uint32_t> tokens{1, 2, 3};
  for (const std::uint64_t part : {0U, 1U}) {
    detail::PartWriter writer(folder_.path(), {.part = part, .parts = 2, .vocabulary = 10});
    writer.add(tokens);
    writer.commit();
  }
  const auto path = detail::part_path(folder_.path(), 1, 2);
  std::ifstream stream(path, std::ios::binary);
  const std::string good(std::istreambuf_iterator<char>(stream), {});
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    write(path.filename().string(), bad);
    EXPECT_TRUE(message_of([&] { detail::verify_part(path); })) << bit;
  }
  std::filesystem::remove(path);
  EXPECT_THAT(message_of([&] { detail::open_parts(folder_.path()); }).value_or(""),
              HasSubstr("part-00001-of-00002.tokens: No such file"));
}

// A short, deterministic stand-in for a fuzzer: whatever the bytes, the answer is tokens or Error.
TEST_F(Parts, mutated_files_are_read_or_refused) {
  std::ifstream stream(folder() / "megatron/several.idx", std::ios::binary);
  const std::string idx(std::istreambuf_iterator<char>(stream), {});
  std::filesystem::copy_file(folder() / "megatron/several.bin", folder_ / "m.bin");
  int refused = 0;
  for (std::size_t at = 0; at < idx.size(); ++at) {
    for (const int value : {0, 1, 0x7f, 0x80, 0xff}) {
      std::string bad = idx;
      bad[at] = static_cast<char>(value);
      write("m.idx", bad);
      refused += message_of([&] { all_tokens(*detail::open_megatron(folder_ / "m")); }).has_value();
    }
  }
  EXPECT_GT(refused, static_cast<int>(idx.size()));
}

}  // namespace
}  // namespace trireme::data
