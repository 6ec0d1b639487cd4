#include "trireme/ckpt/safetensors.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/convert.hpp"

#include "ckpt/format.hpp"
#include "ckpt/io.hpp"
#include "ckpt/safetensors_header.hpp"
#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <unordered_map>
#include <utility>

namespace trireme::ckpt::safetensors {

namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::uint64_t kMostIndexBytes = 100'000'000;
constexpr std::size_t kPiece = 1024 * 1024;  // elements converted at a time
constexpr std::string_view kIndexEnding = ".safetensors.index.json";

[[noreturn]] void corrupt(const fs::path& path, const std::string& what) {
  throw Error(ErrorKind::kCorrupt, fmt::format("{}: {}", path.string(), what),
              "the file is damaged or was not downloaded completely; fetch it again");
}

struct Opened {
  FileDescriptor fd;
  std::map<std::string, std::string> metadata;
  std::vector<Tensor> tensors;
};

// Reads the header and returns the tensors with their places in the file.
Opened open_file(const fs::path& path) {
  Opened opened{open_to_read(path), {}, {}};
  const std::uint64_t size = size_of(opened.fd.get(), path);
  if (size < kLengthBytes) corrupt(path, fmt::format("it has {} bytes, not even a length", size));
  std::uint64_t length = 0;
  read_exactly(opened.fd.get(), std::as_writable_bytes(std::span(&length, 1)), 0, path);
  if (length > kMostHeaderBytes || length > size - kLengthBytes) {
    corrupt(path, fmt::format("its header is said to have {} bytes, of {} in the file (at byte 0)",
                              length, size));
  }
  std::string text(length, '\0');
  read_exactly(opened.fd.get(), std::as_writable_bytes(std::span(text)), kLengthBytes, path);
  Header header = parse_header(text, path);
  place(header.tensors, kLengthBytes + length, size, path);
  opened.metadata = std::move(header.metadata);
  opened.tensors = std::move(header.tensors);
  return opened;
}

// An index names files of its own folder, and nothing above it.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos &&
         name.find('\0') == name.npos;
}

// Returns the file of each tensor, by name.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const std::string text = read_text(path, kMostIndexBytes);
  bool twice = false;
  std::set<std::string> names;
  const auto no_name_twice = [&](int depth, nlohmann::json::parse_event_t event,
                                 nlohmann::json& value) {
    if (depth > 3) corrupt(path, "it is nested deeper than an index");
    if (depth == 2 && event == nlohmann::json::parse_event_t::key)
      twice = twice || !names.insert(value.get<std::string>()).second;
    return true;
  };
  const auto json = nlohmann::json::parse(text, no_name_twice, false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    corrupt(path, "it is no index: there is no 'weight_map'");
  if (twice) corrupt(path, "it lists a tensor twice");
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>()))
      corrupt(path, fmt::format("the file of tensor '{}' has no name in this folder", name));
    files[name] = file.get<std::string>();
  }
  return files;
}

fs::path found_in(const fs::path& given) {
  std::error_code ignored;
  if (!fs::is_directory(given, ignored)) return given;
  for (const char* name : {"model.safetensors.index.json", "model.safetensors"}) {
    if (fs::exists(given / name, ignored)) return given / name;
  }
  throw Error(ErrorKind::kConfig,
              fmt::format("{} holds neither model.safetensors nor model.safetensors.index.json",
                          given.string()),
              "give a folder as Hugging Face's save_pretrained writes it, with safetensors");
}

}  // namespace

struct Reader::Impl {
  explicit Impl(const fs::path& path) {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
      throw Error(ErrorKind::kConfig, fmt::format("{} does not exist", path.string()),
                  "give a .safetensors file, its index, or the folder that holds them");
    }
    if (path.filename().string().ends_with(kIndexEnding)) {
      open_shards(path);
    } else {
      add(path);
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) by_name[tensors[i].name] = i;
  }

  void add(const fs::path& path) {
    Opened opened = open_file(path);
    for (Tensor& tensor : opened.tensors) {
      tensor.file = files.size();
      tensors.push_back(std::move(tensor));
    }
    metadata.merge(opened.metadata);
    files.push_back(path);
    descriptors.push_back(std::move(opened.fd));
  }

  // The index and the shards must say the same: a shard of another download has other tensors.
  void open_shards(const fs::path& index) {
    const auto file_of = read_index(index);
    std::set<std::string> shards;
    for (const auto& [name, file] : file_of) shards.insert(file);
    for (const std::string& shard : shards) add(index.parent_path() / shard);
    for (const Tensor& tensor : tensors) {
      const auto listed = file_of.find(tensor.name);
      if (listed == file_of.end() || listed->second != files[tensor.file].filename())
        corrupt(files[tensor.file], fmt::format("it holds tensor '{}', which {} does not say",
                                                tensor.name, index.filename().string()));
    }
    if (tensors.size() == file_of.size()) return;
    std::set<std::string_view> held;
    for (const Tensor& tensor : tensors) held.insert(tensor.name);
    for (const auto& [name, file] : file_of) {
      if (!held.contains(name))
        corrupt(index, fmt::format("{} does not hold tensor '{}'", file, name));
    }
  }

  std::vector<fs::path> files;
  std::vector<FileDescriptor> descriptors;
  std::vector<Tensor> tensors;
  std::map<std::string, std::string> metadata;
  std::unordered_map<std::string_view, std::size_t> by_name;
};

