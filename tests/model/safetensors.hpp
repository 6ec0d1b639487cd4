// Reads a safetensors file into torch tensors, F32 and I64 (support/safetensors.hpp reads F32
// without torch).
#pragma once

#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

inline std::map<std::string, torch::Tensor> read_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path);
  std::uint64_t header_size = 0;
  file.read(reinterpret_cast<char*>(&header_size), sizeof header_size);
  std::string header(header_size, ' ');
  file.read(header.data(), static_cast<std::streamsize>(header_size));
  std::map<std::string, torch::Tensor> tensors;
  const auto entries = nlohmann::json::parse(header);
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    const auto type = entry.at("dtype") == "F32" ? torch::kFloat : torch::kLong;
    auto tensor = torch::empty(entry.at("shape").get<std::vector<std::int64_t>>(), type);
    const auto offsets = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
    if (tensor.nbytes() != offsets[1] - offsets[0])
      throw std::runtime_error(name + ": size does not fit its shape");
    file.seekg(static_cast<std::streamoff>(8 + header_size + offsets[0]));
    file.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
    tensors.emplace(name, tensor);
  }
  if (!file) throw std::runtime_error(path + " is cut short");
  return tensors;
}
