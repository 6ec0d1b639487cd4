#include "trireme/config/foreign.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

#include "../tree.hpp"
#include "reading.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <system_error>

namespace trireme::config {

namespace {

using foreign::Document;

std::string read_whole(const std::filesystem::path& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error))
    throw Error(ErrorKind::kIo, file.string() + " is a folder, not a configuration file");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw_errno("open", file.string());
  std::string text(detail::kMaxTextBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) throw_errno("read", file.string());
  text.resize(static_cast<std::size_t>(stream.gcount()));
  return text;
}

std::string_view name_of(Severity severity) {
  constexpr std::array<std::string_view, 4> kNames{"error", "warning", "deprecated",
                                                   "not_applicable"};
  return kNames.at(static_cast<std::size_t>(severity));
}

std::string_view name_of(foreign::Use use) {
  constexpr std::array<std::string_view, 4> kNames{"honoured", "no effect", "dropped", "renamed"};
  return kNames.at(static_cast<std::size_t>(use));
}

struct Writer {
  std::string out;

  void operator()(std::monostate) { out += "null"; }
  void operator()(bool value) { out += value ? "true" : "false"; }
  void operator()(std::int64_t value) { out += fmt::format("{}", value); }
  void operator()(double value) { out += std::isfinite(value) ? fmt::format("{}", value) : "null"; }
  void operator()(const std::string& value) { out += json_quoted(value); }
  void operator()(const Value::List& list) {
    out += '[';
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0) out += ", ";
      std::visit(*this, list[i].data);
    }
    out += ']';
  }
  void operator()(const Value::Map& map) {
    out += '{';
    for (std::size_t i = 0; i < map.size(); ++i) {
      if (i > 0) out += ", ";
      out += json_quoted(map[i].first) + ": ";
      std::visit(*this, map[i].second.data);
    }
    out += '}';
  }
};

Value as_value(const Origin& origin) {
  Value out = Value::Map{};
  out.set("file", origin.file);
  if (!origin.standard.empty()) {
    out.set("default", origin.standard);
    return out;
  }
  out.set("key", origin.key);
  out.set("line", origin.line);
  if (origin.filled) out.set("auto", origin.filled->empty() ? Value() : Value(*origin.filled));
  return out;
}

Value as_value(const ForeignFinding& finding) {
  Value out = Value::Map{};
  out.set("severity", std::string(name_of(finding.severity)));
  out.set("path", finding.path.empty() ? Value() : Value(finding.path));
  out.set("file", finding.file);
  out.set("line", finding.line == 0 ? Value() : Value(finding.line));
  if (finding.column > 0) out.set("column", finding.column);
  out.set("why", finding.why);
  out.set("suggest", finding.suggest.empty() ? Value() : Value(finding.suggest));
  return out;
}

}  // namespace

std::string_view name_of(ForeignKind kind) {
  switch (kind) {
    case ForeignKind::kAccelerate:
      return "accelerate";
    case ForeignKind::kDeepSpeed:
      return "deepspeed";
    case ForeignKind::kTrainingArguments:
      return "training arguments";
  }
  return "";
}

const Value& Value::at(std::string_view key) const {
  static const Value kNothing;
  const auto* map = std::get_if<Map>(&data);
  if (map == nullptr) return kNothing;
  const auto found = std::ranges::find(*map, key, &Map::value_type::first);
  return found == map->end() ? kNothing : found->second;
}

void Value::set(std::string_view key, Value value) {
  if (null()) data = Map{};
  Map& map = std::get<Map>(data);
  const auto found = std::ranges::find(map, key, &Map::value_type::first);
  if (found != map.end()) {
    found->second = std::move(value);
  } else {
    map.emplace_back(key, std::move(value));
  }
}

