#include "values.hpp"

#include "trireme/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

namespace trireme::config {

namespace detail {

namespace {

using Problem = std::optional<std::string>;

template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

std::string kind_of(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "nothing";
    case Node::Kind::kList:
      return "a list";
    case Node::Kind::kMap:
      return "a group of keys";
    case Node::Kind::kScalar:
      break;
  }
  return fmt::format("{}'{}'", node.quoted ? "the quoted text " : "", shown(node.scalar));
}

Problem wants(std::string_view what, const Node& node, std::string_view hint = {}) {
  return fmt::format("must be {}, not {}{}{}", what, kind_of(node), hint.empty() ? "" : "; ", hint);
}

bool plain_scalar(const Node& node) { return node.kind == Node::Kind::kScalar && !node.quoted; }

std::string without_underscores(std::string text) {
  std::erase(text, '_');
  return text;
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// What a person probably meant by a word that is no number.
std::string number_hint(const std::string& text) {
  const std::string joined = without_underscores(text);
  if (joined != text && all_digits(joined)) return "write " + joined;
  if (text.find(',') != std::string::npos)
    return "write it without commas, with a point for decimals";
  return {};
}

// std::from_chars over the whole text; a leading '+' is allowed as in YAML.
template <class T>
std::errc parse_number(std::string_view text, T& value) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end != text.data() + text.size()) return std::errc::invalid_argument;
  return error;
}

template <class T>
Problem read_integer(const Node& node, T& out) {
  constexpr std::string_view kWanted =
      std::is_signed_v<T> ? "a whole number" : "a whole number, 0 or more";
  if (!plain_scalar(node)) return wants(kWanted, node, node.quoted ? "leave the quotes out" : "");
  const std::string& text = node.scalar;
  if (text.size() > 1 && text[0] == '0' && all_digits(text)) {
    return wants(kWanted, node, "leave the leading 0 out, some readers take it for octal");
  }
  T value{};
  const std::errc error = parse_number(text, value);
  if (error == std::errc{}) {
    out = value;
    return std::nullopt;
  }
  if (error == std::errc::result_out_of_range) return fmt::format("{} is too large", shown(text));
  double real = 0;
  const bool whole =
      parse_number(text, real) == std::errc{} && std::abs(real) < 1e15 && real == std::floor(real);
  return wants(kWanted, node,
               whole && real >= 0 ? fmt::format("write {:.0f}", real) : number_hint(text));
}

Problem read_number(const Node& node, double& out, std::string_view wanted = "a number") {
  if (!plain_scalar(node)) return wants(wanted, node, node.quoted ? "leave the quotes out" : "");
  double value = 0;
  const std::errc error = parse_number(node.scalar, value);
  if (error == std::errc::result_out_of_range) {
    return fmt::format("{} does not fit into a 64-bit floating-point number", shown(node.scalar));
  }
  if (error != std::errc{}) return wants(wanted, node, number_hint(node.scalar));
  if (!std::isfinite(value)) return wants("a finite number", node);
  out = value;
  return std::nullopt;
}

Problem read_boolean(const Node& node, bool& out) {
  if (!plain_scalar(node))
    return wants("true or false", node, node.quoted ? "leave the quotes out" : "");
  const std::string& text = node.scalar;
  if (text == "true" || text == "True" || text == "TRUE") {
    out = true;
  } else if (text == "false" || text == "False" || text == "FALSE") {
    out = false;
  } else {
    std::string lower = text;
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
    constexpr std::array kYes{"yes", "on", "y", "1"};
    constexpr std::array kNo{"no", "off", "n", "0"};
    const bool yes = std::ranges::find(kYes, lower) != kYes.end();
    const bool no = std::ranges::find(kNo, lower) != kNo.end();
    return wants("true or false", node, yes ? "write true" : no ? "write false" : "");
  }
  return std::nullopt;
}

// "90", "120s", "10min", "2h", "1d".
Problem read_seconds(const Node& node, double& out) {
  constexpr std::string_view kWanted = "a duration such as 90, 120s, 10min or 2h";
  if (node.kind != Node::Kind::kScalar) return wants(kWanted, node);
  const std::string& text = node.scalar;
  struct Unit {
    std::string_view name;
    double seconds;
  };
  constexpr std::array kUnits{Unit{"min", 60}, Unit{"s", 1}, Unit{"h", 3600}, Unit{"d", 86400}};
  Node number = node;
  number.quoted = false;
  double scale = 1;
  for (const Unit& unit : kUnits) {
    if (text.size() > unit.name.size() && text.ends_with(unit.name)) {
      number.scalar = text.substr(0, text.size() - unit.name.size());
      while (number.scalar.ends_with(' ')) number.scalar.pop_back();
      scale = unit.seconds;
      break;
    }
  }
  double value = 0;
  if (read_number(number, value)) return wants(kWanted, node);
  out = value * scale;
  return std::nullopt;
}

Problem read_text(const Node& node, std::string& out) {
  if (node.kind != Node::Kind::kScalar) return wants("a text", node);
  out = node.scalar;
  return std::nullopt;
}

template <class T, class Read>
Problem read_list(const Node& node, std::vector<T>& out, std::string_view example, Read read) {
  if (node.kind != Node::Kind::kList) return wants(fmt::format("a list such as {}", example), node);
  std::vector<T> values;
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    T value{};
    if (auto problem = read(node.items[i], value))
      return fmt::format("entry {} {}", i + 1, *problem);
    values.push_back(std::move(value));
  }
  out = std::move(values);
  return std::nullopt;
}

