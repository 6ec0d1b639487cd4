// Corpora to parts: the same tokens for any number of ranks and threads, continued where it was
// stopped; training of a BPE; what inspect says.
#include "trireme/data/tokenize.hpp"

#include "trireme/base/error.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/tokenizer.hpp"

#include "support/golden.hpp"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace trireme::data {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kGpt2 = trireme::testing::test_data() / "data" / "golden" / "tokenizer" / "gpt2";

class TokenizeTest : public ::testing::Test {
 protected:
  TokenizeTest() {
    fs::create_directories(folder_);
    std::ofstream file(folder_ / "verses.jsonl");
    for (int i = 0; i < 400; ++i) {
      file << json{{"text", "And it came to pass in verse " + std::to_string(i) +
                                ", that the people murmured: \xe4\xb8\xad\xc3\xa9"}}
           << "\n";
    }
  }
  ~TokenizeTest() override { fs::remove_all(folder_); }

  TokenizeOptions options(const std::string& to) const {
    return {{{folder_ / "verses.jsonl", "jsonl"}}, kGpt2.string(), folder_ / to, 4096};
  }

  std::map<std::string, std::string> files(const std::string& to) const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_ / to)) {
      std::ifstream file(entry.path(), std::ios::binary);
      all[entry.path().filename().string()] = {std::istreambuf_iterator<char>(file), {}};
    }
    return all;
  }

  fs::path folder_ = fs::temp_directory_path() / ("tokenize_test-" + std::to_string(::getpid()));
};

TEST_F(TokenizeTest, ranks_and_threads_write_the_same_parts) {
  const TokenizeResult alone = tokenize(options("alone"), {});
  EXPECT_EQ(alone.documents, 400U);
  EXPECT_GT(alone.parts, 5U);
  for (std::uint64_t rank = 0; rank < 3; ++rank) tokenize(options("shared"), {rank, 3, 2});
  EXPECT_EQ(files("shared"), files("alone"));
}

TEST_F(TokenizeTest, training_reads_what_was_written) {
  tokenize(options("parts"), {});
  const DatasetOptions wanted{{{folder_ / "parts", "tokens"}}, kGpt2.string(), 64};
  const DatasetOptions direct{{{folder_ / "verses.jsonl", "jsonl"}}, kGpt2.string(), 64};
  const auto parts = open(wanted);
  const auto text = open(direct);
  ASSERT_EQ(parts->num_samples(), text->num_samples());
  std::vector<std::int64_t> a(65), b(65);
  std::vector<std::int32_t> of_a(65), of_b(65);
  for (std::uint64_t i = 0; i < parts->num_samples(); ++i) {
    parts->read(i, a);
    text->read(i, b);
    ASSERT_EQ(a, b);
    parts->read_documents(i, of_a);
    text->read_documents(i, of_b);
    ASSERT_EQ(of_a, of_b);
  }
}

TEST_F(TokenizeTest, goes_on_where_it_stopped_and_refuses_what_is_something_else) {
  tokenize(options("parts"), {});
  const auto before = files("parts");
  fs::remove(folder_ / "parts" / before.rbegin()->first);
  const TokenizeResult again = tokenize(options("parts"), {});
  EXPECT_EQ(again.kept + 1, again.parts);
  EXPECT_EQ(files("parts"), before);

  TokenizeOptions other = options("parts");
  other.tokenizer = "bytes";
  EXPECT_THROW(tokenize(other, {}), Error);
  std::ofstream(folder_ / "parts" / "notes.txt") << "x";
  EXPECT_THROW(tokenize(options("parts"), {}), Error);
}

TEST_F(TokenizeTest, a_bad_line_is_named_whatever_thread_meets_it) {
  std::ofstream(folder_ / "verses.jsonl", std::ios::app) << "{\"text\": 3}\n";
  try {
    tokenize(options("parts"), {0, 1, 3});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kCorrupt);
    EXPECT_NE(error.message.find("offset"), std::string::npos) << error.message;
  }
}

TEST_F(TokenizeTest, inspect_names_format_and_counts) {
  tokenize(options("parts"), {});
  const auto value = [](const auto& rows, const std::string& name) {
    for (const auto& [key, text] : rows) {
      if (key == name) return text;
    }
    return std::string("nothing");
  };
  const auto text = inspect({folder_ / "verses.jsonl"});
  EXPECT_EQ(value(text, "format"), "jsonl");
  EXPECT_EQ(value(text, "documents"), "400");
  const auto parts = inspect({folder_ / "parts", "", "text", kGpt2.string(), true});
  EXPECT_EQ(value(parts, "format"), "tokens");
  EXPECT_EQ(value(parts, "documents").substr(0, 4), "400,");
  EXPECT_EQ(value(parts, "vocabulary"), "4101");
  EXPECT_EQ(value(parts, "as text").substr(0, 14), "And it came to");
  EXPECT_NE(value(parts, "verified"), "nothing");
  // One token changed: the sizes fit, the checksum does not.
  const fs::path part = folder_ / "parts" / files("parts").begin()->first;
  std::fstream file(part, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(90);
  file.put('\x01');
  file.close();
  EXPECT_THROW(inspect({folder_ / "parts", "", "text", "", true}), Error);
}

TEST_F(TokenizeTest, a_trained_bpe_is_the_one_that_counting_by_hand_gives) {
  std::ofstream(folder_ / "hug.txt") << "hug hug hug hug pug pug pun hugs";
  BpeTraining training{{{folder_ / "hug.txt", "text"}}, 256 + 1 + 3, "gpt2"};
  const json file = json::parse(train_bpe(training));
  // "ug" 7 times (hug 5, pug 2); then "hug" 5 as h+ug; then of " hug" with 4.
  const json expected = json::parse(R"([["u", "g"], ["h", "ug"], ["\u0120", "hug"]])");
  EXPECT_EQ(file.at("model").at("merges"), expected);
  const auto tokenizer = parse_tokenizer(file.dump(), "trained");
  EXPECT_EQ(tokenizer->vocabulary_size(), 260);
  EXPECT_EQ(tokenizer->encode("hug hug").size(), 2U);
  EXPECT_EQ(tokenizer->end_of_text(), 0U);
}

TEST_F(TokenizeTest, training_does_not_depend_on_threads_and_gives_text_back) {
  BpeTraining training{{{folder_ / "verses.jsonl", "jsonl"}}, 400};
  const std::string alone = train_bpe(training);
  training.threads = 3;
  EXPECT_EQ(train_bpe(training), alone);
  const auto tokenizer = parse_tokenizer(alone, "trained");
  const std::string text = "People: \xf0\x9f\x98\x80 12345\r\n  the end";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text), false), text);
  training.vocabulary = 100;
  EXPECT_THROW(train_bpe(training), Error);
}

}  // namespace

}  // namespace trireme::data
