#include "../tree.hpp"
#include "document.hpp"
#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

namespace trireme::config::foreign {

namespace {

struct Refused {
  int line;
  int column;
  std::string text;
};

int line_of(const YAML::Mark& mark) { return mark.line < 0 ? 1 : mark.line + 1; }
int column_of(const YAML::Mark& mark) { return mark.column < 0 ? 1 : mark.column + 1; }

std::size_t num_nodes(const Node& node) {
  std::size_t count = 1;
  for (const Node& item : node.items) count += num_nodes(item);
  for (const Node::Entry& entry : node.entries) count += num_nodes(entry.value);
  return count;
}

class Builder : public YAML::EventHandler {
 public:
  explicit Builder(Document& document) : document_(document) {}

  Node take() {
    if (bad_key_) throw Refused{bad_key_->line, bad_key_->column, "a key must be a plain word"};
    return std::move(root_);
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(place(mark), anchor); }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchored_.find(anchor);
    Node copy = place(mark);
    if (found == anchored_.end()) {
      problem(mark, "an alias of something that holds it", "write the value out");
    } else if (added_ + found->second.nodes > kMaxNodes) {
      problem(mark, fmt::format("aliases expand to more than {} nodes", kMaxNodes),
              "write the value out");
    } else {
      added_ += found->second.nodes;
      copy = found->second.node;
      copy.line = line_of(mark);
      copy.column = column_of(mark);
    }
    add(std::move(copy), 0);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (detail::is_written_tag(tag)) {
      problem(mark, fmt::format("the tag '{}' is not allowed", detail::shown(tag)),
              "leave the tag out");
    }
    Node node = place(mark);
    node.quoted = tag == "!";
    const bool null = !node.quoted && detail::is_null_word(value);
    node.kind = null ? Node::Kind::kNull : Node::Kind::kScalar;
    node.scalar = value;
    add(std::move(node), anchor);
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
    YAML::anchor_t anchor = 0;
    Node::Entry key;  // that waits for its value
    bool has_key = false;
  };
  struct Anchored {
    Node node;
    std::size_t nodes = 0;
  };

  static Node place(const YAML::Mark& mark) {
    Node node;
    node.line = line_of(mark);
    node.column = column_of(mark);
    return node;
  }

  // At the outermost keys, where a person looks first; once for each.
  void problem(const YAML::Mark& mark, std::string why, std::string suggest) {
    DocumentProblem found{"", line_of(mark), column_of(mark), std::move(why), std::move(suggest)};
    if (!stack_.empty() && stack_.front().has_key) {
      found.path = stack_.front().key.key;
      found.line = stack_.front().key.line;
      found.column = stack_.front().key.column;
      if (stack_.size() > 1 && stack_[1].has_key) found.path += "." + stack_[1].key.key;
      if (stack_.size() > 1 && stack_[1].has_key) found.line = stack_[1].key.line;
    }
    const auto same = [&](const DocumentProblem& other) { return other.path == found.path; };
    if (std::ranges::none_of(document_.problems, same))
      document_.problems.push_back(std::move(found));
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            Node::Kind kind) {
    if (detail::is_written_tag(tag)) {
      problem(mark, fmt::format("the tag '{}' is not allowed", detail::shown(tag)),
              "leave the tag out");
    }
    if (stack_.size() >= kMaxDepth) {
      if (stack_.size() == kMaxDepth) {
        problem(mark, fmt::format("nested deeper than {} levels", kMaxDepth), "");
      }
    } else if (!stack_.empty() && awaits_key()) {
      note_bad_key(mark);
    }
    Open next;
    next.node = place(mark);
    next.node.kind = kind;
    next.anchor = anchor;
    stack_.push_back(std::move(next));
  }

  void close() {
    Open done = std::move(stack_.back());
    stack_.pop_back();
    if (stack_.size() >= kMaxDepth) {
      done.node.items.clear();
      done.node.entries.clear();
      done.node.kind = Node::Kind::kNull;
    }
    add(std::move(done.node), done.anchor);
  }

  bool awaits_key() const {
    return stack_.back().node.kind == Node::Kind::kMap && !stack_.back().has_key;
  }

  // Only noted: the parser takes an unclosed list for a key, and its own complaint, which follows,
  // is the better one.
  void note_bad_key(const YAML::Mark& mark) {
    if (!bad_key_) bad_key_ = DocumentProblem{"", line_of(mark), column_of(mark), "", ""};
  }

  void add(Node node, YAML::anchor_t anchor) {
    if (anchor != 0) anchored_[anchor] = {node, num_nodes(node)};
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& top = stack_.back();
    if (top.node.kind == Node::Kind::kList) {
      top.node.items.push_back(std::move(node));
    } else if (!top.has_key) {
      if (node.kind != Node::Kind::kScalar && !bad_key_)
        bad_key_ = DocumentProblem{"", node.line, node.column, "", ""};
      top.key = {std::move(node.scalar), node.line, node.column, {}};
      top.has_key = true;
    } else {
      top.key.value = std::move(node);
      top.node.entries.push_back(std::move(top.key));
      top.has_key = false;
    }
  }

  Document& document_;
  Node root_;
  std::vector<Open> stack_;
  std::map<YAML::anchor_t, Anchored> anchored_;
  std::size_t added_ = 0;
  std::optional<DocumentProblem> bad_key_;
};

Document failed(Document document, int line, int column, std::string why,
                std::string suggest = {}) {
  document.unreadable = true;
  document.problems.push_back({"", line, column, std::move(why), std::move(suggest)});
  return document;
}

// The line of a tab that indents, 0 when there is none: the parser's own complaints about it vary.
int tab_line(std::string_view text) {
  int line = 1;
  for (std::size_t at = 0; at < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view row = text.substr(at, end - at);
    const std::size_t first = row.find_first_not_of(" \t\r");
    if (first != std::string_view::npos && row[first] != '#' &&
        row.substr(0, first).find('\t') != std::string_view::npos)
      return line;
    at = end + 1;
  }
  return 0;
}

}  // namespace

Document read_yaml(std::string_view text) {
  Document document;
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    Builder builder(document);
    if (!parser.HandleNextDocument(builder)) return document;
    document.root = builder.take();
    Document ignored;
    Builder rest(ignored);
    if (parser.HandleNextDocument(rest)) {
      return failed(std::move(document), rest.take().line, 1,
                    "a second document ('---') is not allowed", "two files");
    }
  } catch (const Refused& refused) {
    return failed(std::move(document), refused.line, refused.column, refused.text);
  } catch (const YAML::Exception& error) {
    document.problems.clear();
    if (const int line = tab_line(text); line != 0 && line <= line_of(error.mark)) {
      return failed(std::move(document), line, 1, "a tab cannot indent", "two spaces");
    }
    return failed(std::move(document), line_of(error.mark), column_of(error.mark),
                  "not valid YAML: " + error.msg);
  }
  return document;
}

}  // namespace trireme::config::foreign
