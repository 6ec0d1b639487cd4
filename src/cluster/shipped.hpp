// The files that are compiled into the program; CMake writes their table from the checkout.
#pragma once

#include <span>
#include <string_view>

namespace trireme::cluster {

struct ShippedFile {
  std::string_view path;
  std::string_view text;
};

std::span<const ShippedFile> shipped_files();

}  // namespace trireme::cluster
