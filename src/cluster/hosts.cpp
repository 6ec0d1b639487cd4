#include "trireme/cluster/hosts.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

namespace trireme::cluster {

namespace {

constexpr std::size_t kMostHosts = 1'000'000;
constexpr std::string_view kBlanks = " \t\r\n";

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  constexpr std::size_t kShown = 200;
  throw Error(ErrorKind::kEnvironment,
              fmt::format("'{}{}' is no list of hosts: {}", text.substr(0, kShown),
                          text.size() > kShown ? "..." : "", why),
              "it comes from the scheduler's variables or node file; was one of them edited?");
}

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::optional<int> small_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto begin = text.find_first_not_of(separators);
    if (begin == std::string_view::npos) return parts;
    text.remove_prefix(begin);
    const auto end = std::min(text.find_first_of(separators), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

// Splits at commas outside brackets.
std::vector<std::string_view> elements(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '[' && inside) refuse(text, "a bracket inside a bracket");
    if (c == ']' && !inside) refuse(text, "a bracket is closed that was not opened");
    if (c == '[') inside = true;
    if (c == ']') inside = false;
    if (c != ',' || (inside && i < text.size())) continue;
    if (inside) refuse(text, "a bracket is not closed");
    if (i == begin) refuse(text, "a name is empty");
    parts.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  return parts;
}

// The texts of "1-3,07-10" with their leading zeros.
std::vector<std::string> expand_ranges(std::string_view ranges, std::string_view whole) {
  std::vector<std::string> texts;
  for (const std::string_view range : elements(ranges)) {
    const auto dash = range.find('-');
    const std::string_view first = range.substr(0, dash);
    const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
    if (!is_digits(first) || !is_digits(last) || last.size() > 18 || first.size() > 18)
      refuse(whole, fmt::format("'{}' is no range of numbers", range));
    std::int64_t from = 0;
    std::int64_t to = 0;
    std::from_chars(first.data(), first.data() + first.size(), from);
    std::from_chars(last.data(), last.data() + last.size(), to);
    if (to < from) refuse(whole, fmt::format("the range '{}' runs backwards", range));
    if (static_cast<std::size_t>(to - from) >= kMostHosts)
      refuse(whole, "more than a million hosts");
    for (std::int64_t n = from; n <= to; ++n)
      texts.push_back(fmt::format("{:0{}}", n, first.size()));
  }
  return texts;
}

// "a[1-2]b[0-1]": every combination, the last bracket fastest.
std::vector<std::string> expand_element(std::string_view element, std::string_view whole) {
  std::vector<std::string> names{""};
  while (!element.empty()) {
    const auto open = element.find('[');
    for (std::string& name : names) name += element.substr(0, open);
    if (open == std::string_view::npos) break;
    const auto close = element.find(']', open);
    const auto texts = expand_ranges(element.substr(open + 1, close - open - 1), whole);
    if (names.size() * texts.size() > kMostHosts) refuse(whole, "more than a million hosts");
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& text : texts) longer.push_back(name + text);
    }
    names = std::move(longer);
    element.remove_prefix(close + 1);
  }
  return names;
}

// A host name around its last number.
struct Numbered {
  std::string_view before, digits, after;
};

Numbered around_number(std::string_view name) {
  const auto last = name.find_last_of("0123456789");
  if (last == std::string_view::npos) return {name, {}, {}};
  const auto first = name.substr(0, last).find_last_not_of("0123456789");
  const std::size_t begin = first == std::string_view::npos ? 0 : first + 1;
  return {name.substr(0, begin), name.substr(begin, last + 1 - begin), name.substr(last + 1)};
}

bool follows(std::string_view first, std::int64_t distance, std::string_view digits) {
  std::int64_t start = 0;
  std::from_chars(first.data(), first.data() + first.size(), start);
  return fmt::format("{:0{}}", start + distance, first.size()) == digits;
}

void add_slots(std::vector<HostSlots>& hosts, std::string_view host, int slots) {
  const auto found = std::find_if(hosts.begin(), hosts.end(),
                                  [&](const auto& entry) { return entry.host == host; });
  if (found == hosts.end()) {
    hosts.push_back({std::string(host), slots});
  } else {
    found->slots += slots;
  }
}

}  // namespace

std::vector<std::string> expand_hosts(std::string_view text) {
  std::vector<std::string> hosts;
  if (text.empty()) return hosts;
  if (text.find_first_of(kBlanks) != std::string_view::npos) refuse(text, "it contains blanks");
  for (const std::string_view element : elements(text)) {
    for (std::string& host : expand_element(element, text)) hosts.push_back(std::move(host));
    if (hosts.size() > kMostHosts) refuse(text, "more than a million hosts");
  }
  return hosts;
}

