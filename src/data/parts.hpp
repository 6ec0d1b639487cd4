// Our own token files: a folder of parts, part-00000-of-00008.tokens and so on, each written alone
// and complete, so that no rank waits for another and an interrupted run goes on where it stopped.
//
// A part, little-endian: magic "TRITOKEN", u32 version 1, u32 bytes per token (2 or 4), u64 part,
// u64 parts, u64 tokens, u64 documents, u64 vocabulary, u64 fingerprint of what it was made from,
// u64 XXH3 of tokens and ends, u64 XXH3 of the header so far; then the tokens, zeros up to a
// multiple of 8 bytes, and the ends of the documents as u64 tokens from the part's beginning.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

struct XXH3_state_s;

namespace trireme::data::detail {

struct PartHeader {
  std::uint64_t token_bytes = 2;
  std::uint64_t part = 0;
  std::uint64_t parts = 1;
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t fingerprint = 0;
  std::uint64_t content_hash = 0;
};

inline constexpr std::uint64_t kPartHeaderBytes = 80;

std::filesystem::path part_path(const std::filesystem::path& folder, std::uint64_t part,
                                std::uint64_t parts);

// Reads and checks the header and the file's size; throws Corrupt naming the file.
PartHeader read_part_header(const std::filesystem::path& path);

// Reads all of the part and compares it with its hash; throws Corrupt naming the file.
void verify_part(const std::filesystem::path& path);

// Writes one part; it has its name only once it is complete and on disk.
class PartWriter {
 public:
  PartWriter(const std::filesystem::path& folder, const PartHeader& header);
  ~PartWriter();
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;

  // Appends a document; one without tokens leaves no trace.
  void add(std::span<const std::uint32_t> document);
  // Throws Io when not everything could be written.
  void commit();

 private:
  void put(const void* bytes, std::size_t count);

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  PartHeader header_;
  std::ofstream file_;
  std::vector<std::uint64_t> ends_;
  std::vector<std::uint16_t> narrow_;
  XXH3_state_s* hash_;
  bool committed_ = false;
};

}  // namespace trireme::data::detail