// A group of words and numbers, kept as texts: who uses them knows their types.
Problem read_options(const Node& node, std::map<std::string, std::string>& out) {
  if (node.kind != Node::Kind::kMap) return wants("a group such as {num_cycles: 2}", node);
  std::map<std::string, std::string> values;
  for (const Node::Entry& entry : node.entries) {
    if (entry.value.kind != Node::Kind::kScalar)
      return fmt::format("'{}' must be a word or a number", shown(entry.key));
    if (!values.emplace(entry.key, entry.value.scalar).second)
      return fmt::format("names '{}' twice", shown(entry.key));
  }
  out = std::move(values);
  return std::nullopt;
}

void unset(const Slot& slot) {
  std::visit(
      Overloaded{[](std::string* text) { text->clear(); }, [](std::int64_t* value) { *value = 0; },
                 [](std::optional<double>* value) { value->reset(); }, [](auto*) {}},
      slot);
}

bool inside(const Range& range, double value) {
  const bool low = range.above_min ? value > range.min : value >= range.min;
  const bool high = range.below_max ? value < range.max : value <= range.max;
  return low && high;  // false for NaN
}

template <class T>
Problem number_problem(const FieldInfo& field, T value) {
  if constexpr (std::is_same_v<T, double>) {
    if (!std::isfinite(value)) return fmt::format("must be a finite number, not {}", value);
  }
  if (inside(field.range, static_cast<double>(value))) return std::nullopt;
  return fmt::format("{} is out of range; allowed: {}{}{}", value, allowed_text(field),
                     field.unit.empty() ? "" : " ", field.unit);
}

Problem choice_problem(const FieldInfo& field, const std::string& text) {
  std::vector<std::string> names;
  std::string listed;
  for (const Choice& choice : field.choices) {
    if (choice.value == text) {
      if (choice.instead.empty()) return std::nullopt;
      return std::string(choice.instead);
    }
    if (!choice.instead.empty()) continue;
    names.emplace_back(choice.value);
    listed += fmt::format("{}{}", listed.empty() ? "" : ", ", choice.value);
  }
  auto near = nearest(text, names);
  if (!near) {
    const auto end =
        std::ranges::find_if(names, [&](const std::string& name) { return text.ends_with(name); });
    if (end != names.end()) near = *end;  // SIGTERM: TERM
  }
  if (near) return fmt::format("unknown value '{}' (did you mean '{}'?)", shown(text), *near);
  return fmt::format("unknown value '{}'; allowed: {}", shown(text), listed);
}

Problem name_problem(const std::string& text) {
  constexpr std::size_t kMaxName = 200;
  const bool plain = std::ranges::all_of(text, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return std::isalnum(byte) || byte >= 0x80 ||
           std::string_view("._-+=,@").find(c) != std::string_view::npos;
  });
  if (!text.empty() && plain && text[0] != '.' && text[0] != '-' && text.size() <= kMaxName)
    return std::nullopt;
  return fmt::format(
      "'{}' is not a plain folder name; use letters, digits and . _ - + = , @, not starting with . "
      "or -",
      shown(text));
}

