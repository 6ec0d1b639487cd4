#include "ckpt/manifest.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/checksum.hpp"

#include "ckpt/io.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <utility>

namespace trireme::ckpt {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMostManifestBytes = std::uint64_t{1} << 31;
// The file ends with exactly this and eight hex digits, a quote, a brace and a line feed; the CRC
// is of all before it.
constexpr std::string_view kCrcKey = ",\n\"crc32c\": \"";

std::string crc_ending(std::string_view body) {
  return fmt::format("{}{:08x}\"}}\n", kCrcKey, kernels::crc32c(std::as_bytes(std::span(body))));
}

Json tensor_json(const TensorSpec& spec, std::uint64_t offset,
                 const std::vector<std::uint32_t>& crcs) {
  return {{"path", spec.path},   {"dtype", name_of(spec.dtype)},
          {"shape", spec.shape}, {"file", 0},
          {"offset", offset},    {"crc32c", crcs}};
}

// Takes the fields of a JSON text with the checks that a stranger's file needs.
class Fields {
 public:
  explicit Fields(const std::filesystem::path& path) : path_(path) {}

  void require(bool condition, std::string_view what) const {
    if (!condition) throw Error(ErrorKind::kCorrupt, fmt::format("{}: {}", path_.string(), what));
  }
  const Json& member(const Json& object, const char* key) const {
    require(object.is_object() && object.contains(key), fmt::format("no '{}'", key));
    return object[key];
  }
  std::int64_t number(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    require(value.is_number_unsigned() &&
                value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max(),
            fmt::format("'{}' is no count", key));
    return value.get<std::int64_t>();
  }
  std::uint64_t size(const Json& object, const char* key) const {
    return static_cast<std::uint64_t>(number(object, key));
  }
  std::string text(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    require(value.is_string(), fmt::format("'{}' is no text", key));
    return value.get<std::string>();
  }
  const Json& list(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    require(value.is_array(), fmt::format("'{}' is no list", key));
    return value;
  }
  std::vector<std::uint32_t> crcs(const Json& object, std::uint64_t bytes) const {
    const Json& values = list(object, "crc32c");
    require(values.size() == blocks_of(bytes),
            fmt::format("{} checksums for {} bytes", values.size(), bytes));
    std::vector<std::uint32_t> result;
    for (const Json& value : values) {
      require(value.is_number_unsigned() && value.get<std::uint64_t>() <= 0xffffffffU,
              "a checksum is no number");
      result.push_back(value.get<std::uint32_t>());
    }
    return result;
  }

 private:
  const std::filesystem::path& path_;
};

void take_version(const Json& json, const Fields& fields) {
  fields.require(fields.text(json, "format") == "trireme-checkpoint",
                 "it is no trireme checkpoint");
  const std::int64_t version = fields.number(json, "version");
  if (version > kFormatVersion) {
    throw Error(ErrorKind::kConfig,
                fmt::format("the checkpoint has format version {}, but this trireme knows only {}",
                            version, kFormatVersion),
                "read it with the version of trireme that wrote it, or a newer one");
  }
  fields.require(version == kFormatVersion, "it has an unknown version");
  fields.require(fields.size(json, "block_bytes") == kCrcBlock, "its blocks have an unknown size");
}

void take_file(const Json& json, const Fields& fields, Manifest& manifest) {
  const Json& files = fields.list(json, "files");
  fields.require(files.size() == 1, "it lists other than one file");
  fields.require(fields.text(files[0], "name") == kStateFile, "its file has another name");
  manifest.layout.file_bytes = fields.size(files[0], "bytes");
  const Json& head = fields.member(files[0], "head");
  manifest.layout.head_bytes = fields.size(head, "bytes");
  fields.require(manifest.layout.head_bytes <= manifest.layout.file_bytes,
                 "the head is longer than the file");
  manifest.head_crcs = fields.crcs(head, manifest.layout.head_bytes);
}

void take_tensor(const Json& json, const Fields& fields, Manifest& manifest) {
  TensorSpec spec;
  spec.path = fields.text(json, "path");
  fields.require(problem_with_path(spec.path).empty(), "a tensor's path is wrong");
  const auto dtype = dtype_named(fields.text(json, "dtype"));
  fields.require(dtype.has_value(), fmt::format("{} has an unknown type", spec.path));
  spec.dtype = *dtype;
  for (const Json& dim : fields.list(json, "shape")) {
    fields.require(dim.is_number_unsigned() && dim.get<std::uint64_t>() <= (std::uint64_t{1} << 62),
                   fmt::format("{} has an impossible shape", spec.path));
    spec.shape.push_back(dim.get<std::int64_t>());
  }
  const auto bytes = bytes_of(spec.dtype, spec.shape);
  const std::uint64_t offset = fields.size(json, "offset");
  fields.require(bytes.has_value(), fmt::format("{} has an impossible shape", spec.path));
  fields.require(fields.number(json, "file") == 0 && offset >= manifest.layout.head_bytes &&
                     offset <= manifest.layout.file_bytes &&
                     *bytes <= manifest.layout.file_bytes - offset,
                 fmt::format("{} does not lie within the file", spec.path));
  manifest.crcs.push_back(fields.crcs(json, *bytes));
  manifest.layout.offsets.push_back(offset);
  manifest.tensors.push_back(std::move(spec));
}

void take_text(const Json& json, const Fields& fields, Manifest& manifest) {
  TextPlace text{fields.text(json, "name"), fields.size(json, "offset"),
                 fields.size(json, "bytes")};
  const std::uint64_t head = manifest.layout.head_bytes;
  fields.require(
      fields.number(json, "file") == 0 && text.offset <= head && text.bytes <= head - text.offset,
      fmt::format("the text {} does not lie within the head", text.name));
  manifest.layout.texts.push_back(std::move(text));
  // Texts do not overlap, so that all of them together take no more memory than the file has bytes.
  std::uint64_t all = 0;
  for (const TextPlace& one : manifest.layout.texts) all += one.bytes;
  fields.require(all <= head, "the texts are longer than the head");
}

void check_distinct(const Fields& fields, const Manifest& manifest) {
  std::vector<std::string_view> paths;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const TensorSpec& spec = manifest.tensors[i];
    paths.push_back(spec.path);
    const std::uint64_t begin = manifest.layout.offsets[i];
    if (const std::uint64_t bytes = *bytes_of(spec.dtype, spec.shape); bytes > 0) {
      ranges.emplace_back(begin, begin + bytes);
    }
  }
  std::sort(paths.begin(), paths.end());
  fields.require(std::adjacent_find(paths.begin(), paths.end()) == paths.end(),
                 "a tensor is listed twice");
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    fields.require(ranges[i - 1].second <= ranges[i].first, "two tensors overlap");
  }
}

