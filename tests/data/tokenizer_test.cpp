// Tokenizers against what Hugging Face's library gives for the same files and texts
// (golden/tokenizer; "oracle" names its version), and against hostile files.
#include "trireme/data/tokenizer.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"

#include "data/tokenizer/hugging_face.hpp"
#include "data/tokenizer/pre_tokenizer.hpp"
#include "data/tokenizer/regex.hpp"
#include "data/tokenizer/unicode.hpp"
#include "support/golden.hpp"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace trireme::data {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Ids = std::vector<std::uint32_t>;

const fs::path kGolden = trireme::testing::test_data() / "data" / "golden" / "tokenizer";

std::string slurp(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  std::shared_ptr<const Tokenizer> tokenizer_ = load_tokenizer((kGolden / GetParam()).string());
  json golden_ = json::parse(std::ifstream(kGolden / GetParam() / "encodings.json"));

  void expect_case(const json& item, const std::string& text) {
    const Ids ids = item.at("ids").get<Ids>();
    EXPECT_EQ(tokenizer_->encode(text, true), ids) << item;
    EXPECT_EQ(tokenizer_->encode(text, false), item.value("ids_plain", item.at("ids")).get<Ids>())
        << item;
    EXPECT_EQ(tokenizer_->decode(ids, false), item.at("decoded").get<std::string>()) << item;
    EXPECT_EQ(tokenizer_->decode(ids, true), item.at("decoded_skip").get<std::string>()) << item;
  }
};

TEST_P(Golden, encodes_and_decodes_every_case) {
  EXPECT_EQ(tokenizer_->vocabulary_size(), golden_.at("vocab_size").get<std::int64_t>());
  ASSERT_GE(golden_.at("cases").size(), 200U);
  for (const json& item : golden_.at("cases")) expect_case(item, item.at("text"));
}

TEST_P(Golden, repairs_what_is_not_utf8) {
  for (const json& item : golden_.at("invalid_utf8")) expect_case(item, from_hex(item.at("hex")));
}

TEST_P(Golden, decodes_ids_that_no_text_has) {
  for (const json& item : golden_.at("decode_only")) {
    const Ids ids = item.at("ids").get<Ids>();
    EXPECT_EQ(tokenizer_->decode(ids, false), item.at("decoded").get<std::string>()) << item;
    EXPECT_EQ(tokenizer_->decode(ids, true), item.at("decoded_skip").get<std::string>()) << item;
  }
}

TEST_P(Golden, several_threads_encode_the_same) {
  std::string text;
  for (const json& item : golden_.at("cases")) text += item.at("text").get<std::string>();
  const Ids expected = tokenizer_->encode(text);
  std::vector<Ids> found(3);
  {
    std::vector<std::jthread> threads;
    for (Ids& ids : found) threads.emplace_back([&] { ids = tokenizer_->encode(text); });
  }
  for (const Ids& ids : found) EXPECT_EQ(ids, expected);
}

INSTANTIATE_TEST_SUITE_P(Files, Golden,
                         ::testing::Values("gpt2", "llama3", "llama2", "metaspace", "bert",
                                         "unigram"),
                         [](const auto& file) { return file.param; });

// Text of random characters from several scripts, white space and punctuation.
std::string random_text(std::uint64_t seed) {
  static const std::vector<char32_t> kAlphabet{
      'a', 'B', 's', 't',  'S',    'l',   ' ',    ' ',    '\n',   '\r',    '\t',   '\'',   '.',
      ',', '1', '2', 0xe9, 0x17f,  0x660, 0x4e2d, 0x3000, 0xa0,   0x1f600, 0x301,  0x2019, 0x85,
      '<', '|', '0', 'v',  0x2028, 'e',   'r',    0xbd,   0x200d, 0x1c5,   0xfeff, 0x0};
  std::string text;
  for (std::uint64_t i = 0; i < 24; ++i) {
    const auto word = philox(seed, i)[0];
    detail::append(text, kAlphabet[word % kAlphabet.size()]);
  }
  return text;
}

std::vector<std::string_view> cut_by(const detail::Regex& regex, std::string_view text) {
  std::vector<std::string_view> out;
  std::size_t done = 0;
  regex.each_match(text, [&](std::size_t begin, std::size_t end) {
    if (begin > done) out.push_back(text.substr(done, begin - done));
    out.push_back(text.substr(begin, end - begin));
    done = end;
  });
  if (done < text.size()) out.push_back(text.substr(done));
  return out;
}

TEST(Scan, cuts_as_the_regular_expressions_do) {
  const std::pair<std::string_view, detail::ScanRules> cases[] = {
      {detail::kGpt2Pattern, detail::kGpt2Rules},
      {detail::kLlama3Pattern, detail::kLlama3Rules},
      {detail::kQwen2Pattern, detail::kQwen2Rules}};
  for (const auto& [pattern, rules] : cases) {
    const detail::Regex regex{std::string(pattern)};
    for (std::uint64_t seed = 0; seed < 20000; ++seed) {
      const std::string text = random_text(seed);
      detail::Pieces pieces;
      detail::scan(text, rules, true, pieces);
      std::vector<std::string_view> found;
      for (const detail::Piece& piece : pieces.all) found.push_back(piece.text);
      ASSERT_EQ(found, cut_by(regex, text)) << json(text);
    }
  }
}

