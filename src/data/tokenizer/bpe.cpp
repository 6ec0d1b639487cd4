// Byte-pair encoding. A piece is merged pair by pair, the lowest rank first and of equal ones the
// leftmost: by looking at all pairs where they are few, with a heap where they are many. Short
// pieces, which come again and again, are remembered by each thread.
#include "trireme/base/error.hpp"

#include "data/tokenizer/subword.hpp"
#include "data/tokenizer/unicode.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <queue>

namespace trireme::data::detail {

namespace {

using Json = nlohmann::json;

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

struct Merge {
  std::uint32_t rank = kNone;
  std::uint32_t id = 0;
};

// Pairs of ids to merges: open addressing, half empty.
class Merges {
 public:
  explicit Merges(std::size_t count)
      : slots_(std::bit_ceil(2 * count + 2)),
        shift_(64 - static_cast<unsigned>(std::countr_zero(slots_.size()))) {}

  void add(std::uint32_t left, std::uint32_t right, Merge merge) {
    Slot& slot = slots_[place_of(key(left, right))];
    slot = {key(left, right), merge};
  }

  Merge find(std::uint32_t left, std::uint32_t right) const {
    return slots_[place_of(key(left, right))].merge;
  }

 private:
  struct Slot {
    std::uint64_t key = ~std::uint64_t{0};
    Merge merge;
  };

  static std::uint64_t key(std::uint32_t left, std::uint32_t right) {
    return std::uint64_t{left} << 32 | right;
  }

  // Where the key is, or where it would go.
  std::size_t place_of(std::uint64_t key) const {
    std::size_t place = (key * 0x9e3779b97f4a7c15U) >> shift_;
    while (slots_[place].key != key && slots_[place].key != ~std::uint64_t{0})
      place = (place + 1) & (slots_.size() - 1);
    return place;
  }

  std::vector<Slot> slots_;
  unsigned shift_;
};

// What a thread remembers of one tokenizer: each slot the last short piece that fell into it.
class Memory {
 public:
  static constexpr std::size_t kLongest = 22;
  static constexpr std::size_t kMostIds = 9;

  struct Slot {
    std::uint8_t size = 0;
    std::uint8_t count = 0;
    std::array<char, kLongest> text{};
    std::array<std::uint32_t, kMostIds> ids{};
  };

  Slot& slot(std::uint64_t owner, std::string_view piece) {
    if (owner != owner_) {
      slots_.assign(kSlots, {});
      owner_ = owner;
    }
    return slots_[XXH3_64bits(piece.data(), piece.size()) & (kSlots - 1)];
  }

 private:
  static constexpr std::size_t kSlots = 1 << 15;
  std::uint64_t owner_ = 0;
  std::vector<Slot> slots_;
};

bool holds(const Memory::Slot& slot, std::string_view piece) {
  return slot.size == piece.size() &&
         std::memcmp(slot.text.data(), piece.data(), piece.size()) == 0;
}

std::uint64_t next_owner() {
  static std::atomic<std::uint64_t> count = 0;
  return ++count;
}

struct BpeOptions {
  std::optional<std::uint32_t> unknown;
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
  bool byte_level = false;
  std::string prefix;  // of all characters but the first
  std::string suffix;  // of the last character
};

class Bpe final : public Subword {
 public:
  Bpe(Vocabulary vocabulary, Merges merges, BpeOptions options)
      : Subword(std::move(vocabulary)),
        merges_(std::move(merges)),
        options_(std::move(options)),
        fallback_(byte_tokens(vocabulary_)) {
    if (!options_.byte_level) return;
    for (unsigned byte = 0; byte < 256; ++byte) {
      std::string character;
      append(character, character_of_byte(static_cast<unsigned char>(byte)));
      bytes_[byte] = vocabulary_.find(character).value_or(kNone);
    }
    if (!options_.ignore_merges) return;
    for (std::uint32_t id = 0; id < vocabulary_.end(); ++id) {
      const std::string* token = vocabulary_.token(id);
      if (auto bytes = token ? bytes_of_token(*token) : std::nullopt) whole_.add(*bytes, id);
    }
  }

