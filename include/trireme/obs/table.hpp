// Plain aligned tables for banners and listings.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace trireme::obs {

using Rows = std::vector<std::pair<std::string, std::string>>;

// Returns "  name   value\n" lines with aligned values under a title line.
std::string aligned(const std::string& title, const Rows& rows);

}  // namespace trireme::obs
