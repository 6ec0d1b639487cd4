#include "tree.hpp"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <sstream>

namespace trireme::config::detail {

namespace {

// The deepest a setting lies is five (root, section, list, entry, value).
constexpr std::size_t kMaxDepth = 16;

// Thrown out of the parser's callbacks.
struct Refused {
  int line;
  std::string text;
};

int line_of(const YAML::Mark& mark) { return mark.line < 0 ? 1 : mark.line + 1; }

// Builds the tree from parse events. In a map, keys and values arrive in turn.
class Builder : public YAML::EventHandler {
 public:
  Node take() {
    if (bad_key_line_ != 0) throw Refused{bad_key_line_, "a key must be a plain word"};
    return std::move(root_);
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    Node node;
    node.line = line_of(mark);
    add(std::move(node));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Refused{line_of(mark), "aliases (*name) are not allowed; write the value out"};
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_anchor(mark, anchor);
    if (is_written_tag(tag)) refuse_tag(mark, tag);
    Node node;
    node.line = line_of(mark);
    node.quoted = tag == "!";
    const bool null = !node.quoted && is_null_word(value);
    node.kind = null ? Node::Kind::kNull : Node::Kind::kScalar;
    node.scalar = value;
    add(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::kList);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::kMap);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    Node node;
    std::string key;
    int key_line = 0;
    bool has_key = false;
  };

  static void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != 0) {
      throw Refused{line_of(mark), "anchors (&name) are not allowed; write the value out"};
    }
  }

  static void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    throw Refused{line_of(mark),
                  fmt::format("the tag '{}' is not allowed; leave it out", shown(tag))};
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            Node::Kind kind) {
    refuse_anchor(mark, anchor);
    if (is_written_tag(tag)) refuse_tag(mark, tag);
    if (stack_.size() >= kMaxDepth) {
      throw Refused{line_of(mark), fmt::format("nested deeper than {} levels", kMaxDepth)};
    }
    if (!stack_.empty() && awaits_key()) refuse_key(line_of(mark));
    Open next;
    next.node.kind = kind;
    next.node.line = line_of(mark);
    stack_.push_back(std::move(next));
  }

  void close() {
    Node done = std::move(stack_.back().node);
    stack_.pop_back();
    add(std::move(done));
  }

  bool awaits_key() const {
    return stack_.back().node.kind == Node::Kind::kMap && !stack_.back().has_key;
  }

  // Only noted: the parser takes an unclosed list for a key, and its own complaint, which follows,
  // is the better one.
  void refuse_key(int line) {
    if (bad_key_line_ == 0) bad_key_line_ = line;
  }

  void add(Node node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& top = stack_.back();
    if (top.node.kind == Node::Kind::kList) {
      top.node.items.push_back(std::move(node));
    } else if (!top.has_key) {
      if (node.kind != Node::Kind::kScalar) refuse_key(node.line);
      top.key = std::move(node.scalar);
      top.key_line = node.line;
      top.has_key = true;
    } else {
      top.node.entries.push_back({std::move(top.key), top.key_line, std::move(node)});
      top.has_key = false;
    }
  }

  Node root_;
  std::vector<Open> stack_;
  int bad_key_line_ = 0;
};

int line_at(std::string_view text, std::size_t offset) {
  return 1 +
         static_cast<int>(std::count(text.begin(), text.begin() + static_cast<long>(offset), '\n'));
}

// The length of the UTF-8 sequence at `at`, 0 when it is not one (overlong forms and surrogates
// included).
std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U;
  };
  const auto tail = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return tail(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) > 0x9F;
    return tail(1) && tail(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && byte(1) < 0x90;
    const bool beyond = first == 0xF4 && byte(1) > 0x8F;
    return tail(1) && tail(2) && tail(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

// yaml-cpp's wording for the commonest slips, said so that the reader knows what to change.
std::string explained(const std::string& message) {
  if (message.find("illegal tab") != std::string::npos) {
    return "indented with a tab; YAML wants spaces";
  }
  return "not valid YAML: " + message;
}

Tree failed(int line, std::string text) {
  Tree tree;
  tree.problems.push_back({line, std::move(text)});
  return tree;
}

}  // namespace

bool is_null_word(std::string_view text) {
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

bool is_written_tag(std::string_view tag) { return tag != "?" && tag != "!" && !tag.empty(); }

std::string shown(std::string_view text) {
  constexpr std::size_t kMaxShown = 60;
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    if (out.size() >= kMaxShown) return out + "...";
    const std::size_t length = utf8_length(text, i);
    const auto byte = static_cast<unsigned char>(text[i]);
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
      ++i;
    } else {
      out += text.substr(i, length);
      i += length;
    }
  }
  return out;
}

std::size_t first_bad_byte(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text, i);
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool control =
        (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7F;
    if (length == 0 || control) return i;
    i += length;
  }
  return std::string_view::npos;
}

Tree parse_tree(std::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return failed(
        1, fmt::format("larger than {} KiB; this is no configuration file", kMaxTextBytes / 1024));
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (const auto bad = first_bad_byte(text); bad != std::string_view::npos) {
    return failed(line_at(text, bad),
                  fmt::format("byte 0x{:02x} is not UTF-8 text; is this a configuration file?",
                              static_cast<unsigned char>(text[bad])));
  }
  Tree tree;
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    Builder builder;
    if (!parser.HandleNextDocument(builder)) return tree;
    tree.root = builder.take();
    Builder rest;
    if (parser.HandleNextDocument(rest)) {
      return failed(rest.take().line, "a second document ('---') is not allowed; pass two files");
    }
  } catch (const Refused& refused) {
    return failed(refused.line, refused.text);
  } catch (const YAML::Exception& error) {
    return failed(line_of(error.mark), explained(error.msg));
  }
  return tree;
}

}  // namespace trireme::config::detail
