// Megatron's .idx and .bin. The index: magic (9 bytes), version, type code, number of sequences S,
// number of document boundaries D, int32 lengths[S], int64 byte pointers[S], int64 boundaries[D]
// in sequences. DeepSpeed writes the same layout with other type codes for 6 and 8.
#include "data/packed_tokens.hpp"
#include "data/token_file.hpp"
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <numeric>

namespace trireme::data::detail {

namespace {

constexpr std::array<char, 9> kMagic{'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr std::uint64_t kHeader = 34;

[[noreturn]] void corrupt(const std::filesystem::path& path, std::string why,
                          std::string hint = {}) {
  throw Error(ErrorKind::kCorrupt, fmt::format("{}: {}", path.filename().string(), why),
              std::move(hint));
}

TokenType type_of_code(unsigned code, const std::filesystem::path& idx) {
  switch (code) {
    case 1:
      return TokenType::kUint8;
    case 2:
      return TokenType::kInt8;
    case 3:
      return TokenType::kInt16;
    case 4:
      return TokenType::kInt32;
    case 5:
      return TokenType::kInt64;
    case 8:
      return TokenType::kUint16;
    case 6:
    case 7:
      corrupt(idx, fmt::format("offset 17: type code {} is floating point, not tokens", code),
              "DeepSpeed writes 6 for uint16; convert such a file with Megatron's own tools");
    default:
      corrupt(idx, fmt::format("offset 17: type code {} is unknown", code));
  }
}

struct Header {
  TokenType type;
  std::uint64_t sequences;
  std::uint64_t boundaries;
};

Header read_header(const InputFile& file) {
  if (file.size() < kHeader) {
    corrupt(file.path(), fmt::format("truncated: it ends at offset {}, inside the header of {} "
                                     "bytes",
                                     file.size(), kHeader));
  }
  std::array<std::byte, kHeader> bytes{};
  file.read(0, bytes);
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    corrupt(file.path(), "offset 0: not the magic of a Megatron index, 'MMIDIDX'");
  }
  const auto word = [&](std::size_t at) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  if (word(9) != 1) {
    corrupt(file.path(), fmt::format("offset 9: version {} is unknown; there is 1", word(9)));
  }
  const Header header{type_of_code(std::to_integer<unsigned>(bytes[17]), file.path()), word(18),
                      word(26)};
  const std::uint64_t rest = file.size() - kHeader;
  if (header.sequences > rest / 12 || header.boundaries > (rest - header.sequences * 12) / 8) {
    corrupt(file.path(), fmt::format("truncated: {} sequences and {} document boundaries do not "
                                     "fit into {} bytes (counts at offsets 18 and 26)",
                                     header.sequences, header.boundaries, file.size()));
  }
  return header;
}

template <class Value>
std::vector<Value> read_array(const InputFile& file, std::uint64_t offset, std::uint64_t count) {
  std::vector<Value> values(count);
  file.read(offset, std::as_writable_bytes(std::span(values)));
  return values;
}

void check_lengths(const InputFile& file, const std::vector<std::int32_t>& lengths) {
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    if (lengths[s] >= 0) continue;
    corrupt(file.path(), fmt::format("offset {}: sequence {} has the negative length {}",
                                     kHeader + 4 * s, s, lengths[s]));
  }
}

void check_pointers(const InputFile& file, const Header& header,
                    const std::vector<std::int32_t>& lengths) {
  const std::uint64_t begin = kHeader + 4 * header.sequences;
  const auto pointers = read_array<std::int64_t>(file, begin, header.sequences);
  std::int64_t expected = 0;
  for (std::size_t s = 0; s < pointers.size(); ++s) {
    if (pointers[s] != expected) {
      corrupt(file.path(),
              fmt::format("offset {}: the index points sequence {} at byte {}, but the sequences "
                          "before it end at {}",
                          begin + 8 * s, s, pointers[s], expected));
    }
    expected +=
        static_cast<std::int64_t>(lengths[s]) * static_cast<std::int64_t>(size_of(header.type));
  }
}

std::vector<std::int64_t> read_documents(const InputFile& file, const Header& header) {
  const std::uint64_t begin = kHeader + 12 * header.sequences;
  auto documents = read_array<std::int64_t>(file, begin, header.boundaries);
  std::int64_t before = 0;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const bool past = documents[d] > static_cast<std::int64_t>(header.sequences);
    if (documents[d] < before || past || (d == 0 && documents[d] != 0)) {
      corrupt(file.path(),
              fmt::format("offset {}: document boundary {} is {}, which is {} (index of {} "
                          "sequences)",
                          begin + 8 * d, d, documents[d],
                          past     ? "past the end"
                          : d == 0 ? "not 0"
                                   : "before the one in front of it",
                          header.sequences));
    }
    before = documents[d];
  }
  return documents;
}