TEST(ByteLevel, decode_gives_back_what_was_encoded) {
  for (const char* name : {"gpt2", "llama3"}) {
    const auto tokenizer = load_tokenizer((kGolden / name).string());
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
      const std::string text = random_text(seed) + random_text(seed + 1);
      if (text.find("<|") != std::string::npos) continue;
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(text), false), text);
    }
  }
}

TEST(ByteLevel, long_words_come_out_as_short_steps_would) {
  // A word of 3000 letters goes through the heap; the same letters in file order of merges is what
  // the golden case of long runs has, here only that nothing is lost.
  const auto tokenizer = load_tokenizer((kGolden / "gpt2").string());
  std::string word;
  for (std::uint64_t i = 0; i < 3000; ++i)
    word.push_back(static_cast<char>('a' + philox(5, i)[0] % 26));
  const Ids ids = tokenizer->encode(word);
  EXPECT_LT(ids.size(), word.size());
  EXPECT_EQ(tokenizer->decode(ids, false), word);
}

void expect_refused(const std::string& text, ErrorKind kind, const std::string& message) {
  try {
    detail::parse_hugging_face(text, "t.json");
    ADD_FAILURE() << "accepted: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, kind) << error.message;
    EXPECT_NE(error.message.find(message), std::string::npos) << error.message;
    EXPECT_EQ(error.message.rfind("t.json: ", 0), 0U) << error.message;
  }
}

TEST(HuggingFace, refuses_damaged_files_and_what_it_does_not_know) {
  const std::string model = R"("model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, )";
  expect_refused("", ErrorKind::kCorrupt, "parse error");
  expect_refused("[]", ErrorKind::kCorrupt, "no 'model'");
  expect_refused(R"({"model": 3})", ErrorKind::kCorrupt, "");
  expect_refused("{" + model + R"("merges": ["a c"]}})", ErrorKind::kCorrupt, "'c'");
  expect_refused("{" + model + R"("merges": ["ab"]}})", ErrorKind::kCorrupt, "not a pair");
  expect_refused("{" + model + R"("merges": [["b", "a"]]}})", ErrorKind::kCorrupt, "'ba'");
  expect_refused("{" + model + R"("merges": [], "unk_token": "?"}})", ErrorKind::kCorrupt, "'?'");
  expect_refused("{" + model + R"("merges": [], "dropout": 0.1}})", ErrorKind::kConfig, "dropout");
  expect_refused(R"({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}})",
                 ErrorKind::kCorrupt, "no small number");
  expect_refused(R"({"model": {"type": "BPE", "vocab": {"a": 4000000000}, "merges": []}})",
                 ErrorKind::kCorrupt, "no small number");
  expect_refused(R"({"model": {"type": "WordLevel", "vocab": {}}})", ErrorKind::kConfig,
                 "'WordLevel'");
  expect_refused(R"({"model": {"type": "Unigram", "vocab": [], "unk_id": 0}})", ErrorKind::kCorrupt,
                 "empty");
  expect_refused("{" + model + R"("merges": []}, "normalizer": {"type": "Precompiled"}})",
                 ErrorKind::kConfig, "'Precompiled'");
  expect_refused("{" + model + R"("merges": []}, "pre_tokenizer": {"type": "Split", "pattern": )" +
                     R"({"Regex": "("}, "behavior": "Isolated"}})",
                 ErrorKind::kCorrupt, "regular expression");
  EXPECT_THROW(load_tokenizer("/no/such/tokenizer.json"), Error);
}

// Files with some bytes changed are refused or work; they never do harm.
TEST(HuggingFace, survives_changed_bytes) {
  const char* rounds = std::getenv("TRIREME_FUZZ_ROUNDS");
  const std::uint64_t count = rounds != nullptr ? std::stoull(rounds) : 20;
  for (const char* name : {"gpt2", "metaspace", "bert", "unigram"}) {
    const std::string whole = slurp(kGolden / name / "tokenizer.json");
    for (std::uint64_t round = 0; round < count; ++round) {
      std::string text = whole;
      const auto words = philox(round, 7);
      for (std::uint64_t i = 0; i < 1 + words[3] % 4; ++i) {
        // The head has all that is not a list of tokens.
        const auto where = philox(round, 100 + i);
        text[where[0] % (where[1] % 2 ? text.size() : 3000)] = static_cast<char>(where[2]);
      }
      try {
        const auto tokenizer = detail::parse_hugging_face(text, name);
        const Ids ids = tokenizer->encode(random_text(round), true);
        tokenizer->decode(ids, false);
      } catch (const Error&) {
      }
    }
  }
}

}  // namespace

}  // namespace trireme::data
