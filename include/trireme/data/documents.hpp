// Documents from files of text, one after the other: plain text (a file is one document) and JSON
// lines (a line is one, its text under a key), packed with gzip or zstd or not. Nothing is repaired
// or skipped: what cannot be read is an error with path, line and offset.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace trireme::data {

struct TextSource {
  std::filesystem::path path;
  std::string format = "text";  // or "jsonl"
  std::string key = "text";     // of the text in a line of jsonl
  // Only the lines that begin in [begin, end); files that are packed are read whole.
  std::uint64_t begin = 0;
  std::uint64_t end = ~std::uint64_t{0};
};

class DocumentReader {
 public:
  virtual ~DocumentReader() = default;
  // Replaces `text` by the next document, or returns false at the end. Throws Corrupt for damaged
  // packing and for a line that is not what it should be, Io when the file cannot be read.
  virtual bool next(std::string& text) = 0;
};

// Throws Config when the file cannot be opened, the format is unknown or a Parquet file is given.
std::unique_ptr<DocumentReader> open_documents(const TextSource& source);

// Returns whether a file's name says that it is packed (.gz, .zst).
bool is_packed(const std::filesystem::path& path);

// Returns the text of one line of JSON; throws Corrupt without a path: "not JSON: ...",
// "no key 'text'", "'text' is a number, not a string".
std::string text_of_line(std::string_view line, const std::string& key);

}  // namespace trireme::data
