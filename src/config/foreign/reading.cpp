#include "reading.hpp"

#include "trireme/base/text.hpp"

#include "../tree.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

namespace trireme::config::foreign {

namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

std::vector<std::string> choices_of(std::string_view choices) {
  std::vector<std::string> out;
  while (!choices.empty()) {
    const auto bar = std::min(choices.find('|'), choices.size());
    out.emplace_back(choices.substr(0, bar));
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
  return out;
}

std::string listed(std::string_view choices) {
  std::string out;
  for (const std::string& choice : choices_of(choices))
    out += fmt::format("{}{}", out.empty() ? "" : ", ", choice);
  return out;
}

// Words that YAML 1.1 takes for booleans and YAML 1.2 does not.
std::optional<bool> old_boolean(std::string_view text) {
  const std::string word = lower(text);
  if (word == "yes" || word == "on" || word == "y") return true;
  if (word == "no" || word == "off" || word == "n") return false;
  return std::nullopt;
}

std::optional<double> as_number(std::string text) {
  std::erase(text, '_');
  if (text.starts_with("+")) text.erase(0, 1);
  double value = 0;
  const char* const end = text.data() + text.size();
  if (const auto [stop, error] = std::from_chars(text.data(), end, value);
      error == std::errc{} && stop == end)
    return value;
  std::int64_t whole = 0;
  if (!text.starts_with("0x")) return std::nullopt;
  const auto [stop, error] = std::from_chars(text.data() + 2, end, whole, 16);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return static_cast<double>(whole);
}

// Whether YAML 1.1 takes a number with an exponent for a text: it wants a point and a sign.
bool text_in_old_yaml(std::string_view text) {
  const auto exponent = text.find_first_of("eE");
  if (exponent == std::string_view::npos || text.starts_with("0x")) return false;
  const bool point = text.substr(0, exponent).find('.') != std::string_view::npos;
  const bool sign =
      exponent + 1 < text.size() && (text[exponent + 1] == '+' || text[exponent + 1] == '-');
  return !point || !sign;
}

std::string plain_number(double value) {
  const bool whole = value == std::floor(value) && std::abs(value) < 1e15;
  if (whole) return fmt::format("{:.0f}", value);
  std::string text = fmt::format("{}", value);
  const auto exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos)
    text.insert(exponent, ".0");
  return text;
}

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('.') + 1); }

// A number as JSON and YAML have it: whole or not.
Value numeric(const std::string& text, double value) {
  const bool fraction = text.find_first_of(".eE") != std::string::npos;
  if (!fraction && std::abs(value) < 9e18) return static_cast<std::int64_t>(value);
  return value;
}

}  // namespace

Value::List split_words(std::string_view text, std::string_view separators) {
  Value::List out;
  while (!text.empty()) {
    const auto end = std::min(text.find_first_of(separators), text.size());
    std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    if (!word.empty()) out.emplace_back(std::string(word));
  }
  return out;
}

std::string choice_of(std::string_view choices, std::string_view word) {
  for (const std::string& choice : choices_of(choices))
    if (lower(choice) == lower(word)) return choice;
  return {};
}

std::string nearest_choice(std::string_view choices, std::string_view word) {
  const auto all = choices_of(choices);
  if (const auto near = nearest(word.substr(0, 100), all)) return *near;
  return "one of " + listed(choices);
}

Reading::Reading(const Document& document, std::span<const Key> keys,
                 std::span<const Prefix> prefixes, Foreign& out)
    : document_(document), keys_(keys), prefixes_(prefixes), out_(out) {
  for (const DocumentProblem& problem : document.problems) {
    out_.findings.push_back({Severity::kError,
                             problem.path,
                             out_.file,
                             problem.line,
                             problem.column,
                             problem.why,
                             problem.suggest,
                             {}});
    // Its value is damaged: known to be there, not used.
    if (!problem.path.empty()) lines_.emplace(problem.path, problem.line);
  }
  unreadable_ = document.unreadable;
  if (!unreadable_) walk_group(document.root, "", "");
}

const Hit* Reading::hit(std::string_view path) const {
  asked_.emplace(path);
  const auto found = hits_.find(path);
  return found == hits_.end() ? nullptr : &found->second;
}

std::vector<std::pair<std::string, const Hit*>> Reading::below(std::string_view group) const {
  std::vector<std::pair<std::string, const Hit*>> out;
  for (const auto& [path, hit] : hits_) {
    if (!path.starts_with(group) || path.size() <= group.size() || path[group.size()] != '.')
      continue;
    asked_.insert(path);
    out.emplace_back(path.substr(group.size() + 1), &hit);
  }
  return out;
}

