#include "trireme/obs/table.hpp"

#include <algorithm>
#include <cctype>

namespace trireme::obs {

namespace {

// Columns on a terminal: UTF-8 continuation bytes take none. Wide characters count as one; good
// enough for a banner.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::string padding(std::size_t wanted, const std::string& text) {
  const std::size_t have = width(text);
  return std::string(wanted > have ? wanted - have : 0, ' ');
}

bool numeric(const std::string& text) {
  return !text.empty() &&
         (std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-' || text[0] == '+');
}

}  // namespace

std::string aligned(const std::string& title, const Rows& rows) {
  std::size_t name_width = 0;
  for (const auto& [name, value] : rows) name_width = std::max(name_width, width(name));
  const std::string indent(name_width + 4, ' ');
  std::string out = title.empty() ? "" : title + "\n";
  for (const auto& [name, value] : rows) {
    std::string line = "  " + name + padding(name_width, name) + "  ";
    for (const char c : value) {
      line += c;
      if (c == '\n') line += indent;
    }
    line.erase(line.find_last_not_of(" \n") + 1);
    out += line + "\n";
  }
  return out;
}

std::string columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  std::vector<bool> right;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    widths.resize(std::max(widths.size(), rows[r].size()), 0);
    right.resize(widths.size(), rows.size() > 1);
    for (std::size_t c = 0; c < rows[r].size(); ++c) {
      widths[c] = std::max(widths[c], width(rows[r][c]));
      if (r > 0 && !numeric(rows[r][c])) right[c] = false;
    }
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string space = padding(widths[c], row[c]);
      line += (c > 0 ? "  " : "") + (right[c] ? space + row[c] : row[c] + space);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace trireme::obs
