// Files of safetensors, the format in which Hugging Face keeps weights: eight bytes of length, a
// JSON header, the tensors' bytes.
//
// Nothing that a file says is believed: every size, place and name is held against the others
// before a byte of a tensor is read. What does not fit is Corrupt, with file, tensor and place.
// Tensors are read in slices, so that a rank takes what it needs and nothing else.
#pragma once

#include "trireme/ckpt/checkpoint.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::ckpt::safetensors {

enum class Type {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64
};

std::uint64_t element_bytes(Type type);
// Returns the format's own word: "F32", "BF16", ...
std::string_view name_of(Type type);
std::optional<Type> type_named(std::string_view name);

struct Entry {
  std::string name;
  Type type = Type::kF32;
  std::vector<std::int64_t> shape;
};

struct Tensor : Entry {
  std::uint64_t bytes = 0;
  std::size_t file = 0;      // index into Reader::files()
  std::uint64_t offset = 0;  // of its first byte in that file
};

class Reader {
 public:
  // Opens a .safetensors file, a .safetensors.index.json with its shards, or a folder that holds
  // model.safetensors or model.safetensors.index.json. Throws Config when there is neither, Corrupt
  // or Io.
  explicit Reader(const std::filesystem::path& given);
  ~Reader();
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;

  const std::vector<std::filesystem::path>& files() const;
  const std::vector<Tensor>& tensors() const;  // in the order of files, then of bytes
  std::optional<std::size_t> find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const;  // of all files together

  // Fills `to` with the tensor's bytes from byte `begin` on. One thread or many.
  void read_bytes(std::size_t tensor, std::uint64_t begin, std::span<std::byte> to) const;
  // Fills `to` with elements from `begin` on, widened to fp32 where the file has fp16 or bf16
  // (which needs a kernels::Runtime). Throws Config for every other type: none is rounded.
  void read(std::size_t tensor, std::int64_t begin, std::span<float> to) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes one file front to back: the caller gives the bytes of the entries in their order, in
// pieces of any size, and needs no more memory than a piece. Until finish() has returned there is
// no file of that name; without it what was written is removed.
class Writer {
 public:
  // Throws Internal when two entries have one name or a shape is impossible, Io.
  Writer(std::filesystem::path path, const std::vector<Entry>& entries,
         const std::map<std::string, std::string>& metadata, FaultHook hook = {});
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void write(std::span<const std::byte> bytes);
  // Makes the file durable under its name. Throws Internal when not all bytes were given, Io.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::ckpt::safetensors
