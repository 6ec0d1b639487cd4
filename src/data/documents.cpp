#include "trireme/data/documents.hpp"

#include "trireme/base/error.hpp"

#include "data/byte_stream.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <vector>

namespace trireme::data {

namespace {

constexpr std::size_t kLongestDocument = std::size_t{1} << 30;

// Lines of a stream without their newline, with where they began.
class Lines {
 public:
  explicit Lines(const TextSource& source)
      : path_(source.path.string()),
        // One byte earlier, so that a line that begins exactly at `begin` is seen to begin there.
        offset_(source.begin == 0 ? 0 : source.begin - 1),
        end_(source.end),
        counted_(source.begin == 0),
        stream_(detail::open_stream(source.path, offset_)),
        buffer_(std::size_t{1} << 20) {
    if (std::string rest; source.begin > 0) take(rest);
  }

  // Returns false at the end. The line's own newline is not part of it.
  bool next(std::string& line) {
    if (offset_ >= end_) return false;
    begin_ = offset_;
    ++number_;
    return take(line);
  }

  std::string where() const {
    return counted_ ? fmt::format("{}:{} (offset {})", path_, number_, begin_)
                    : fmt::format("{}: the line at offset {}", path_, begin_);
  }

 private:
  bool take(std::string& line) {
    line.clear();
    bool any = false;
    while (used_ < filled_ || refill()) {
      any = true;
      const auto first = buffer_.begin() + static_cast<std::ptrdiff_t>(used_);
      const auto last = buffer_.begin() + static_cast<std::ptrdiff_t>(filled_);
      const auto newline = std::find(first, last, '\n');
      line.append(first, newline);
      const auto took = static_cast<std::size_t>(newline - first) + (newline == last ? 0 : 1);
      used_ += took;
      offset_ += took;
      if (newline != last) return true;
      if (line.size() > kLongestDocument) {
        throw Error(
            ErrorKind::kCorrupt,
            fmt::format("{}: longer than {} bytes without a newline", where(), kLongestDocument),
            "is this a file of JSON lines?");
      }
    }
    return any;
  }

  bool refill() {
    filled_ = stream_->read(buffer_);
    used_ = 0;
    return filled_ > 0;
  }

  std::string path_;
  std::uint64_t offset_;
  std::uint64_t end_;
  bool counted_;
  std::unique_ptr<detail::ByteStream> stream_;
  std::vector<char> buffer_;
  std::size_t used_ = 0;
  std::size_t filled_ = 0;
  std::uint64_t begin_ = 0;
  std::uint64_t number_ = 0;
};

class JsonLines final : public DocumentReader {
 public:
  explicit JsonLines(const TextSource& source) : key_(source.key), lines_(source) {}

  bool next(std::string& text) override {
    while (lines_.next(line_)) {
      std::string_view line = line_;
      if (line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      try {
        text = text_of_line(line, key_);
      } catch (const Error& error) {
        throw Error(error.kind, fmt::format("{}: {}", lines_.where(), error.message), error.hint);
      }
      return true;
    }
    return false;
  }

 private:
  std::string key_;
  Lines lines_;
  std::string line_;
};

// One document: all lines that begin in the range.
class PlainText final : public DocumentReader {
 public:
  explicit PlainText(const TextSource& source) : source_(source) {}

  bool next(std::string& text) override {
    text.clear();
    if (done_) return false;
    done_ = true;
    const bool whole = source_.begin == 0 && source_.end == ~std::uint64_t{0};
    if (whole) {
      read_all(text);
    } else {
      Lines lines(source_);
      for (std::string line; lines.next(line);) text.append(line).push_back('\n');
    }
    return !text.empty();
  }

 private:
  void read_all(std::string& text) const {
    const auto stream = detail::open_stream(source_.path, 0);
    std::vector<char> buffer(std::size_t{1} << 20);
    while (const std::size_t got = stream->read(buffer)) {
      text.append(buffer.data(), got);
      if (text.size() <= kLongestDocument) continue;
      throw Error(ErrorKind::kConfig,
                  fmt::format("{}: more than {} bytes in one document", source_.path.string(),
                              kLongestDocument),
                  "cut the file into several, or into JSON lines");
    }
  }

  TextSource source_;
  bool done_ = false;
};

}  // namespace

bool is_packed(const std::filesystem::path& path) {
  return path.extension() == ".gz" || path.extension() == ".zst";
}

std::string text_of_line(std::string_view line, const std::string& key) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::parse_error& error) {
    throw Error(ErrorKind::kCorrupt, fmt::format("not JSON: byte {} of the line", error.byte));
  }
  if (!object.is_object()) {
    throw Error(ErrorKind::kCorrupt, fmt::format("not an object but {}", object.type_name()));
  }
  const auto found = object.find(key);
  if (found == object.end()) {
    throw Error(ErrorKind::kCorrupt, fmt::format("no key '{}'", key), "name the key of the text");
  }
  if (!found->is_string()) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("'{}' is not a string but {}", key, found->type_name()));
  }
  return std::move(found->get_ref<std::string&>());
}

std::unique_ptr<DocumentReader> open_documents(const TextSource& source) {
  if (source.format == "jsonl") return std::make_unique<JsonLines>(source);
  if (source.format == "text") {
    detail::open_stream(source.path, 0);  // what cannot be opened is said now
    return std::make_unique<PlainText>(source);
  }
  throw Error(ErrorKind::kConfig, fmt::format("'{}' is no format of text", source.format),
              "there are text and jsonl");
}

}  // namespace trireme::data