  void encode(std::string_view piece, std::vector<std::uint32_t>& ids) const override {
    if (piece.size() > Memory::kLongest) return encode_anew(piece, ids);
    thread_local Memory memory;
    Memory::Slot& slot = memory.slot(owner_, piece);
    if (!holds(slot, piece)) {
      const std::size_t before = ids.size();
      encode_anew(piece, ids);
      const std::size_t count = ids.size() - before;
      if (count > Memory::kMostIds) return;
      slot.size = static_cast<std::uint8_t>(piece.size());
      slot.count = static_cast<std::uint8_t>(count);
      std::memcpy(slot.text.data(), piece.data(), piece.size());
      std::copy_n(ids.end() - static_cast<std::ptrdiff_t>(count), count, slot.ids.begin());
      return;
    }
    ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.count);
  }

 private:
  void encode_anew(std::string_view piece, std::vector<std::uint32_t>& ids) const {
    if (options_.ignore_merges) {
      const auto found = (options_.byte_level ? whole_ : vocabulary_).find(piece);
      if (found) return ids.push_back(*found);
    }
    const std::size_t before = ids.size();
    if (options_.byte_level) {
      add_bytes(piece, ids);
    } else {
      add_characters(piece, ids);
    }
    constexpr std::size_t kFew = 40;
    const std::span<std::uint32_t> symbols = std::span(ids).subspan(before);
    const std::size_t left = symbols.size() <= kFew ? merge_few(symbols) : merge_many(symbols);
    ids.resize(before + left);
  }

  void add_bytes(std::string_view piece, std::vector<std::uint32_t>& ids) const {
    for (const char c : piece) {
      const std::uint32_t id = bytes_[static_cast<unsigned char>(c)];
      if (id != kNone) {
        ids.push_back(id);
      } else if (options_.unknown) {
        ids.push_back(*options_.unknown);
      }
    }
  }

  std::optional<std::uint32_t> character(std::string_view text, bool first, bool last) const {
    if (options_.prefix.empty() && options_.suffix.empty()) return vocabulary_.find(text);
    std::string token = first ? std::string(text) : options_.prefix + std::string(text);
    if (last) token += options_.suffix;
    return vocabulary_.find(token);
  }

  void add_characters(std::string_view piece, std::vector<std::uint32_t>& ids) const {
    bool unknown = false;  // one that is not written yet, as more may be fused with it
    const auto flush = [&] {
      if (unknown) ids.push_back(*options_.unknown);
      unknown = false;
    };
    for (std::size_t at = 0; at < piece.size();) {
      const std::string_view text = piece.substr(at, character_at(piece, at).size);
      at += text.size();
      if (const auto id = character(text, at == text.size(), at == piece.size())) {
        flush();
        ids.push_back(*id);
      } else if (!fell_back(text, ids) && options_.unknown) {
        if (!options_.fuse_unknown) flush();
        unknown = true;
      }
    }
    flush();
  }

  bool fell_back(std::string_view text, std::vector<std::uint32_t>& ids) const {
    const auto id = [&](char c) { return fallback_[static_cast<unsigned char>(c)]; };
    if (!options_.byte_fallback ||
        !std::ranges::all_of(text, [&](char c) { return id(c).has_value(); }))
      return false;
    for (const char c : text) ids.push_back(*id(c));
    return true;
  }