Problem text_problem(const FieldInfo& field, const std::string& text) {
  if (!field.choices.empty()) return choice_problem(field, text);
  if (field.form == Form::kFileName) return name_problem(text);
  if (field.form == Form::kPath && text.empty()) return std::string("must not be empty");
  const bool line_break = text.find_first_of("\t\r\n") != std::string::npos;
  if (line_break || first_bad_byte(text) != std::string_view::npos) {
    return fmt::format("'{}' has control characters or bytes that are not UTF-8", shown(text));
  }
  return std::nullopt;
}

}  // namespace

Problem read_value(const FieldInfo& field, const Slot& slot, const Node& node) {
  if (node.kind == Node::Kind::kNull) {
    if (field.form != Form::kUnset) return std::string("has no value");
    unset(slot);
    return std::nullopt;
  }
  const auto number = [&](const Node& from, double& to) {
    return field.form == Form::kSeconds ? read_seconds(from, to) : read_number(from, to);
  };
  return std::visit(
      Overloaded{
          [&](std::string* out) { return read_text(node, *out); },
          [&](std::int64_t* out) { return read_integer(node, *out); },
          [&](std::uint64_t* out) { return read_integer(node, *out); },
          [&](double* out) { return number(node, *out); },
          [&](std::optional<double>* out) {
            double value = 0;
            auto problem = number(node, value);
            if (!problem) *out = value;
            return problem;
          },
          [&](bool* out) { return read_boolean(node, *out); },
          [&](std::vector<double>* out) {
            return read_list(node, *out, "[0.9, 0.95]",
                             [](const Node& from, double& to) { return read_number(from, to); });
          },
          [&](std::vector<std::string>* out) {
            return read_list(node, *out, "[USR1, TERM]", read_text);
          },
          [](std::vector<DataSource>*) { return Problem("is no single value"); },
          [](std::vector<ParameterGroup>*) { return Problem("is no single value"); },
          [&](std::map<std::string, std::string>* out) { return read_options(node, *out); },
      },
      slot);
}

Problem value_problem(const FieldInfo& field, const Slot& slot) {
  return std::visit(Overloaded{
                        [&](const std::string* text) { return text_problem(field, *text); },
                        [&](const std::int64_t* value) { return number_problem(field, *value); },
                        [&](const std::uint64_t* value) { return number_problem(field, *value); },
                        [&](const double* value) { return number_problem(field, *value); },
                        [&](const std::optional<double>* value) {
                          return *value ? number_problem(field, **value) : Problem();
                        },
                        [](const bool*) { return Problem(); },
                        [&](const std::vector<double>* values) {
                          for (const double value : *values) {
                            if (auto problem = number_problem(field, value)) return problem;
                          }
                          return Problem();
                        },
                        [&](const std::vector<std::string>* values) {
                          std::set<std::string> seen;
                          for (const std::string& value : *values) {
                            if (auto problem = text_problem(field, value)) return problem;
                            if (!seen.insert(value).second) {
                              return Problem(fmt::format("names '{}' twice", shown(value)));
                            }
                          }
                          return Problem();
                        },
                        [](const std::vector<DataSource>*) { return Problem(); },
                        [](const std::vector<ParameterGroup>*) { return Problem(); },
                        [&](const std::map<std::string, std::string>* values) {
                          for (const auto& [name, text] : *values) {
                            if (auto problem = text_problem(field, name)) return problem;
                            if (auto problem = text_problem(field, text)) return problem;
                          }
                          return Problem();
                        },
                    },
                    slot);
}

}  // namespace detail

namespace {

// A word that YAML reads back as the same text without quotes.
bool plain_word(std::string_view text) {
  constexpr std::array<std::string_view, 12> kSpecial{"null", "true", "false", "yes", "no",  "on",
                                                      "off",  "y",    "n",     "nan", "inf", "~"};
  if (text.empty() || (!std::isalpha(static_cast<unsigned char>(text[0])) && text[0] != '/'))
    return false;
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (std::ranges::find(kSpecial, lower) != kSpecial.end()) return false;
  return std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '.' || c == '/' || c == '-';
  });
}

std::string text_value(std::string_view text) {
  return plain_word(text) ? std::string(text) : json_quoted(text);
}

template <class T, class Write>
std::string list_value(const std::vector<T>& values, Write write) {
  std::string out = "[";
  for (const T& value : values) out += (out.size() > 1 ? ", " : "") + write(value);
  return out + "]";
}

