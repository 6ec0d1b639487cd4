// YAML text as a plain tree with line numbers, for load.cpp only. Safe for hostile input: no
// anchors, aliases or tags, bounded size and depth, so the tree is never larger than its text.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::config::detail {

struct Node {
  enum class Kind { kNull, kScalar, kList, kMap };
  struct Entry;

  Kind kind = Kind::kNull;
  std::string scalar;
  bool quoted = false;  // a quoted scalar is a text, never a number, a boolean or null
  int line = 1;
  std::vector<Node> items;     // of a list
  std::vector<Entry> entries;  // of a map, in file order, duplicates included
};

struct Node::Entry {
  std::string key;
  int line = 1;
  Node value;
};

struct TreeProblem {
  int line = 1;
  std::string text;
};

struct Tree {
  Node root;
  std::vector<TreeProblem> problems;  // not empty: root must not be used
};

inline constexpr std::size_t kMaxTextBytes = 1 << 20;

Tree parse_tree(std::string_view text);

// The words that mean null in YAML, where they are not quoted.
bool is_null_word(std::string_view text);

// Whether a tag, as yaml-cpp tells it, stands in the text: "?" and "!" are its own.
bool is_written_tag(std::string_view tag);

// Returns `text` for a message: one line, no control characters, shortened.
std::string shown(std::string_view text);

// Returns the offset of the first byte that is no UTF-8, a NUL or another control character than
// tab and line breaks; npos when there is none.
std::size_t first_bad_byte(std::string_view text);

}  // namespace trireme::config::detail
