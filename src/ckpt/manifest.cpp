#include "ckpt/manifest.hpp"

#include "trireme/base/error.hpp"
#include "trireme/kernels/checksum.hpp"

#include "ckpt/io.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <tuple>
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

Json spec_json(const TensorSpec& spec) {
  return {{"path", spec.path}, {"dtype", name_of(spec.dtype)}, {"shape", spec.shape}};
}

Json tensor_json(const TensorSpec& spec, std::uint64_t offset,
                 const std::vector<std::uint32_t>& crcs) {
  Json json = spec_json(spec);
  json.update({{"file", 0}, {"offset", offset}, {"crc32c", crcs}});
  return json;
}

Json name_and_head(const StateFile& file) {
  return {{"name", file.name},
          {"bytes", file.layout.file_bytes},
          {"head", {{"bytes", file.layout.head_bytes}, {"crc32c", file.head_crcs}}}};
}

Json texts_json(const StateFile& file) {
  Json texts = Json::array();
  for (const TextPlace& text : file.layout.texts)
    texts.push_back(
        {{"name", text.name}, {"file", 0}, {"offset", text.offset}, {"bytes", text.bytes}});
  return texts;
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

void take_version(const Json& json, const Fields& fields, Manifest& manifest) {
  fields.require(fields.text(json, "format") == "trireme-checkpoint",
                 "it is no trireme checkpoint");
  const std::int64_t version = fields.number(json, "version");
  if (version > kNodeFormatVersion) {
    throw Error(ErrorKind::kConfig,
                fmt::format("the checkpoint has format version {}, but this trireme knows only {}",
                            version, kNodeFormatVersion),
                "read it with the version of trireme that wrote it, or a newer one");
  }
  fields.require(version >= kFormatVersion, "it has an unknown version");
  manifest.version = static_cast<int>(version);
  fields.require(fields.size(json, "block_bytes") == kCrcBlock, "its blocks have an unknown size");
}

void take_head(const Json& json, const Fields& fields, StateFile& file) {
  file.name = fields.text(json, "name");
  fields.require(std::filesystem::path(file.name).filename() == file.name && !file.name.empty() &&
                     file.name != "." && file.name != "..",
                 "a file's name is a path");
  file.layout.file_bytes = fields.size(json, "bytes");
  const Json& head = fields.member(json, "head");
  file.layout.head_bytes = fields.size(head, "bytes");
  fields.require(file.layout.head_bytes <= file.layout.file_bytes,
                 "the head is longer than the file");
  file.head_crcs = fields.crcs(head, file.layout.head_bytes);
}

TensorSpec take_spec(const Json& json, const Fields& fields) {
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
  fields.require(bytes_of(spec.dtype, spec.shape).has_value(),
                 fmt::format("{} has an impossible shape", spec.path));
  return spec;
}

void take_tensor(const Json& json, const Fields& fields, StateFile& file) {
  TensorSpec spec = take_spec(json, fields);
  const std::uint64_t bytes = *bytes_of(spec.dtype, spec.shape);
  const std::uint64_t offset = fields.size(json, "offset");
  fields.require(fields.number(json, "file") == 0 && offset >= file.layout.head_bytes &&
                     offset <= file.layout.file_bytes && bytes <= file.layout.file_bytes - offset,
                 fmt::format("{} does not lie within the file", spec.path));
  file.crcs.push_back(fields.crcs(json, bytes));
  file.layout.offsets.push_back(offset);
  file.tensors.push_back(std::move(spec));
}

void take_text(const Json& json, const Fields& fields, StateFile& file) {
  TextPlace text{fields.text(json, "name"), fields.size(json, "offset"),
                 fields.size(json, "bytes")};
  const std::uint64_t head = file.layout.head_bytes;
  fields.require(
      fields.number(json, "file") == 0 && text.offset <= head && text.bytes <= head - text.offset,
      fmt::format("the text {} does not lie within the head", text.name));
  file.layout.texts.push_back(std::move(text));
  // Texts do not overlap, so that all of them together take no more memory than the file has bytes.
  std::uint64_t all = 0;
  for (const TextPlace& one : file.layout.texts) all += one.bytes;
  fields.require(all <= head, "the texts are longer than the head");
}

void check_distinct(const std::vector<TensorSpec>& tensors, const Fields& fields) {
  std::vector<std::string_view> paths;
  for (const TensorSpec& spec : tensors) paths.push_back(spec.path);
  std::sort(paths.begin(), paths.end());
  fields.require(std::adjacent_find(paths.begin(), paths.end()) == paths.end(),
                 "a tensor is listed twice");
}

void check_places(const StateFile& file, const Fields& fields) {
  check_distinct(file.tensors, fields);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (std::size_t i = 0; i < file.tensors.size(); ++i) {
    const TensorSpec& spec = file.tensors[i];
    const std::uint64_t begin = file.layout.offsets[i];
    if (const std::uint64_t bytes = *bytes_of(spec.dtype, spec.shape); bytes > 0)
      ranges.emplace_back(begin, begin + bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    fields.require(ranges[i - 1].second <= ranges[i].first, "two tensors overlap");
  }
}

std::int64_t elements_of(const TensorSpec& spec) {
  return static_cast<std::int64_t>(*bytes_of(spec.dtype, spec.shape) / element_bytes(spec.dtype));
}

// Format 1: state.h5, whose datasets are the tensors.
void take_only_file(const Json& json, const Fields& fields, Manifest& manifest) {
  const Json& files = fields.list(json, "files");
  fields.require(files.size() == 1, "it lists other than one file");
  fields.require(fields.text(files[0], "name") == kStateFile, "its file has another name");
  StateFile file;
  take_head(files[0], fields, file);
  for (const Json& tensor : fields.list(json, "tensors")) take_tensor(tensor, fields, file);
  for (const Json& extra : fields.list(json, "extra")) take_text(extra, fields, file);
  check_places(file, fields);
  manifest.tensors = file.tensors;
  manifest.parts = whole_parts(file.tensors);
  manifest.files.push_back(std::move(file));
}

// Format 2: a file with its own datasets and texts, each dataset a part of a tensor.
void take_node_file(const Json& json, const Fields& fields, Manifest& manifest) {
  StateFile file;
  take_head(json, fields, file);
  for (const Json& extra : fields.list(json, "extra")) take_text(extra, fields, file);
  for (const Json& dataset : fields.list(json, "datasets")) {
    take_tensor(dataset, fields, file);
    const TensorSpec& spec = file.tensors.back();
    const Part part{fields.size(dataset, "tensor"), fields.number(dataset, "begin"),
                    elements_of(spec), manifest.files.size(), file.tensors.size() - 1};
    fields.require(part.tensor < manifest.tensors.size(),
                   fmt::format("{} is part of no tensor", spec.path));
    const TensorSpec& whole = manifest.tensors[part.tensor];
    fields.require(whole.dtype == spec.dtype && part.begin <= elements_of(whole) - part.count,
                   fmt::format("{} is no part of {}", spec.path, whole.path));
    manifest.parts.push_back(part);
  }
  check_places(file, fields);
  for (const StateFile& other : manifest.files)
    fields.require(other.name != file.name, "a file is listed twice");
  manifest.files.push_back(std::move(file));
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

std::vector<Part> whole_parts(const std::vector<TensorSpec>& tensors) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (const std::int64_t count = elements_of(tensors[i]); count > 0)
      parts.push_back({i, 0, count, 0, i});
  }
  return parts;
}

std::string file_to_json(const StateFile& file, const std::vector<Part>& parts) {
  Json json = name_and_head(file);
  json["extra"] = texts_json(file);
  Json datasets = Json::array();
  for (const Part& part : parts) {
    Json dataset = tensor_json(file.tensors[part.stored], file.layout.offsets[part.stored],
                               file.crcs[part.stored]);
    dataset.update({{"tensor", part.tensor}, {"begin", part.begin}});
    datasets.push_back(std::move(dataset));
  }
  json["datasets"] = std::move(datasets);
  return json.dump();
}

void add_file(const std::string& text, Manifest& manifest) {
  const std::filesystem::path name("a node's part of the manifest");
  const Fields fields(name);
  const Json json = Json::parse(text, nullptr, false);
  fields.require(json.is_object(), "it is no JSON object");
  take_node_file(json, fields, manifest);
}

void check_parts(Manifest& manifest, const std::filesystem::path& path) {
  const Fields fields(path);
  std::sort(manifest.parts.begin(), manifest.parts.end(), [](const Part& a, const Part& b) {
    return std::tie(a.tensor, a.begin) < std::tie(b.tensor, b.begin);
  });
  auto part = manifest.parts.begin();
  for (std::size_t tensor = 0; tensor < manifest.tensors.size(); ++tensor) {
    std::int64_t at = 0;
    for (; part != manifest.parts.end() && part->tensor == tensor; ++part) {
      fields.require(
          part->begin == at,
          fmt::format("{} from element {} on is stored {}", manifest.tensors[tensor].path,
                      std::min(at, part->begin), part->begin < at ? "twice" : "nowhere"));
      at += part->count;
    }
    fields.require(
        at == elements_of(manifest.tensors[tensor]),
        fmt::format("{} from element {} on is stored nowhere", manifest.tensors[tensor].path, at));
  }
}

std::string to_json(const Manifest& manifest) {
  Json start = {{"format", "trireme-checkpoint"}, {"version", manifest.version},
                {"step", manifest.step.value},    {"world_size", manifest.world_size},
                {"block_bytes", kCrcBlock},       {"versions", manifest.versions}};
  if (!manifest.by_node()) {
    start["files"] = Json::array({name_and_head(manifest.files[0])});
    start["extra"] = texts_json(manifest.files[0]);
  }
  std::string body = start.dump();
  body.pop_back();
  // A file or a tensor a line, for people with grep.
  const auto add_list = [&](const char* name, std::size_t count, const auto& line) {
    body += fmt::format(",\n\"{}\": [", name);
    for (std::size_t i = 0; i < count; ++i) body += (i == 0 ? "\n" : ",\n") + line(i);
    body += "]";
  };
  if (manifest.by_node()) {
    add_list("files", manifest.files.size(), [&](std::size_t i) {
      std::vector<Part> parts;
      for (const Part& part : manifest.parts) {
        if (part.file == i) parts.push_back(part);
      }
      std::sort(parts.begin(), parts.end(),
                [](const Part& a, const Part& b) { return a.stored < b.stored; });
      return file_to_json(manifest.files[i], parts);
    });
  }
  add_list("tensors", manifest.tensors.size(), [&](std::size_t i) {
    if (manifest.by_node()) return spec_json(manifest.tensors[i]).dump();
    const StateFile& file = manifest.files[0];
    return tensor_json(file.tensors[i], file.layout.offsets[i], file.crcs[i]).dump();
  });
  return body + crc_ending(body);
}

Manifest parse_manifest(const std::string& text, const std::filesystem::path& path) {
  const Fields fields(path);
  const Json json = parse_checked(text, fields);
  Manifest manifest;
  take_version(json, fields, manifest);
  manifest.step = Step(fields.number(json, "step"));
  manifest.world_size =
      static_cast<int>(std::min<std::int64_t>(fields.number(json, "world_size"), 1 << 30));
  for (const auto& [name, version] : fields.member(json, "versions").items()) {
    fields.require(version.is_string(), "a version is no text");
    manifest.versions[name] = version.get<std::string>();
  }
  if (!manifest.by_node()) {
    take_only_file(json, fields, manifest);
    return manifest;
  }
  for (const Json& tensor : fields.list(json, "tensors"))
    manifest.tensors.push_back(take_spec(tensor, fields));
  check_distinct(manifest.tensors, fields);
  const Json& files = fields.list(json, "files");
  fields.require(!files.empty(), "it lists no file");
  for (const Json& file : files) take_node_file(file, fields, manifest);
  check_parts(manifest, path);
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  const std::filesystem::path path = checkpoint / kManifestFile;
  return parse_manifest(read_text(path, kMostManifestBytes), path);
}

}  // namespace trireme::ckpt
