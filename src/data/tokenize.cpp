#include "trireme/data/tokenize.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"
#include "trireme/data/tokenizer.hpp"

#include "data/parts.hpp"
#include "data/work_parts.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <mutex>

namespace trireme::data {

namespace {

namespace fs = std::filesystem;
using detail::PartHeader;
using detail::TextPart;

// Changes with anything that changes a token of any part.
std::uint64_t fingerprint_of(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  std::uint64_t key = stream_key(tokenizer.fingerprint(), "tokenize");
  key = stream_key(key, fmt::format("{}", options.part_bytes));
  for (const TextSource& source : options.sources) {
    key = stream_key(key, fmt::format("{} {} {} {}", fs::absolute(source.path).string(),
                                      fs::file_size(source.path), source.format, source.key));
  }
  return key;
}

// Files of the folder that are no part of this set would be read with it, or never.
void refuse_other_files(const fs::path& folder, std::uint64_t parts) {
  if (!fs::exists(folder)) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name.starts_with("part-") &&
                      name.find(fmt::format("-of-{:05}.tokens", parts)) != std::string::npos;
    if (ours) continue;
    throw Error(ErrorKind::kConfig,
                fmt::format("{} holds '{}', which is no part of this", folder.string(), name),
                "give a folder that is new, or what the same command has begun");
  }
}

class Job {
 public:
  Job(const TokenizeOptions& options, const Share& share)
      : options_(options),
        share_(share),
        tokenizer_(load_tokenizer(options.tokenizer)),
        parts_(detail::parts_of(options.sources, options.part_bytes)) {
    if (!tokenizer_->has_text())
      throw Error(ErrorKind::kConfig, "a number is no tokenizer for text");
    if (parts_.empty()) throw Error(ErrorKind::kConfig, "there is no text to tokenize");
    fingerprint_ = fingerprint_of(options, *tokenizer_);
    refuse_other_files(options.to, parts_.size());
    fs::create_directories(options.to);
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      if (p % share.ranks == share.rank) all_bytes_ += parts_[p].bytes;
    }
  }

  TokenizeResult run() {
    detail::work_on(parts_.size(), share_, [this](std::size_t part, unsigned) { make(part); });
    return result_;
  }

 private:
  PartHeader header_of(std::size_t part) const {
    PartHeader header;
    header.part = part;
    header.parts = parts_.size();
    header.vocabulary = static_cast<std::uint64_t>(tokenizer_->vocabulary_size());
    header.fingerprint = fingerprint_;
    return header;
  }

  void make(std::size_t part) {
    const fs::path path = detail::part_path(options_.to, part, parts_.size());
    const bool there = fs::exists(path);
    if (there && detail::read_part_header(path).fingerprint != fingerprint_) {
      throw Error(
          ErrorKind::kConfig,
          fmt::format("{} was made from other texts or by another tokenizer", path.string()),
          "give another folder, or remove this one");
    }
    if (!there) write(part);
    count(path, there, parts_[part].bytes);
  }

  void write(std::size_t part) {
    detail::PartWriter writer(options_.to, header_of(part));
    const auto documents = open_documents(parts_[part].source);
    const auto end = tokenizer_->end_of_text();
    std::vector<std::uint32_t> tokens;
    for (std::string text; documents->next(text);) {
      tokens.clear();
      tokenizer_->encode(text, false, tokens);
      if (end) tokens.push_back(*end);
      writer.add(tokens);
    }
    writer.commit();
  }

  void count(const fs::path& path, bool kept, std::uint64_t bytes) {
    const PartHeader header = detail::read_part_header(path);
    const std::lock_guard lock(mutex_);
    ++result_.parts;
    result_.kept += kept ? 1 : 0;
    result_.documents += header.documents;
    result_.tokens += header.tokens;
    done_bytes_ += bytes;
    if (options_.progress) options_.progress(done_bytes_, all_bytes_);
  }

  const TokenizeOptions& options_;
  Share share_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<TextPart> parts_;
  std::uint64_t fingerprint_ = 0;
  std::uint64_t all_bytes_ = 0;
  std::mutex mutex_;  // of what follows
  std::uint64_t done_bytes_ = 0;
  TokenizeResult result_;
};

}  // namespace

TokenizeResult tokenize(const TokenizeOptions& options, const Share& share) {
  return Job(options, share).run();
}

}  // namespace trireme::data