std::string compress_hosts(const std::vector<std::string>& hosts) {
  std::string text;
  for (std::size_t i = 0; i < hosts.size();) {
    if (!text.empty()) text += ',';
    const Numbered first = around_number(hosts[i]);
    // Longer numbers than a range may have stay names of their own.
    if (first.digits.empty() || first.digits.size() > 18) {
      text += hosts[i++];
      continue;
    }
    std::string ranges;
    std::size_t end = i;
    while (end < hosts.size()) {
      const Numbered start = around_number(hosts[end]);
      if (start.before != first.before || start.after != first.after || start.digits.empty() ||
          start.digits.size() > 18)
        break;
      std::size_t next = end + 1;
      for (; next < hosts.size(); ++next) {
        const Numbered other = around_number(hosts[next]);
        if (other.before != first.before || other.after != first.after ||
            !follows(start.digits, static_cast<std::int64_t>(next - end), other.digits))
          break;
      }
      if (!ranges.empty()) ranges += ',';
      ranges += start.digits;
      if (next - end > 1) {
        ranges += '-';
        ranges += around_number(hosts[next - 1]).digits;
      }
      end = next;
    }
    text += end - i == 1 ? hosts[i] : fmt::format("{}[{}]{}", first.before, ranges, first.after);
    i = end;
  }
  return text;
}

std::vector<int> expand_counts(std::string_view text) {
  std::vector<int> counts;
  const auto bad = [&] {
    throw Error(ErrorKind::kEnvironment, fmt::format("'{}' is no list of counts", text),
                "Slurm writes such lists as 2(x3),1");
  };
  for (std::string_view part = text; !part.empty();) {
    const auto comma = part.find(',');
    const std::string_view item = part.substr(0, comma);
    const auto open = item.find("(x");
    if (open != std::string_view::npos && item.back() != ')') bad();
    const auto count = small_number(item.substr(0, open));
    const auto repeat = open == std::string_view::npos
                            ? std::optional<int>(1)
                            : small_number(item.substr(open + 2, item.size() - open - 3));
    if (!count || !repeat || counts.size() + static_cast<std::size_t>(*repeat) > kMostHosts) bad();
    counts.insert(counts.end(), static_cast<std::size_t>(*repeat), *count);
    if (comma == std::string_view::npos) break;
    part.remove_prefix(comma + 1);
    if (part.empty()) bad();
  }
  if (counts.empty()) bad();
  return counts;
}

std::vector<HostSlots> parse_node_file(std::string_view text) {
  std::vector<HostSlots> hosts;
  for (const std::string_view line : split(text, "\n")) {
    const auto words = split(line, kBlanks);
    if (words.empty() || words[0].starts_with('#')) continue;
    const auto slots = words.size() > 1 ? small_number(words[1]) : std::optional<int>(1);
    if (!slots || words.size() > 2)
      refuse(line, "a line of a node file is a name, or a name and a number of slots");
    add_slots(hosts, words[0], *slots);
  }
  return hosts;
}

std::vector<HostSlots> parse_lsf_hosts(std::string_view text) {
  std::vector<HostSlots> hosts;
  const auto words = split(text, " \t\r\n:");
  // A number is no host name, so a second word that is one tells LSB_MCPU_HOSTS from LSB_HOSTS.
  const bool counted = words.size() % 2 == 0 && words.size() > 1 && is_digits(words[1]);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto star = words[i].find('*');
    const std::string_view number = counted                          ? words[i + 1]
                                    : star == std::string_view::npos ? std::string_view("1")
                                                                     : words[i].substr(0, star);
    const auto slots = small_number(number);
    if (!slots) refuse(text, fmt::format("'{}' is no number of slots", number));
    add_slots(hosts, star == std::string_view::npos ? words[i] : words[i].substr(star + 1), *slots);
    if (counted) ++i;
  }
  return hosts;
}

std::string node_file(const std::vector<HostSlots>& hosts) {
  std::string text;
  for (const HostSlots& entry : hosts) {
    for (int slot = 0; slot < entry.slots; ++slot) text += entry.host + '\n';
  }
  return text;
}

std::string host_argument(const std::vector<HostSlots>& hosts) {
  std::string text;
  for (const HostSlots& entry : hosts)
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", entry.host, entry.slots);
  return text;
}

int total_slots(const std::vector<HostSlots>& hosts) {
  int total = 0;
  for (const HostSlots& entry : hosts) total += entry.slots;
  return total;
}

}  // namespace trireme::cluster
