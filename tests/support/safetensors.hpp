// Reads fp32 tensors of a .safetensors file into memory: enough for golden values in tests. It
// trusts the file.
#pragma once

#include <nlohmann/json.hpp>

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace trireme::support {

struct GoldenTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

using GoldenTensors = std::map<std::string, GoldenTensor, std::less<>>;

inline std::string file_content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  return nlohmann::json::parse(file_content(path));
}

// Returns every tensor of the file by name; throws for a type other than F32.
inline GoldenTensors read_safetensors(const std::filesystem::path& path) {
  static_assert(std::endian::native == std::endian::little);
  const std::string content = file_content(path);
  std::uint64_t header_size = 0;
  std::memcpy(&header_size, content.data(), sizeof header_size);
  const auto header = nlohmann::json::parse(content.substr(sizeof header_size, header_size));
  const char* const data = content.data() + sizeof header_size + header_size;
  GoldenTensors tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    if (entry.at("dtype") != "F32") throw std::runtime_error(name + " is not F32");
    const auto begin = entry.at("data_offsets").at(0).get<std::size_t>();
    const auto end = entry.at("data_offsets").at(1).get<std::size_t>();
    GoldenTensor& tensor = tensors[name];
    tensor.shape = entry.at("shape").get<std::vector<std::int64_t>>();
    tensor.values.resize((end - begin) / sizeof(float));
    if (end > begin) std::memcpy(tensor.values.data(), data + begin, end - begin);
  }
  return tensors;
}

}  // namespace trireme::support
