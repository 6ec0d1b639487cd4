// Plain aligned tables for banners and listings.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace trireme::obs {

using Rows = std::vector<std::pair<std::string, std::string>>;

// Returns "  name   value\n" lines with aligned values under a title line (none when it is empty).
// Further lines of a value are indented like its first.
std::string aligned(const std::string& title, const Rows& rows);

// Returns lines of columns two spaces apart, the first row being the heading. Columns whose cells
// below the heading are all numbers are aligned to the right.
std::string columns(const std::vector<std::vector<std::string>>& rows);

}  // namespace trireme::obs