  // Both merge in place and return how many symbols are left.
  std::size_t merge_few(std::span<std::uint32_t> symbols) const {
    std::array<Merge, 41> merges;
    std::size_t size = symbols.size();
    for (std::size_t i = 0; i + 1 < size; ++i) merges[i] = merges_.find(symbols[i], symbols[i + 1]);
    while (size > 1) {
      std::size_t best = 0;
      for (std::size_t i = 1; i + 1 < size; ++i) {
        if (merges[i].rank < merges[best].rank) best = i;
      }
      if (merges[best].rank == kNone) break;
      symbols[best] = merges[best].id;
      std::copy(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 2,
                symbols.begin() + static_cast<std::ptrdiff_t>(size),
                symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
      std::copy(merges.begin() + static_cast<std::ptrdiff_t>(best) + 1,
                merges.begin() + static_cast<std::ptrdiff_t>(size) - 1,
                merges.begin() + static_cast<std::ptrdiff_t>(best));
      --size;
      if (best + 1 < size) merges[best] = merges_.find(symbols[best], symbols[best + 1]);
      if (best > 0) merges[best - 1] = merges_.find(symbols[best - 1], symbols[best]);
    }
    return size;
  }

  std::size_t merge_many(std::span<std::uint32_t> symbols) const {
    struct Link {
      std::uint32_t before;
      std::uint32_t after;
    };
    const auto size = static_cast<std::uint32_t>(symbols.size());
    std::vector<Link> links(size);
    // Rank, then place; an entry whose pair has changed since is passed over.
    std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> queue;
    const auto enqueue = [&](std::uint32_t at) {
      const Merge merge = merges_.find(symbols[at], symbols[links[at].after]);
      if (merge.rank != kNone) queue.push(std::uint64_t{merge.rank} << 32 | at);
    };
    for (std::uint32_t i = 0; i < size; ++i) links[i] = {i == 0 ? kNone : i - 1, i + 1};
    for (std::uint32_t i = 0; i + 1 < size; ++i) enqueue(i);
    while (!queue.empty()) {
      const auto at = static_cast<std::uint32_t>(queue.top());
      const auto rank = static_cast<std::uint32_t>(queue.top() >> 32);
      queue.pop();
      if (symbols[at] == kNone || links[at].after >= size) continue;
      const std::uint32_t right = links[at].after;
      const Merge merge = merges_.find(symbols[at], symbols[right]);
      if (merge.rank != rank) continue;
      symbols[at] = merge.id;
      symbols[right] = kNone;
      links[at].after = links[right].after;
      if (links[at].after < size) {
        links[links[at].after].before = at;
        enqueue(at);
      }
      if (links[at].before != kNone) enqueue(links[at].before);
    }
    return static_cast<std::size_t>(std::ranges::remove(symbols, kNone).begin() - symbols.begin());
  }

  Merges merges_;
  BpeOptions options_;
  std::vector<std::optional<std::uint32_t>> fallback_;
  std::array<std::uint32_t, 256> bytes_{};  // ids of single bytes
  Vocabulary whole_;                        // by bytes, where whole pieces are looked up
  std::uint64_t owner_ = next_owner();
};

std::pair<std::string, std::string> pair_of(const Json& json, std::size_t number) {
  if (json.is_array() && json.size() == 2) return {json[0], json[1]};
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    const auto blank = text.find(' ');
    if (blank != std::string::npos) return {text.substr(0, blank), text.substr(blank + 1)};
  }
  throw Error(ErrorKind::kCorrupt, fmt::format("merge {} is not a pair", number));
}

Merges merges_of(const Json& json, const Vocabulary& vocabulary, const std::string& prefix) {
  Merges merges(json.size());
  const auto id = [&](const std::string& token, std::size_t number) {
    if (const auto found = vocabulary.find(token)) return *found;
    throw Error(ErrorKind::kCorrupt,
                fmt::format("merge {} names '{}', which is not in the vocabulary", number, token));
  };
  for (std::size_t i = 0; i < json.size(); ++i) {
    const auto [left, right] = pair_of(json[i], i);
    if (right.size() < prefix.size())
      throw Error(ErrorKind::kCorrupt, fmt::format("merge {} lacks the prefix", i));
    const std::string joined = left + right.substr(prefix.size());
    const std::uint32_t a = id(left, i);
    const std::uint32_t b = id(right, i);
    // A pair that comes twice counts with its last rank, as in the library that writes the files.
    merges.add(a, b, {static_cast<std::uint32_t>(i), id(joined, i)});
  }
  return merges;
}

std::string text_or_empty(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? std::string() : found->get<std::string>();
}

bool flag(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && !found->is_null() && found->get<bool>();
}

}  // namespace

std::unique_ptr<const Subword> make_bpe(const Json& json, Vocabulary vocabulary, bool byte_level) {
  BpeOptions options;
  if (const std::string unknown = text_or_empty(json, "unk_token"); !unknown.empty()) {
    options.unknown = vocabulary.find(unknown);
    if (!options.unknown)
      throw Error(ErrorKind::kCorrupt, fmt::format("unk_token '{}' has no id", unknown));
  }
  options.fuse_unknown = flag(json, "fuse_unk");
  options.byte_fallback = flag(json, "byte_fallback");
  options.ignore_merges = flag(json, "ignore_merges");
  options.byte_level = byte_level;
  options.prefix = text_or_empty(json, "continuing_subword_prefix");
  options.suffix = text_or_empty(json, "end_of_word_suffix");
  if (json.contains("dropout") && json.at("dropout").is_number() && json.at("dropout") > 0)
    throw Error(ErrorKind::kConfig, "a BPE model with dropout draws its tokens; set dropout null");
  if (byte_level && !(options.prefix.empty() && options.suffix.empty()))
    throw Error(ErrorKind::kConfig, "ByteLevel with prefixes or suffixes of words is not read");
  Merges merges = merges_of(json.at("merges"), vocabulary, options.prefix);
  return std::make_unique<Bpe>(std::move(vocabulary), std::move(merges), std::move(options));
}

}  // namespace trireme::data::detail
