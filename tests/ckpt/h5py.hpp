// The sample of state for read_with_h5py.py, which knows nothing of this project.
#pragma once

#include "support/golden.hpp"

#include "ckpt/format.hpp"
#include "sample.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace trireme::testing {

// Returns a Python that has h5py, or nothing.
inline std::string python_with_h5py() {
  const char* python = std::getenv("TRIREME_PYTHON");
  const std::string interpreter = python == nullptr ? "python3" : python;
  const std::string probe = interpreter + " -c 'import h5py, numpy' 2>/dev/null";
  return std::system(probe.c_str()) == 0 ? interpreter : "";
}

// Whether h5py finds in these files together the values of save `save`, the attributes and the texts.
inline bool h5py_sees(const std::string& interpreter,
                      const std::vector<std::filesystem::path>& files,
                      const std::filesystem::path& scratch, std::uint64_t save,
                      const nlohmann::json& attributes, const nlohmann::json& texts) {
  const auto specs = sample_specs();
  nlohmann::json expected{{"attributes", attributes}, {"texts", texts}};
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto bytes = values(specs[i], i, 0, elements_of(specs[i]), save);
    const std::string name = fmt::format("{}.bin", i);
    std::ofstream(scratch / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    expected["tensors"].push_back({{"path", specs[i].path},
                                   {"dtype", ckpt::name_of(specs[i].dtype)},
                                   {"shape", specs[i].shape},
                                   {"bytes", name}});
  }
  std::ofstream(scratch / "expected.json") << expected.dump();
  std::string command =
      fmt::format("{} -B {}", interpreter, (test_data() / "ckpt" / "read_with_h5py.py").string());
  for (const auto& file : files) command += " " + file.string();
  command += " " + (scratch / "expected.json").string();
  return std::system(command.c_str()) == 0;
}

}  // namespace trireme::testing
