#include "ckpt/safetensors_header.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <utility>

namespace trireme::ckpt::safetensors {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct TypeRow {
  Type type;
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<TypeRow, 15> kTypes{{{Type::kBool, "BOOL", 1},
                                          {Type::kU8, "U8", 1},
                                          {Type::kI8, "I8", 1},
                                          {Type::kF8E5M2, "F8_E5M2", 1},
                                          {Type::kF8E4M3, "F8_E4M3", 1},
                                          {Type::kU16, "U16", 2},
                                          {Type::kI16, "I16", 2},
                                          {Type::kF16, "F16", 2},
                                          {Type::kBF16, "BF16", 2},
                                          {Type::kU32, "U32", 4},
                                          {Type::kI32, "I32", 4},
                                          {Type::kF32, "F32", 4},
                                          {Type::kU64, "U64", 8},
                                          {Type::kI64, "I64", 8},
                                          {Type::kF64, "F64", 8}}};

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;
constexpr std::size_t kMostDims = 32;

[[noreturn]] void corrupt(const fs::path& path, const std::string& what) {
  throw Error(ErrorKind::kCorrupt, fmt::format("{}: {}", path.string(), what),
              "the file is damaged or was not downloaded completely; fetch it again");
}

// Returns the number of bytes, or nothing when it does not fit in 62 bits.
std::optional<std::uint64_t> bytes_of(Type type, const std::vector<std::int64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::uint64_t bytes = element_bytes(type);
  for (const std::int64_t dim : shape) {
    if (dim < 0 || static_cast<std::uint64_t>(dim) > kMostBytes / bytes) return std::nullopt;
    bytes *= static_cast<std::uint64_t>(dim);
  }
  return bytes;
}

// Takes the header as its parts come by and refuses the first that has no place in one; so neither
// depth nor length of a hostile text costs more than the text itself.
class Parser final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Parser(const fs::path& path) : path_(path) {}
  Header take() { return std::move(header_); }

  bool start_object(std::size_t) override {
    if (depth_ == 2 || in_list_) fail("holds an object within an object");
    ++depth_;
    if (depth_ == 2) entry_ = {};
    return true;
  }
  bool key(std::string& text) override {
    if (depth_ == 1) {
      name_ = text;
      if (!names_.insert(text).second) fail("is listed twice");
      return true;
    }
    field_ = text;
    if (in_metadata()) {
      if (header_.metadata.contains(text)) fail("has a key twice");
      return true;
    }
    if (text != "dtype" && text != "shape" && text != "data_offsets")
      fail(fmt::format("has an unknown field '{}'", text));
    if (!entry_.fields.insert(text).second) fail(fmt::format("has '{}' twice", text));
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 1 && name_ != kMetadata) finish_entry();
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_list_ || (field_ != "shape" && field_ != "data_offsets"))
      fail("has a list in a wrong place");
    in_list_ = true;
    return true;
  }
  bool end_array() override {
    in_list_ = false;
    return true;
  }
  bool string(std::string& text) override {
    if (in_metadata() && !in_list_) {
      header_.metadata[field_] = text;
      return true;
    }
    if (depth_ != 2 || in_list_ || field_ != "dtype") fail("has a text in a wrong place");
    const auto type = type_named(text);
    if (!type) fail(fmt::format("has the unknown type '{}'", text));
    entry_.type = *type;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_list_) fail("has a number in a wrong place");
    auto& list = field_ == "shape" ? entry_.shape : entry_.offsets;
    if (list.size() == kMostDims) fail(fmt::format("has more than {} dimensions", kMostDims));
    list.push_back(value);
    return true;
  }
  bool number_integer(number_integer_t value) override {
    fail(fmt::format("has the negative number {}", value));
  }
  bool number_float(number_float_t, const std::string& text) override {
    fail(fmt::format("has {} where a whole number of 64 bits belongs", text));
  }
  bool null() override { fail("has 'null' in a wrong place"); }
  bool boolean(bool) override { fail("has a truth value in a wrong place"); }
  bool binary(nlohmann::json::binary_t&) override { fail("has binary data"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& exception) override {
    // The library's text starts with its own name for the error, in brackets.
    const std::string text = exception.what();
    corrupt(path_, fmt::format("its header is no JSON at byte {}: {}", kLengthBytes - 1 + position,
                               text.substr(std::min(text.find("] ") + 2, text.size()))));
  }

 private:
  struct PartialEntry {
    std::set<std::string> fields;
    Type type = Type::kF32;
    std::vector<std::uint64_t> shape;
    std::vector<std::uint64_t> offsets;
  };

  [[noreturn]] void fail(const std::string& what) const {
    corrupt(path_, depth_ == 0 ? "its header is no JSON object"
                               : fmt::format("tensor '{}' {}", name_, what));
  }
  bool in_metadata() const { return depth_ == 2 && name_ == kMetadata; }

  void finish_entry() {
    if (entry_.fields.size() != 3) fail("lacks dtype, shape or data_offsets");
    if (entry_.offsets.size() != 2 || entry_.offsets[0] > entry_.offsets[1])
      fail("has data_offsets that are no range");
    Tensor tensor;
    tensor.name = name_;
    tensor.type = entry_.type;
    for (const std::uint64_t dim : entry_.shape) {
      if (dim > kMostBytes) fail("has an impossible shape");
      tensor.shape.push_back(static_cast<std::int64_t>(dim));
    }
    tensor.offset = entry_.offsets[0];
    tensor.bytes = entry_.offsets[1] - entry_.offsets[0];
    const auto needed = bytes_of(tensor.type, tensor.shape);
    if (!needed) fail("has an impossible shape");
    if (*needed != tensor.bytes) {
      fail(fmt::format("of type {} and shape [{}] needs {} bytes, but has {} ({} to {})",
                       safetensors::name_of(tensor.type), fmt::join(tensor.shape, ","), *needed,
                       tensor.bytes, entry_.offsets[0], entry_.offsets[1]));
    }
    header_.tensors.push_back(std::move(tensor));
  }

  const fs::path& path_;
  Header header_;
  std::set<std::string> names_;
  int depth_ = 0;
  bool in_list_ = false;
  std::string name_;
  std::string field_;
  PartialEntry entry_;
};

}  // namespace

