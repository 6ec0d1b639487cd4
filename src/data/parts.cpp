#include "data/parts.hpp"

#include "trireme/base/error.hpp"

#include "data/packed_tokens.hpp"
#include "data/token_file.hpp"
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

namespace trireme::data::detail {

namespace {

namespace fs = std::filesystem;

using Bytes = std::array<std::byte, kPartHeaderBytes>;

constexpr std::array<char, 8> kMagic{'T', 'R', 'I', 'T', 'O', 'K', 'E', 'N'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHashedHeader = kPartHeaderBytes - 8;

[[noreturn]] void corrupt(const fs::path& path, const std::string& why) {
  throw Error(ErrorKind::kCorrupt, fmt::format("{}: {}", path.filename().string(), why),
              "delete the part and write it again");
}

template <class Value>
void put(Bytes& bytes, std::size_t at, Value value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

template <class Value>
Value get(const Bytes& bytes, std::size_t at) {
  Value value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

Bytes packed(const PartHeader& header) {
  Bytes bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  put(bytes, 8, kVersion);
  put(bytes, 12, static_cast<std::uint32_t>(header.token_bytes));
  const std::array words{header.part,        header.parts,      header.tokens,
                         header.documents,   header.vocabulary, header.fingerprint,
                         header.content_hash};
  std::memcpy(bytes.data() + 16, words.data(), sizeof words);
  put(bytes, kHashedHeader, std::uint64_t{XXH3_64bits(bytes.data(), kHashedHeader)});
  return bytes;
}

std::uint64_t padded(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// The size that a header promises; nothing when it does not fit 64 bits.
std::optional<std::uint64_t> promised_size(const PartHeader& header) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 58;
  if (header.tokens > kMost || header.documents > kMost) return std::nullopt;
  return kPartHeaderBytes + padded(header.tokens * header.token_bytes) + 8 * header.documents;
}

PartHeader read_header(const InputFile& file) {
  if (file.size() < kPartHeaderBytes) {
    corrupt(file.path(), fmt::format("truncated: it ends at offset {}, inside the header of {} "
                                     "bytes",
                                     file.size(), kPartHeaderBytes));
  }
  Bytes bytes;
  file.read(0, bytes);
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    corrupt(file.path(), "offset 0: not the magic of a part, 'TRITOKEN'");
  }
  if (get<std::uint32_t>(bytes, 8) != kVersion) {
    corrupt(file.path(), fmt::format("offset 8: version {} is unknown; there is {}",
                                     get<std::uint32_t>(bytes, 8), kVersion));
  }
  if (get<std::uint64_t>(bytes, kHashedHeader) != XXH3_64bits(bytes.data(), kHashedHeader)) {
    corrupt(file.path(), "offset 0: the header does not match its checksum");
  }
  const auto word = [&](std::size_t i) { return get<std::uint64_t>(bytes, 16 + 8 * i); };
  const PartHeader header{
      get<std::uint32_t>(bytes, 12), word(0), word(1), word(2), word(3), word(4), word(5), word(6)};
  if (header.token_bytes != 2 && header.token_bytes != 4) {
    corrupt(file.path(), fmt::format("offset 12: tokens of {} bytes", header.token_bytes));
  }
  const auto promised = promised_size(header);
  if (promised != file.size()) {
    corrupt(file.path(),
            fmt::format("{}: {} tokens and {} documents do not make its {} bytes",
                        !promised || *promised > file.size() ? "truncated" : "size mismatch",
                        header.tokens, header.documents, file.size()));
  }
  return header;
}

std::vector<std::uint64_t> read_ends(const InputFile& file, const PartHeader& header) {
  std::vector<std::uint64_t> ends(header.documents);
  const std::uint64_t begin = file.size() - 8 * header.documents;
  file.read(begin, std::as_writable_bytes(std::span(ends)));
  std::uint64_t before = 0;
  for (std::size_t d = 0; d < ends.size(); ++d) {
    if (ends[d] <= before || ends[d] > header.tokens) {
      corrupt(file.path(), fmt::format("offset {}: document {} ends at token {}, after {} of {}",
                                       begin + 8 * d, d, ends[d], before, header.tokens));
    }
    before = ends[d];
  }
  if (before != header.tokens) {
    corrupt(file.path(), fmt::format("the documents end at token {} of {}", before, header.tokens));
  }
  return ends;
}

struct Part {
  PackedTokens tokens;
  std::uint64_t end;  // in tokens of the whole
};

class Parts final : public TokenFile {
 public:
  Parts(fs::path folder, std::vector<Part> parts, std::vector<std::uint64_t> ends,
        std::int64_t vocabulary)
      : folder_(std::move(folder)),
        parts_(std::move(parts)),
        ends_(std::move(ends)),
        vocabulary_(vocabulary) {}

  const fs::path& path() const override { return folder_; }
  std::uint64_t num_tokens() const override { return parts_.back().end; }
  std::int64_t vocabulary() const override { return vocabulary_; }
  std::span<const std::uint64_t> document_ends() const override { return ends_; }
  std::string details() const override {
    return fmt::format("{} parts, {}", parts_.size(), name_of(parts_.front().tokens.type()));
  }

  void read(std::uint64_t first, std::span<std::int64_t> tokens) const override {
    auto part = std::ranges::upper_bound(parts_, first, {}, &Part::end);
    while (!tokens.empty()) {
      ensure(part != parts_.end(), "tokens outside the parts");
      const std::uint64_t left = part->end - first;
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(left, tokens.size()));
      part->tokens.read(part->tokens.count() - left, tokens.first(count));
      tokens = tokens.subspan(count);
      first += count;
      ++part;
    }
  }

 private:
  fs::path folder_;
  std::vector<Part> parts_;
  std::vector<std::uint64_t> ends_;
  std::int64_t vocabulary_;
};

// The number of parts that the names in the folder speak of.
std::uint64_t number_of_parts(const fs::path& folder) {
  std::uint64_t parts = 0;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename().string();
    unsigned long long part = 0;
    unsigned long long of = 0;
    if (std::sscanf(name.c_str(), "part-%llu-of-%llu.tokens", &part, &of) != 2) continue;
    if (entry.path() != part_path(folder, part, of)) continue;
    if (parts != 0 && parts != of) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("parts of two different sets lie in it, of {} and of {}", parts, of));
    }
    parts = of;
  }
  if (failed) throw Error(ErrorKind::kConfig, failed.message());
  return parts;
}

