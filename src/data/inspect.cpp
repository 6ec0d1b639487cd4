#include "trireme/base/error.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/tokenize.hpp"
#include "trireme/data/tokenizer.hpp"

#include "data/input_file.hpp"
#include "data/parts.hpp"
#include "data/token_file.hpp"
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace trireme::data {

namespace {

namespace fs = std::filesystem;
using Rows = std::vector<std::pair<std::string, std::string>>;

constexpr std::size_t kShown = 16;
constexpr std::size_t kShownBytes = 120;

bool begins_with(const fs::path& path, std::int32_t magic) {
  const detail::InputFile file(path);
  std::int32_t found = 0;
  if (file.size() < sizeof found) return false;
  file.read(0, std::as_writable_bytes(std::span(&found, 1)));
  return found == magic;
}

// From what the file is called and begins with.
std::string format_of(const fs::path& path) {
  if (fs::is_directory(path)) return "tokens";
  const fs::path inner = is_packed(path) ? path.stem() : path;
  if (inner.extension() == ".jsonl" || inner.extension() == ".ndjson") return "jsonl";
  fs::path index = path;
  if (path.extension() == ".idx" || fs::exists(index.replace_extension(".idx"))) return "megatron";
  if (path.extension() == ".bin")
    return begins_with(path, 20240520) || begins_with(path, 20240801) ? "llm.c" : "nanogpt";
  return "text";
}

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kShownBytes)) {
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f
               ? fmt::format("\\x{:02x}", static_cast<unsigned char>(c))
               : std::string(1, c);
  }
  return text.size() > kShownBytes ? out + ".." : out;
}

void describe_text(const InspectOptions& options, const std::string& format, Rows& rows) {
  std::uint64_t documents = 0;
  std::uint64_t bytes = 0;
  std::uint64_t longest = 0;
  std::uint64_t tokens = 0;
  std::string first;
  const auto tokenizer = options.tokenizer.empty() ? nullptr : load_tokenizer(options.tokenizer);
  const auto reader = open_documents({options.path, format, options.key});
  for (std::string text; reader->next(text); ++documents) {
    if (documents == 0) first = printable(text);
    bytes += text.size();
    longest = std::max<std::uint64_t>(longest, text.size());
    if (tokenizer) tokens += tokenizer->encode(text).size();
  }
  rows.emplace_back("documents", fmt::format("{}", documents));
  rows.emplace_back("bytes of text", fmt::format("{}", bytes));
  rows.emplace_back("longest document", fmt::format("{} bytes", longest));
  if (tokenizer) {
    rows.emplace_back("tokens",
                      fmt::format("{}, {:.3f} bytes each", tokens,
                                  static_cast<double>(bytes) /
                                      static_cast<double>(std::max<std::uint64_t>(tokens, 1))));
  }
  rows.emplace_back("begins with", first);
}

void describe_documents(std::span<const std::uint64_t> ends, Rows& rows) {
  if (ends.empty()) {
    rows.emplace_back("documents", "the format does not know");
    return;
  }
  std::uint64_t before = 0;
  std::uint64_t longest = 0;
  for (const std::uint64_t end : ends) {
    longest = std::max(longest, end - before);
    before = end;
  }
  rows.emplace_back("documents", fmt::format("{}, the longest of {} tokens", ends.size(), longest));
}

// Reads every token once: a file that this passes has no id that training would stumble over.
std::int64_t largest_id(const detail::TokenFile& file) {
  std::vector<std::int64_t> some(std::size_t{1} << 16);
  std::int64_t largest = -1;
  for (std::uint64_t at = 0; at < file.num_tokens(); at += some.size()) {
    const auto part = std::span(some).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(some.size(), file.num_tokens() - at)));
    file.read(at, part);
    largest = std::max(largest, std::ranges::max(part));
  }
  return largest;
}

void describe_tokens(const InspectOptions& options, const std::string& format, Rows& rows) {
  const auto file = detail::open_token_file(options.path, format);
  rows.emplace_back("kept as", file->details());
  rows.emplace_back("tokens", fmt::format("{}", file->num_tokens()));
  describe_documents(file->document_ends(), rows);
  if (file->vocabulary() > 0)
    rows.emplace_back("vocabulary", fmt::format("{}", file->vocabulary()));
  rows.emplace_back("largest id", fmt::format("{}", largest_id(*file)));
  std::vector<std::int64_t> first(
      static_cast<std::size_t>(std::min<std::uint64_t>(kShown, file->num_tokens())));
  file->read(0, first);
  rows.emplace_back("begins with", fmt::format("{}", fmt::join(first, " ")));
  if (options.tokenizer.empty()) return;
  const std::vector<std::uint32_t> ids(first.begin(), first.end());
  rows.emplace_back("as text", printable(load_tokenizer(options.tokenizer)->decode(ids, false)));
}

void verify(const fs::path& folder, Rows& rows) {
  std::uint64_t parts = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".tokens") continue;
    detail::verify_part(entry.path());
    ++parts;
  }
  rows.emplace_back("verified", fmt::format("{} parts match their checksums", parts));
}

}  // namespace

Rows inspect(const InspectOptions& options) {
  const std::string format = options.format.empty() ? format_of(options.path) : options.format;
  Rows rows{{"file", options.path.string()}, {"format", format}};
  try {
    if (format == "text" || format == "jsonl") {
      describe_text(options, format, rows);
    } else {
      describe_tokens(options, format, rows);
    }
    if (options.verify && format == "tokens") verify(options.path, rows);
  } catch (const Error& error) {
    const bool named = error.message.find(options.path.string()) != std::string::npos;
    throw Error(error.kind,
                named ? error.message : fmt::format("{}: {}", options.path.string(), error.message),
                error.hint);
  }
  return rows;
}

}  // namespace trireme::data
