#include "../tree.hpp"
#include "document.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace trireme::config::foreign {

namespace {

struct Refused {
  int line;
  int column;
  std::string why;
  std::string suggest;
};

void append_utf8(std::string& out, unsigned code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0U | (code >> 6U));
    out += static_cast<char>(0x80U | (code & 0x3FU));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0U | (code >> 12U));
    out += static_cast<char>(0x80U | ((code >> 6U) & 0x3FU));
    out += static_cast<char>(0x80U | (code & 0x3FU));
  } else {
    out += static_cast<char>(0xF0U | (code >> 18U));
    out += static_cast<char>(0x80U | ((code >> 12U) & 0x3FU));
    out += static_cast<char>(0x80U | ((code >> 6U) & 0x3FU));
    out += static_cast<char>(0x80U | (code & 0x3FU));
  }
}

class Parser {
 public:
  Parser(std::string_view text, Document& document) : text_(text), document_(document) {}

  Node parse() {
    space();
    Node root = value(0);
    space();
    if (at_ < text_.size()) refuse("something follows the end of the object");
    return root;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void next() {
    if (peek() == '\n') {
      ++line_;
      start_ = at_ + 1;
    }
    ++at_;
  }

  int column() const { return static_cast<int>(at_ - start_) + 1; }

  [[noreturn]] void refuse(std::string why, std::string suggest = {}) const {
    throw Refused{line_, column(), "not valid JSON: " + std::move(why), std::move(suggest)};
  }

  void skip_line() {
    while (at_ < text_.size() && peek() != '\n') next();
  }

  void skip_block() {
    next();
    next();
    while (at_ < text_.size() && text_.substr(at_, 2) != "*/") next();
    if (at_ >= text_.size()) refuse("a comment that does not end", "*/");
    next();
    next();
  }

  void space() {
    while (at_ < text_.size()) {
      const char c = peek();
      if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        next();
      } else if (c == '#' || text_.substr(at_, 2) == "//") {
        skip_line();
      } else if (text_.substr(at_, 2) == "/*") {
        skip_block();
      } else {
        return;
      }
    }
  }

  Node value(std::size_t depth) {
    Node node;
    node.line = line_;
    node.column = column();
    const char c = peek();
    if (c == '{' || c == '[') {
      if (depth >= kMaxDepth) {
        cut_off();
      } else if (c == '{') {
        object(node, depth);
      } else {
        array(node, depth);
      }
    } else if (c == '"') {
      node.kind = Node::Kind::kScalar;
      node.quoted = true;
      node.scalar = string();
    } else {
      word(node);
    }
    return node;
  }

  // What lies too deep is passed over without recursion, so that any depth is safe.
  void cut_off() {
    const auto same = [&](const DocumentProblem& other) { return other.path == path_; };
    if (std::ranges::none_of(document_.problems, same)) {
      document_.problems.push_back({path_, path_line_, path_column_,
                                    fmt::format("nested deeper than {} levels", kMaxDepth), ""});
    }
    std::size_t open = 0;
    do {
      space();
      const char c = peek();
      if (at_ >= text_.size()) refuse("the file ends inside an object");
      if (c == '"') {
        string();
        continue;
      }
      if (c == '{' || c == '[') ++open;
      if (c == '}' || c == ']') --open;
      next();
    } while (open > 0);
  }

  void object(Node& node, std::size_t depth) {
    node.kind = Node::Kind::kMap;
    next();
    for (space(); peek() != '}'; space()) {
      if (peek() != '"')
        refuse(at_ >= text_.size() ? "the file ends inside an object"
                                   : "a key must stand in double quotes");
      Node::Entry entry{"", line_, column(), {}};
      entry.key = string();
      space();
      if (peek() != ':') refuse("a key must be followed by ':'", ":");
      next();
      space();
      const std::string outer = path_;
      if (depth < 2) {
        path_ += (path_.empty() ? "" : ".") + entry.key;
        path_line_ = entry.line;
        path_column_ = entry.column;
      }
      entry.value = value(depth + 1);
      path_ = outer;
      node.entries.push_back(std::move(entry));
      if (!separator('}')) break;
    }
    next();
  }

  void array(Node& node, std::size_t depth) {
    node.kind = Node::Kind::kList;
    next();
    for (space(); peek() != ']'; space()) {
      node.items.push_back(value(depth + 1));
      if (!separator(']')) break;
    }
    next();
  }

  // Returns whether another entry may follow.
  bool separator(char end) {
    space();
    if (peek() == ',') {
      next();
      return true;
    }
    if (peek() != end) {
      refuse(at_ >= text_.size() ? "the file ends too early"
                                 : fmt::format("',' or '{}' is missing here", end));
    }
    return false;
  }