InputFile open_part(const fs::path& folder, std::uint64_t part, std::uint64_t parts) {
  const fs::path path = part_path(folder, part, parts);
  try {
    return InputFile(path);
  } catch (const Error& error) {
    throw Error(error.kind, fmt::format("{}: {}", path.filename().string(), error.message),
                "write again what is missing");
  }
}

void same_set(const fs::path& path, const PartHeader& header, const PartHeader& first,
              std::uint64_t part) {
  if (header.part == part && header.parts == first.parts &&
      header.token_bytes == first.token_bytes && header.vocabulary == first.vocabulary &&
      header.fingerprint == first.fingerprint) {
    return;
  }
  corrupt(path, "it was made from other text or with another tokenizer than part 0");
}

}  // namespace

fs::path part_path(const fs::path& folder, std::uint64_t part, std::uint64_t parts) {
  return folder / fmt::format("part-{:05}-of-{:05}.tokens", part, parts);
}

PartHeader read_part_header(const fs::path& path) { return read_header(InputFile(path)); }

void verify_part(const fs::path& path) {
  const InputFile file(path);
  const PartHeader header = read_header(file);
  XXH3_state_t* state = XXH3_createState();
  XXH3_64bits_reset(state);
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  for (std::uint64_t at = kPartHeaderBytes; at < file.size(); at += buffer.size()) {
    const auto some = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), file.size() - at)));
    file.read(at, some);
    XXH3_64bits_update(state, some.data(), some.size());
  }
  const std::uint64_t found = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  if (found != header.content_hash) corrupt(path, "its tokens do not match their checksum");
}

std::shared_ptr<const TokenFile> open_parts(const fs::path& folder) {
  const std::uint64_t parts = number_of_parts(folder);
  if (parts == 0) {
    throw Error(ErrorKind::kConfig, "no part-00000-of-..tokens lies in it",
                "format: tokens is for folders that Trireme wrote");
  }
  std::vector<Part> opened;
  std::vector<std::uint64_t> ends;
  PartHeader first;
  std::uint64_t begin = 0;
  for (std::uint64_t part = 0; part < parts; ++part) {
    InputFile file = open_part(folder, part, parts);
    const PartHeader header = read_header(file);
    if (part == 0) first = header;
    same_set(file.path(), header, first, part);
    for (const std::uint64_t end : read_ends(file, header)) ends.push_back(begin + end);
    begin += header.tokens;
    const TokenType type = header.token_bytes == 2 ? TokenType::kUint16 : TokenType::kUint32;
    opened.push_back({PackedTokens(std::move(file), type, kPartHeaderBytes, header.tokens), begin});
  }
  return std::make_shared<const Parts>(folder, std::move(opened), std::move(ends),
                                       static_cast<std::int64_t>(first.vocabulary));
}

PartWriter::PartWriter(const fs::path& folder, const PartHeader& header)
    : path_(part_path(folder, header.part, header.parts)),
      temporary_(path_.string() + fmt::format(".tmp-{}", ::getpid())),
      header_(header),
      file_(temporary_, std::ios::binary | std::ios::trunc),
      hash_(XXH3_createState()) {
  header_.token_bytes = header.vocabulary <= 65536 ? 2 : 4;
  header_.tokens = header_.documents = 0;
  XXH3_64bits_reset(hash_);
  if (!file_) throw_errno("open", temporary_.string());
  const Bytes room{};
  file_.write(reinterpret_cast<const char*>(room.data()), room.size());
}

PartWriter::~PartWriter() {
  XXH3_freeState(hash_);
  if (committed_) return;
  std::error_code ignored;
  file_.close();
  fs::remove(temporary_, ignored);
}

void PartWriter::put(const void* bytes, std::size_t count) {
  XXH3_64bits_update(hash_, bytes, count);
  file_.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(count));
}

void PartWriter::add(std::span<const std::uint32_t> document) {
  if (document.empty()) return;
  if (header_.token_bytes == 2) {
    narrow_.assign(document.begin(), document.end());
    put(narrow_.data(), narrow_.size() * 2);
  } else {
    put(document.data(), document.size_bytes());
  }
  header_.tokens += document.size();
  ends_.push_back(header_.tokens);
}

void PartWriter::commit() {
  const std::uint64_t bytes = header_.tokens * header_.token_bytes;
  const std::uint64_t zeros = 0;
  put(&zeros, padded(bytes) - bytes);
  put(ends_.data(), ends_.size() * 8);
  header_.documents = ends_.size();
  header_.content_hash = XXH3_64bits_digest(hash_);
  const Bytes header = packed(header_);
  file_.seekp(0);
  file_.write(reinterpret_cast<const char*>(header.data()), header.size());
  file_.close();
  if (!file_) throw_errno("write", temporary_.string());
  const FileDescriptor written(::open(temporary_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!written || ::fsync(written.get()) != 0) throw_errno("fsync", temporary_.string());
  fs::rename(temporary_, path_);
  committed_ = true;
}

}  // namespace trireme::data::detail