void Reading::finish() {
  for (const auto& [path, hit] : hits_) {
    const Key& key = *find_key(keys_, path);
    if (key.use != Use::kUsed || key.type == Type::kGroup || asked_.contains(path)) continue;
    idle(hit, "not applied: there is no counterpart here");
  }
}

const Hit* Reading::hit(std::initializer_list<std::string_view> paths) const {
  for (const std::string_view path : paths)
    if (const Hit* found = hit(path)) return found;
  return nullptr;
}

int Reading::line(std::string_view path) const {
  const auto found = lines_.find(path);
  return found == lines_.end() ? 0 : found->second;
}

void Reading::add(Severity severity, const Hit& hit, std::string why, std::string suggest) {
  out_.findings.push_back({severity,
                           hit.path,
                           out_.file,
                           hit.line,
                           hit.column,
                           std::move(why),
                           std::move(suggest),
                           {}});
}

void Reading::error(const Hit& hit, std::string why, std::string suggest) {
  add(Severity::kError, hit, std::move(why), std::move(suggest));
}

void Reading::error(std::string path, int line, std::string why, std::string suggest) {
  error(Hit{{}, std::move(path), line, 0}, std::move(why), std::move(suggest));
}

void Reading::warn(std::string path, int line, std::string why, std::string suggest) {
  add(Severity::kWarning, Hit{{}, std::move(path), line, 0}, std::move(why), std::move(suggest));
}

void Reading::deprecate(const Hit& hit, std::string why, std::string suggest) {
  add(Severity::kDeprecated, hit, std::move(why), std::move(suggest));
}

void Reading::idle(const Hit& hit, std::string why) {
  add(Severity::kNotApplicable, hit, std::move(why), {});
  out_.findings.back().value = hit.value;
}

Origin Reading::origin_of(const Hit& hit) const {
  return {out_.file, hit.path, hit.line, {}, std::nullopt};
}

void Reading::mean(std::string_view name, Value value, const Hit& origin) {
  mean(name, std::move(value), origin_of(origin));
}

void Reading::mean(std::string_view name, Value value, std::string_view standard) {
  mean(name, std::move(value), Origin{out_.file, {}, 0, std::string(standard), std::nullopt});
}

void Reading::mean(std::string_view name, Value value, Origin origin) {
  const auto dot = name.find('.');
  if (dot == std::string_view::npos) {
    out_.meaning.set(name, std::move(value));
  } else {
    Value group = out_.meaning.at(name.substr(0, dot));
    group.set(name.substr(dot + 1), std::move(value));
    out_.meaning.set(name.substr(0, dot), std::move(group));
  }
  out_.origins[std::string(name)] = std::move(origin);
}

void Reading::walk_group(const Node& group, const std::string& written, const std::string& path) {
  std::map<std::string_view, const Node::Entry*> seen;
  for (const Node::Entry& entry : group.entries) {
    const std::string full = written.empty() ? entry.key : written + "." + entry.key;
    const auto [first, is_new] = seen.emplace(entry.key, &entry);
    if (is_new) {
      walk_entry(entry, full, path);
      continue;
    }
    error(Hit{{}, full, entry.line, entry.column},
          fmt::format("already given on line {}", first->second->line), "keep one");
    std::erase_if(hits_, [&](const auto& known) { return known.second.path == full; });
  }
}

// The table's path of a key, which may stand with or without the prefix of its section.
std::string Reading::canonical(const std::string& section, const std::string& key,
                               const std::string& written, const Node::Entry& entry) {
  const std::string path = section.empty() ? key : section + "." + key;
  if (find_key(keys_, path) != nullptr) return path;
  for (const Prefix& rule : prefixes_) {
    if (rule.section != section) continue;
    if (rule.in_table) {
      std::string longer = fmt::format("{}.{}{}", section, rule.prefix, key);
      if (find_key(keys_, longer) != nullptr) return longer;
    } else if (key.starts_with(rule.prefix)) {
      std::string shorter = fmt::format("{}.{}", section, key.substr(rule.prefix.size()));
      if (find_key(keys_, shorter) == nullptr) continue;
      deprecate(Hit{{}, written, entry.line, entry.column}, "the name without the prefix is enough",
                shorter);
      return shorter;
    }
  }
  return path;
}

