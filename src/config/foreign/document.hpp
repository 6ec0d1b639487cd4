// A foreign file as a tree with lines and columns. Unlike the reader of native files it goes on
// after what it can do without: aliases are expanded up to a limit, what lies too deep is cut off,
// each with a problem at the key that holds it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::config::foreign {

struct Node {
  enum class Kind { kNull, kScalar, kList, kMap };
  struct Entry;

  Kind kind = Kind::kNull;
  std::string scalar;
  bool quoted = false;
  int line = 1;
  int column = 1;
  std::vector<Node> items;
  std::vector<Entry> entries;  // in file order, duplicates included
};

struct Node::Entry {
  std::string key;
  int line = 1;
  int column = 1;
  Node value;
};

struct DocumentProblem {
  std::string path;  // of the key that holds it; empty: the text as a whole
  int line = 1;
  int column = 1;
  std::string why;
  std::string suggest;
};

struct Document {
  Node root;
  std::vector<DocumentProblem> problems;
  bool unreadable = false;  // root must not be used
  bool json = false;
};

inline constexpr std::size_t kMaxDepth = 48;
inline constexpr std::size_t kMaxNodes = 20000;  // that aliases may add

// Returns whether a text starts like JSON.
bool looks_like_json(std::string_view text);

Document read_yaml(std::string_view text);
// JSON with comments (//, #, /* */) and trailing commas, as DeepSpeed reads it.
Document read_json(std::string_view text);
// Whichever it looks like, after checks of size and encoding.
Document read_document(std::string_view text);

}  // namespace trireme::config::foreign