std::uint64_t element_bytes(Type type) {
  return std::find_if(kTypes.begin(), kTypes.end(),
                      [&](const TypeRow& row) { return row.type == type; })
      ->bytes;
}

std::string_view name_of(Type type) {
  return std::find_if(kTypes.begin(), kTypes.end(),
                      [&](const TypeRow& row) { return row.type == type; })
      ->name;
}

std::optional<Type> type_named(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

Header parse_header(std::string_view text, const fs::path& path) {
  Parser parser(path);
  nlohmann::json::sax_parse(text.begin(), text.end(), &parser);
  return parser.take();
}

void place(std::vector<Tensor>& tensors, std::uint64_t data_begin, std::uint64_t file_bytes,
           const fs::path& path) {
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  const std::uint64_t data_bytes = file_bytes - data_begin;
  std::uint64_t end = 0;
  const std::string* before = nullptr;
  for (Tensor& tensor : tensors) {
    const std::uint64_t at = data_begin + end;
    if (tensor.offset < end)
      corrupt(path, fmt::format("tensors '{}' and '{}' overlap at byte {}", *before, tensor.name,
                                data_begin + tensor.offset));
    // Before any sum: a hostile offset may be near 2^64.
    if (tensor.offset > data_bytes || tensor.bytes > data_bytes - tensor.offset)
      corrupt(path,
              fmt::format("tensor '{}' (data_offsets {} to {}) ends behind the file, which "
                          "has {} bytes",
                          tensor.name, tensor.offset, tensor.offset + tensor.bytes, file_bytes));
    if (tensor.offset > end)
      corrupt(path, fmt::format("{} bytes at byte {}, before tensor '{}', belong to no tensor",
                                tensor.offset - end, at, tensor.name));
    end += tensor.bytes;
    tensor.offset = at;
    before = &tensor.name;
  }
  if (end != data_bytes)
    corrupt(path, fmt::format("{} bytes at byte {}, behind the last tensor, belong to no tensor",
                              data_bytes - end, data_begin + end));
}

std::string header_of(const std::vector<Entry>& entries,
                      const std::map<std::string, std::string>& metadata,
                      std::uint64_t& data_bytes) {
  // Put together by hand: an object of the library would look through all names for each new one.
  std::string text = "{";
  std::set<std::string_view> names;
  if (!metadata.empty())
    text += fmt::format("{}:{}", Json(kMetadata).dump(), Json(metadata).dump());
  data_bytes = 0;
  for (const Entry& entry : entries) {
    const auto bytes = bytes_of(entry.type, entry.shape);
    ensure(bytes.has_value(), fmt::format("{} has a possible shape", entry.name));
    ensure(entry.name != kMetadata && names.insert(entry.name).second,
           fmt::format("one tensor is called {}", entry.name));
    const Json json = {{"dtype", safetensors::name_of(entry.type)},
                       {"shape", entry.shape},
                       {"data_offsets", {data_bytes, data_bytes + *bytes}}};
    text +=
        fmt::format("{}{}:{}", text.size() == 1 ? "" : ",", Json(entry.name).dump(), json.dump());
    data_bytes += *bytes;
  }
  text += "}";
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  return text;
}

}  // namespace trireme::ckpt::safetensors