void Reading::walk_entry(const Node::Entry& entry, const std::string& written,
                         const std::string& path) {
  const std::string full = canonical(path, entry.key, written, entry);
  const Key* const key = find_key(keys_, full);
  if (key == nullptr) {
    unknown(entry, written, path);
    return;
  }
  if (lines_.contains(full)) return;  // damaged, and reported
  lines_[full] = entry.line;
  const Hit place{{}, written, entry.line, entry.column};
  const bool empty = entry.value.kind == Node::Kind::kNull ||
                     (entry.value.kind == Node::Kind::kMap && entry.value.entries.empty());
  if (key->use == Use::kDropped || key->use == Use::kRenamed) {
    const std::string_view note = key->note;
    deprecate(place, key->use == Use::kRenamed ? "an old name" : std::string(note),
              key->use == Use::kRenamed ? std::string(note) : "");
    if (key->use == Use::kDropped) return;
  } else if (key->use == Use::kIdle && !empty) {
    idle({as_it_stands(entry.value, place, false), written, entry.line, entry.column},
         std::string(key->note));
  }
  if (entry.value.kind == Node::Kind::kNull) return;
  if (key->type != Type::kGroup) {
    take(*key, entry, written);
  } else if (entry.value.kind == Node::Kind::kMap) {
    hits_[full] = {as_it_stands(entry.value, place, false), written, entry.line, entry.column};
    walk_group(entry.value, written, full);
  } else {
    error(place, "a group of keys is expected", "");
  }
}

void Reading::unknown(const Node::Entry& entry, const std::string& written,
                      const std::string& section) {
  std::vector<std::string> siblings;
  std::string elsewhere;
  const std::string start = section.empty() ? "" : section + ".";
  for (const Key& key : keys_) {
    const bool below = key.path.starts_with(start) &&
                       key.path.substr(start.size()).find('.') == std::string_view::npos;
    if (below) {
      siblings.emplace_back(key.path.substr(start.size()));
    } else if (last_part(key.path) == entry.key) {
      elsewhere = key.path;
    }
  }
  std::string suggest;
  if (!elsewhere.empty() && elsewhere == entry.key) {
    suggest = entry.key + " at the top of the file";
  } else if (const auto near = nearest(std::string_view(entry.key).substr(0, 100), siblings)) {
    suggest = *near;
  } else if (!elsewhere.empty()) {
    suggest = elsewhere;
  } else if (out_.kind == ForeignKind::kTrainingArguments && section.empty()) {
    suggest = "belongs to the model or data arguments of a script";
  } else {
    suggest = "remove it";
  }
  error(Hit{{}, written, entry.line, entry.column}, "unknown key", suggest);
}

void Reading::take(const Key& key, const Node::Entry& entry, const std::string& written) {
  if (auto value = typed(key, entry, written))
    hits_[std::string(key.path)] = {std::move(*value), written, entry.line, entry.column};
}

std::optional<Value> Reading::typed(const Key& key, const Node::Entry& entry,
                                    const std::string& written) {
  const Node& node = entry.value;
  const Hit place{{}, written, entry.line, entry.column};
  if (key.type == Type::kAny) return as_it_stands(node, place, true);
  if (key.type == Type::kTexts) return texts(node, place);
  if (node.kind != Node::Kind::kScalar) {
    error(place, "one value is expected, not a list or a group", "");
    return std::nullopt;
  }
  if (key.automatic && node.scalar == "auto") return Value("auto");
  switch (key.type) {
    case Type::kBool:
      return boolean(key, node, place);
    case Type::kInt:
    case Type::kNumber:
      return number(key, node, place);
    default:
      return word(key, node, place);
  }
}

std::optional<Value> Reading::boolean(const Key& /*key*/, const Node& node, const Hit& place) {
  const std::string text = lower(node.scalar);
  const bool known = text == "true" || text == "false";
  if (node.quoted && document_.json) {
    error(place, "a text where true or false is expected",
          known ? text + " without quotes" : "true or false");
    return std::nullopt;
  }
  if (known) {
    if (node.quoted)
      warn(place.path, place.line, "a quoted boolean is a text", text + " without quotes");
    return Value(text == "true");
  }
  if (const auto old = document_.json ? std::nullopt : old_boolean(text)) {
    warn(place.path, place.line,
         fmt::format("{} is a boolean in YAML 1.1, a text in YAML 1.2", detail::shown(node.scalar)),
         *old ? "true" : "false");
    return Value(*old);
  }
  const bool digit = text == "1" || text == "0";
  error(place, fmt::format("{} is neither true nor false", detail::shown(node.scalar)),
        digit ? (text == "1" ? "true" : "false") : "true or false");
  return std::nullopt;
}

bool Reading::in_range(const Key& key, double value, const Hit& place) {
  if (key.type == Type::kInt && !key.choices.empty()) {
    if (!choice_of(key.choices, plain_number(value)).empty()) return true;
    error(place, "not one of " + listed(key.choices), std::string(key.suggest));
    return false;
  }
  const bool low = key.above ? value <= key.min : value < key.min;
  if (!low && value <= key.max) return true;
  std::string why;
  if (!low) {
    why = fmt::format("must be at most {}", plain_number(key.max));
  } else if (key.above) {
    why = fmt::format("must be greater than {}", plain_number(key.min));
  } else {
    why = key.min == 0 ? "must not be negative"
                       : fmt::format("must be at least {}", plain_number(key.min));
  }
  error(place, why, std::string(key.suggest));
  return false;
}