  unsigned hex4() {
    unsigned code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = peek();
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) refuse("\\u wants four hex digits");
      const int digit = std::isdigit(static_cast<unsigned char>(c)) != 0
                            ? c - '0'
                            : std::tolower(static_cast<unsigned char>(c)) - 'a' + 10;
      code = code * 16 + static_cast<unsigned>(digit);
      next();
    }
    return code;
  }

  void escape(std::string& out) {
    next();
    const char c = peek();
    next();
    constexpr std::string_view kFrom = "\"\\/bfnrt";
    constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
    if (const auto found = kFrom.find(c); c != '\0' && found != std::string_view::npos) {
      out += kTo[found];
      return;
    }
    if (c != 'u') refuse("an unknown escape after '\\'");
    unsigned code = hex4();
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      next();
      next();
      const unsigned low = hex4();
      code = 0x10000 + ((code - 0xD800) << 10U) + ((low - 0xDC00) & 0x3FFU);
    }
    if (code >= 0xD800 && code < 0xE000) refuse("half a surrogate pair");
    if (code == 0) refuse("a NUL character");
    append_utf8(out, code);
  }

  std::string string() {
    std::string out;
    next();
    while (peek() != '"') {
      if (at_ >= text_.size() || peek() == '\n') refuse("a text that does not end", "\"");
      if (peek() == '\\') {
        escape(out);
      } else {
        out += peek();
        next();
      }
    }
    next();
    return out;
  }

  void word(Node& node) {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(peek())) != 0 ||
                                  std::string_view("+-._").find(peek()) != std::string_view::npos))
      next();
    const std::string text(text_.substr(begin, at_ - begin));
    if (text == "null") return;
    const bool number = !text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) != 0 ||
                                          (text[0] == '-' && text.size() > 1));
    if (text != "true" && text != "false" && !number) {
      at_ = begin;
      if (at_ >= text_.size()) refuse("the file ends where a value is expected");
      const bool boolean = text == "True" || text == "False";
      refuse(text.empty() ? "a value is expected here"
                          : fmt::format("'{}' is no value", detail::shown(text)),
             boolean ? (text == "True" ? "true" : "false") : "");
    }
    node.kind = Node::Kind::kScalar;
    node.scalar = text;
  }

  std::string_view text_;
  Document& document_;
  std::size_t at_ = 0;
  std::size_t start_ = 0;  // of the line
  int line_ = 1;
  std::string path_;  // of the two outermost keys
  int path_line_ = 1;
  int path_column_ = 1;
};

}  // namespace

bool looks_like_json(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  while (!text.empty()) {
    const auto first = text.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) return false;
    text.remove_prefix(first);
    const bool comment = text.starts_with("#") || text.starts_with("//");
    if (!comment) return text.starts_with("{") || text.starts_with("/*");
    text.remove_prefix(std::min(text.find('\n'), text.size()));
  }
  return false;
}

Document read_json(std::string_view text) {
  Document document;
  document.json = true;
  try {
    document.root = Parser(text, document).parse();
  } catch (const Refused& refused) {
    document.problems.push_back({"", refused.line, refused.column, refused.why, refused.suggest});
    document.unreadable = true;
  }
  return document;
}

Document read_document(std::string_view text) {
  Document document;
  document.unreadable = true;
  if (text.size() > detail::kMaxTextBytes) {
    document.problems.push_back({"", 1, 1,
                                 fmt::format("larger than {} KiB; this is no configuration file",
                                             detail::kMaxTextBytes / 1024),
                                 ""});
    return document;
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (const auto bad = detail::first_bad_byte(text); bad != std::string_view::npos) {
    const std::string_view before = text.substr(0, bad);
    const auto newline = before.rfind('\n');
    document.problems.push_back(
        {"", 1 + static_cast<int>(std::ranges::count(before, '\n')),
         static_cast<int>(newline == std::string_view::npos ? bad : bad - newline - 1) + 1,
         fmt::format("byte 0x{:02x} is not UTF-8 text", static_cast<unsigned char>(text[bad])),
         ""});
    return document;
  }
  document = looks_like_json(text) ? read_json(text) : read_yaml(text);
  const Node::Kind kind = document.root.kind;
  if (document.unreadable || kind == Node::Kind::kMap) return document;
  document.unreadable = true;
  const bool empty = kind == Node::Kind::kNull;
  document.problems.push_back(
      {"", 1, 1, empty ? "the file is empty" : "must be a group of keys", ""});
  return document;
}

}  // namespace trireme::config::foreign