// The ends of the documents in tokens, without empty ones; sequences that no document claims are
// one more.
std::vector<std::uint64_t> ends_in_tokens(const MegatronIndex& index) {
  std::vector<std::uint64_t> ends;
  std::uint64_t token = 0;
  const auto close = [&] {
    if (token > (ends.empty() ? 0 : ends.back())) ends.push_back(token);
  };
  std::size_t s = 0;
  for (const std::int64_t boundary : index.documents) {
    for (; s < static_cast<std::size_t>(boundary); ++s)
      token += static_cast<std::uint64_t>(index.lengths[s]);
    close();
  }
  for (; s < index.lengths.size(); ++s) token += static_cast<std::uint64_t>(index.lengths[s]);
  close();
  return ends;
}

class Megatron final : public TokenFile {
 public:
  Megatron(PackedTokens tokens, std::vector<std::uint64_t> ends, std::size_t sequences)
      : tokens_(std::move(tokens)), ends_(std::move(ends)), sequences_(sequences) {}

  const std::filesystem::path& path() const override { return tokens_.path(); }
  std::uint64_t num_tokens() const override { return tokens_.count(); }
  std::span<const std::uint64_t> document_ends() const override { return ends_; }
  std::string details() const override {
    return fmt::format("{}, {} sequences", name_of(tokens_.type()), sequences_);
  }
  void read(std::uint64_t first, std::span<std::int64_t> tokens) const override {
    tokens_.read(first, tokens);
  }

 private:
  PackedTokens tokens_;
  std::vector<std::uint64_t> ends_;
  std::size_t sequences_;
};

InputFile open_named(const std::filesystem::path& path) {
  try {
    return InputFile(path);
  } catch (Error& error) {
    throw Error(error.kind, fmt::format("{}: {}", path.filename().string(), error.message),
                "a Megatron file is a pair of .idx and .bin");
  }
}

}  // namespace

MegatronIndex read_megatron_index(const std::filesystem::path& idx) {
  const InputFile file = open_named(idx);
  const Header header = read_header(file);
  MegatronIndex index;
  index.type = name_of(header.type);
  index.lengths = read_array<std::int32_t>(file, kHeader, header.sequences);
  check_lengths(file, index.lengths);
  check_pointers(file, header, index.lengths);
  index.documents = read_documents(file, header);
  return index;
}

std::shared_ptr<const TokenFile> open_megatron(const std::filesystem::path& path) {
  std::filesystem::path prefix = path;
  if (path.extension() == ".idx" || path.extension() == ".bin") prefix.replace_extension();
  const std::filesystem::path idx = prefix.string() + ".idx";
  const MegatronIndex index = read_megatron_index(idx);
  const TokenType type = read_header(InputFile(idx)).type;
  InputFile bin = open_named(prefix.string() + ".bin");
  const auto count = std::accumulate(index.lengths.begin(), index.lengths.end(), std::uint64_t{0});
  const std::uint64_t promised = count * size_of(type);
  if (bin.size() != promised) {
    corrupt(
        bin.path(),
        fmt::format("{}: the index promises {} tokens, {} bytes, but it ends at offset {}",
                    bin.size() < promised ? "truncated" : "size mismatch", count, promised,
                    bin.size()),
        bin.size() * 4 == promised ? "DeepSpeed writes 8 for uint16; this may be such a file" : "");
  }
  return std::make_shared<const Megatron>(PackedTokens(std::move(bin), type, 0, count),
                                          ends_in_tokens(index), index.lengths.size());
}

}  // namespace trireme::data::detail