// A number or a truth value as it stands.
std::string option_text(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool plain = error == std::errc{} && end == text.data() + text.size();
  return plain || text == "true" || text == "false" ? text : text_value(text);
}

std::string number_value(double value) { return fmt::format("{}", value); }

std::string options_value(const std::map<std::string, std::string>& options) {
  std::string out = "{";
  for (const auto& [name, text] : options) {
    out += fmt::format("{}{}: {}", out.size() > 1 ? ", " : "", text_value(name), option_text(text));
  }
  return out + "}";
}

std::string source_value(const DataSource& source) {
  const std::string key =
      source.format == "jsonl" ? fmt::format(", key: {}", text_value(source.key)) : "";
  return fmt::format("{{path: {}, format: {}, weight: {}{}}}", text_value(source.path),
                     text_value(source.format), number_value(source.weight), key);
}

// Only what is set.
std::string group_value(const ParameterGroup& group) {
  std::string out = "{match: " + text_value(group.match);
  ParameterGroup copy = group;
  for (const GroupField& field : group_fields().subspan(1)) {
    const std::string text = value_text(field, field.slot(copy));
    if (text != "null" && text != "[]") out += fmt::format(", {}: {}", field.path, text);
  }
  return out + "}";
}

}  // namespace

std::string value_text(const FieldInfo& field, const Slot& slot) {
  const bool can_be_unset = field.form == Form::kUnset;
  return std::visit(
      detail::Overloaded{
          [&](const std::string* text) {
            return text->empty() && can_be_unset ? std::string("null") : text_value(*text);
          },
          [&](const std::int64_t* value) {
            return *value == 0 && can_be_unset ? std::string("null") : fmt::format("{}", *value);
          },
          [](const std::uint64_t* value) { return fmt::format("{}", *value); },
          [&](const double* value) {
            return number_value(*value) + (field.form == Form::kSeconds ? "s" : "");
          },
          [](const std::optional<double>* value) {
            return *value ? number_value(**value) : std::string("null");
          },
          [](const bool* value) { return std::string(*value ? "true" : "false"); },
          [](const std::vector<double>* values) { return list_value(*values, number_value); },
          [](const std::vector<std::string>* values) {
            return list_value(*values, [](const std::string& text) { return text_value(text); });
          },
          [](const std::vector<DataSource>* values) { return list_value(*values, source_value); },
          [](const std::vector<ParameterGroup>* values) {
            return list_value(*values, group_value);
          },
          [](const std::map<std::string, std::string>* values) { return options_value(*values); },
      },
      slot);
}

std::string value_text(const Field& field, const Config& config) {
  Config copy = config;  // slots point into a Config that may be written
  return value_text(field, field.slot(copy));
}

std::string type_text(const FieldInfo& field, const Slot& slot) {
  return std::visit(
      detail::Overloaded{
          [](const std::string*) { return "text"; },
          [](const std::int64_t*) { return "integer"; },
          [](const std::uint64_t*) { return "integer"; },
          [&](const double*) { return field.form == Form::kSeconds ? "duration" : "number"; },
          [](const std::optional<double>*) { return "number"; },
          [](const bool*) { return "true or false"; },
          [](const std::vector<double>*) { return "list of numbers"; },
          [](const std::vector<std::string>*) { return "list of words"; },
          [](const std::vector<DataSource>*) { return "list of files"; },
          [](const std::vector<ParameterGroup>*) { return "list of groups"; },
          [](const std::map<std::string, std::string>*) { return "group of options"; },
      },
      slot);
}

std::string allowed_text(const FieldInfo& field) {
  std::string words;
  for (const Choice& choice : field.choices) {
    if (!choice.instead.empty()) continue;
    words += fmt::format("{}{}", words.empty() ? "" : " | ", choice.value);
  }
  if (!words.empty()) return words;
  if (field.form == Form::kFileName) return "a plain folder name";
  const auto [min, max, above_min, below_max] = field.range;
  const bool has_min = std::isfinite(min);
  const bool has_max = std::isfinite(max);
  if (!has_min && !has_max) return "";
  if (!has_max) return fmt::format("{} {}", above_min ? "above" : "at least", min);
  if (above_min && below_max) return fmt::format("above {} and below {}", min, max);
  if (above_min) return fmt::format("above {}, at most {}", min, max);
  if (below_max) return fmt::format("at least {} and below {}", min, max);
  return fmt::format("{} to {}", min, max);
}

}  // namespace trireme::config