Reader::Reader(const fs::path& given) : impl_(new Impl(found_in(given))) {}
Reader::~Reader() = default;
Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;

const std::vector<fs::path>& Reader::files() const { return impl_->files; }
const std::vector<Tensor>& Reader::tensors() const { return impl_->tensors; }
const std::map<std::string, std::string>& Reader::metadata() const { return impl_->metadata; }

std::optional<std::size_t> Reader::find(std::string_view name) const {
  const auto found = impl_->by_name.find(name);
  if (found == impl_->by_name.end()) return std::nullopt;
  return found->second;
}

void Reader::read_bytes(std::size_t tensor, std::uint64_t begin, std::span<std::byte> to) const {
  ensure(tensor < tensors().size(), "a tensor of the list is read");
  const Tensor& one = tensors()[tensor];
  ensure(begin <= one.bytes && to.size() <= one.bytes - begin,
         fmt::format("{} bytes from {} lie within {}", to.size(), begin, one.name));
  read_exactly(impl_->descriptors[one.file].get(), to, one.offset + begin, files()[one.file]);
}

void Reader::read(std::size_t tensor, std::int64_t begin, std::span<float> to) const {
  ensure(tensor < tensors().size(), "a tensor of the list is read");
  const Type type = tensors()[tensor].type;
  const auto first = static_cast<std::uint64_t>(begin) * element_bytes(type);
  if (type == Type::kF32) return read_bytes(tensor, first, std::as_writable_bytes(to));
  if (type != Type::kF16 && type != Type::kBF16) {
    throw Error(ErrorKind::kConfig,
                fmt::format("tensor '{}' of {} has type {}", tensors()[tensor].name,
                            files()[tensors()[tensor].file].string(), name_of(type)),
                "weights are read from F32, BF16 and F16; convert the file first");
  }
  std::vector<kernels::Half> halves(std::min(kPiece, to.size()));
  for (std::size_t done = 0; done < to.size();) {
    const std::size_t count = std::min(halves.size(), to.size() - done);
    const std::span<kernels::Half> piece = std::span(halves).first(count);
    read_bytes(tensor, first + done * sizeof(kernels::Half), std::as_writable_bytes(piece));
    (type == Type::kF16 ? kernels::widen_fp16 : kernels::widen_bf16)(piece,
                                                                     to.subspan(done, count));
    done += count;
  }
}

struct Writer::Impl {
  Impl(fs::path final_path, FaultHook hook)
      : io(std::move(hook)), path(std::move(final_path)), tmp(fs::path(path).concat(".tmp")) {}
  ~Impl() {
    std::error_code ignored;
    if (!finished) fs::remove(tmp, ignored);
  }

  void start(const std::vector<Entry>& entries,
             const std::map<std::string, std::string>& metadata) {
    const std::string header = header_of(entries, metadata, data_bytes);
    const std::uint64_t length = header.size();
    file = io.open("create", tmp, O_WRONLY | O_CREAT | O_TRUNC);
    put(std::as_bytes(std::span(&length, 1)));
    put(std::as_bytes(std::span(header)));
    data_begin = offset;
  }

  void put(std::span<const std::byte> bytes) {
    bool direct = false;
    io.write("write", file.get(), bytes, offset, tmp, direct);
    offset += bytes.size();
  }

  Io io;
  fs::path path;
  fs::path tmp;
  FileDescriptor file;
  std::uint64_t data_bytes = 0;
  std::uint64_t data_begin = 0;
  std::uint64_t offset = 0;
  bool finished = false;
};

Writer::Writer(fs::path path, const std::vector<Entry>& entries,
               const std::map<std::string, std::string>& metadata, FaultHook hook)
    : impl_(new Impl(std::move(path), std::move(hook))) {
  impl_->start(entries, metadata);
}
Writer::~Writer() = default;

void Writer::write(std::span<const std::byte> bytes) {
  ensure(bytes.size() <= impl_->data_bytes - (impl_->offset - impl_->data_begin),
         "no more bytes are given than the entries have");
  impl_->put(bytes);
}

void Writer::finish() {
  ensure(impl_->offset - impl_->data_begin == impl_->data_bytes,
         "all bytes of the entries are given");
  impl_->io.sync("fsync", impl_->file.get(), impl_->tmp);
  impl_->io.rename("commit", impl_->tmp, impl_->path);
  impl_->finished = true;
  impl_->io.sync_folder("fsync-folder", fs::absolute(impl_->path).parent_path());
}

}  // namespace trireme::ckpt::safetensors