Json parse_checked(const std::string& text, const Fields& fields) {
  const std::size_t ending = kCrcKey.size() + 8 + 3;
  fields.require(text.size() > ending, "it is cut short");
  const std::string_view body = std::string_view(text).substr(0, text.size() - ending);
  fields.require(std::string_view(text).substr(body.size()) == crc_ending(body),
                 "its own checksum does not fit");
  Json json = Json::parse(text, nullptr, false);
  fields.require(json.is_object(), "it is no JSON object");
  return json;
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  Json texts = Json::array();
  for (const TextPlace& text : manifest.layout.texts) {
    texts.push_back(
        {{"name", text.name}, {"file", 0}, {"offset", text.offset}, {"bytes", text.bytes}});
  }
  const Json file = {
      {"name", kStateFile},
      {"bytes", manifest.layout.file_bytes},
      {"head", {{"bytes", manifest.layout.head_bytes}, {"crc32c", manifest.head_crcs}}}};
  const Json start = {{"format", "trireme-checkpoint"}, {"version", kFormatVersion},
                      {"step", manifest.step.value},    {"world_size", manifest.world_size},
                      {"block_bytes", kCrcBlock},       {"versions", manifest.versions},
                      {"files", Json::array({file})},   {"extra", texts}};
  std::string body = start.dump();
  body.pop_back();
  body += ",\n\"tensors\": [";
  // A tensor a line, for people with grep.
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    body += i == 0 ? "\n" : ",\n";
    body += tensor_json(manifest.tensors[i], manifest.layout.offsets[i], manifest.crcs[i]).dump();
  }
  body += "]";
  return body + crc_ending(body);
}

Manifest parse_manifest(const std::string& text, const std::filesystem::path& path) {
  const Fields fields(path);
  const Json json = parse_checked(text, fields);
  take_version(json, fields);
  Manifest manifest;
  manifest.step = Step(fields.number(json, "step"));
  manifest.world_size =
      static_cast<int>(std::min<std::int64_t>(fields.number(json, "world_size"), 1 << 30));
  for (const auto& [name, version] : fields.member(json, "versions").items()) {
    fields.require(version.is_string(), "a version is no text");
    manifest.versions[name] = version.get<std::string>();
  }
  take_file(json, fields, manifest);
  for (const Json& tensor : fields.list(json, "tensors")) take_tensor(tensor, fields, manifest);
  for (const Json& extra : fields.list(json, "extra")) take_text(extra, fields, manifest);
  check_distinct(fields, manifest);
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / kManifestFile;
  return parse_manifest(read_text(path, kMostManifestBytes), path);
}

}  // namespace trireme::ckpt