std::optional<bool> Value::boolean() const {
  const auto* value = std::get_if<bool>(&data);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<std::int64_t> Value::integer() const {
  const auto* value = std::get_if<std::int64_t>(&data);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<double> Value::number() const {
  if (const auto whole = integer()) return static_cast<double>(*whole);
  const auto* value = std::get_if<double>(&data);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<std::string> Value::text() const {
  const auto* value = std::get_if<std::string>(&data);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

bool Value::is(std::string_view text) const {
  const auto* value = std::get_if<std::string>(&data);
  return value != nullptr && *value == text;
}

std::string Value::json() const {
  Writer writer;
  std::visit(writer, data);
  return std::move(writer.out);
}

std::string ForeignFinding::report() const {
  std::string text = file;
  if (line > 0) text += fmt::format(":{}", line);
  if (line > 0 && column > 0) text += fmt::format(":{}", column);
  if (!path.empty()) text += fmt::format(": {}", detail::shown(path));
  text += fmt::format(": {}", why);
  if (!suggest.empty()) text += fmt::format("; instead: {}", suggest);
  return text;
}

bool Foreign::accepted() const {
  return std::ranges::none_of(
      findings, [](const ForeignFinding& f) { return f.severity == Severity::kError; });
}

std::string Foreign::json() const {
  Value out = Value::Map{};
  out.set("file", file);
  out.set("kind", std::string(name_of(kind)));
  out.set("accept", accepted());
  if (const auto* parts = std::get_if<Value::Map>(&meaning.data))
    for (const auto& [name, value] : *parts) out.set(name, value);
  Value::List list;
  for (const ForeignFinding& finding : findings) list.push_back(as_value(finding));
  out.set("findings", std::move(list));
  Value places = Value::Map{};
  for (const auto& [name, origin] : origins) places.set(name, as_value(origin));
  out.set("origin", std::move(places));
  return out.json();
}

Foreign read_foreign_text(ForeignKind kind, std::string_view text,
                          const std::filesystem::path& name, const ForeignContext& context) {
  Foreign out;
  out.kind = kind;
  out.file = detail::shown(name.native());
  const Document document = foreign::read_document(text);
  switch (kind) {
    case ForeignKind::kAccelerate:
      foreign::interpret_accelerate(document, name, out);
      break;
    case ForeignKind::kDeepSpeed:
      foreign::interpret_deepspeed(document, context, out);
      break;
    case ForeignKind::kTrainingArguments:
      foreign::interpret_training(document, name, context, out);
      break;
  }
  return out;
}

Foreign read_foreign(ForeignKind kind, const std::filesystem::path& file,
                     const ForeignContext& context) {
  return read_foreign_text(kind, read_whole(file), file, context);
}

std::optional<ForeignKind> guess_foreign(std::string_view text) {
  const Document document = foreign::read_document(text);
  if (document.unreadable) return std::nullopt;
  std::optional<ForeignKind> best;
  std::size_t most = 0;
  for (const ForeignKind kind :
       {ForeignKind::kAccelerate, ForeignKind::kDeepSpeed, ForeignKind::kTrainingArguments}) {
    const auto known =
        std::ranges::count_if(document.root.entries, [&](const foreign::Node::Entry& entry) {
          return foreign::find_key(foreign::keys_of(kind), entry.key) != nullptr;
        });
    if (static_cast<std::size_t>(known) <= most) continue;
    most = static_cast<std::size_t>(known);
    best = kind;
  }
  return most * 2 > document.root.entries.size() ? best : std::nullopt;
}

std::vector<ForeignKey> foreign_keys(ForeignKind kind) {
  std::vector<ForeignKey> out;
  for (const foreign::Key& key : foreign::keys_of(kind))
    out.push_back({std::string(key.path), std::string(name_of(key.use)), std::string(key.note)});
  return out;
}

namespace foreign {

std::span<const Key> keys_of(ForeignKind kind) {
  switch (kind) {
    case ForeignKind::kAccelerate:
      return accelerate_keys();
    case ForeignKind::kDeepSpeed:
      return deepspeed_keys();
    case ForeignKind::kTrainingArguments:
      return training_keys();
  }
  return {};
}

const Key* find_key(std::span<const Key> keys, std::string_view path) {
  const auto found = std::ranges::find(keys, path, &Key::path);
  return found == keys.end() ? nullptr : &*found;
}

std::optional<Foreign> read_named(const Hit& key, const std::filesystem::path& file,
                                  const ForeignContext& context, Reading& reading) {
  const std::string name = *key.value.text();
  std::error_code error;
  for (const std::filesystem::path& candidate :
       {file.parent_path() / name, std::filesystem::path(name)}) {
    if (!std::filesystem::is_regular_file(candidate, error)) continue;
    Foreign out = read_foreign(ForeignKind::kDeepSpeed, candidate, context);
    for (auto& [part, origin] : out.origins) origin.file = name;
    return out;
  }
  reading.error(key,
                fmt::format("no such file, neither beside {} nor in the working folder",
                            detail::shown(file.native())),
                "the path of a DeepSpeed file");
  return std::nullopt;
}

}  // namespace foreign

}  // namespace trireme::config