std::optional<Value> Reading::number(const Key& key, const Node& node, const Hit& place) {
  const auto value = as_number(node.scalar);
  if (node.quoted && document_.json) {
    error(place, "a text where a number is expected", value ? node.scalar + " without quotes" : "");
    return std::nullopt;
  }
  if (!value || !std::isfinite(*value)) {
    error(place, fmt::format("{} is no number of 64 bits", detail::shown(node.scalar)), "");
    return std::nullopt;
  }
  const std::string plain = plain_number(*value);
  if (node.quoted) {
    warn(place.path, place.line, "a quoted number is a text", node.scalar + " without quotes");
  } else if (!document_.json && text_in_old_yaml(node.scalar)) {
    warn(place.path, place.line,
         fmt::format("{} is text in YAML 1.1, a number in YAML 1.2", node.scalar), plain);
  } else if (!document_.json && node.scalar.size() > 1 && node.scalar.starts_with('0') &&
             node.scalar[1] != '.' && node.scalar.find_first_of("eE.") == std::string::npos) {
    warn(place.path, place.line,
         fmt::format("{} is read differently by YAML 1.1 and 1.2", node.scalar), plain);
  }
  if (!in_range(key, *value, place)) return std::nullopt;
  if (key.type == Type::kNumber) return numeric(node.scalar, *value);
  if (*value != std::floor(*value)) {
    error(place, "not a whole number", fmt::format("{:.0f}", std::floor(*value)));
    return std::nullopt;
  }
  if (std::abs(*value) > 9.2233720368547748e18) {
    error(place, "too large for a whole number of 64 bits", "");
    return std::nullopt;
  }
  return Value(*value >= 9223372036854774784.0 ? std::numeric_limits<std::int64_t>::max()
                                               : static_cast<std::int64_t>(*value));
}

std::optional<Value> Reading::word(const Key& key, const Node& node, const Hit& place) {
  std::string text = node.scalar;
  if (key.type == Type::kText && document_.json && !node.quoted) {
    error(place, "a text is expected", fmt::format("\"{}\"", detail::shown(text)));
    return std::nullopt;
  }
  const bool boolean = !node.quoted && !document_.json && old_boolean(text).has_value();
  if (boolean && key.use != Use::kIdle) {
    warn(place.path, place.line, fmt::format("the bare word {} is a boolean in YAML 1.1", text),
         fmt::format("'{}'", text));
  }
  if (key.choices.empty()) return Value(std::move(text));
  std::string choice = choice_of(key.choices, text);
  if (choice.empty()) {
    error(place, fmt::format("{} is not one of {}", detail::shown(text), listed(key.choices)),
          nearest_choice(key.choices, text));
    return std::nullopt;
  }
  return Value(std::move(choice));
}

std::optional<Value> Reading::texts(const Node& node, const Hit& place) {
  if (node.kind == Node::Kind::kScalar) return Value(split_words(node.scalar));
  if (node.kind != Node::Kind::kList) {
    error(place, "a list of texts is expected", "");
    return std::nullopt;
  }
  Value::List out;
  for (const Node& item : node.items) {
    if (item.kind != Node::Kind::kScalar) {
      error(place, "a list of texts is expected", "");
      return std::nullopt;
    }
    out.emplace_back(item.scalar);
  }
  return Value(std::move(out));
}

Value Reading::as_it_stands(const Node& node, const Hit& place, bool report) {
  if (node.kind == Node::Kind::kList) {
    Value::List list;
    for (const Node& item : node.items) list.push_back(as_it_stands(item, place, report));
    return list;
  }
  if (node.kind == Node::Kind::kMap) {
    Value map = Value::Map{};
    for (const Node::Entry& entry : node.entries) {
      const Hit inner{{}, place.path + "." + entry.key, entry.line, entry.column};
      if (report && !map.at(entry.key).null()) error(inner, "already given above", "keep one");
      map.set(entry.key, as_it_stands(entry.value, inner, report));
    }
    return map;
  }
  if (node.kind == Node::Kind::kNull) return {};
  if (node.quoted) return node.scalar;
  const std::string text = lower(node.scalar);
  if (text == "true" || text == "false") return text == "true";
  const auto value = as_number(node.scalar);
  if (!value || !std::isfinite(*value)) return node.scalar;
  return numeric(node.scalar, *value);
}

}  // namespace trireme::config::foreign
