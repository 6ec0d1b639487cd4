// Other copies of a save: where they are, and what is said of damage in JSON.
#pragma once

#include "trireme/ckpt/checkpoint.hpp"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace trireme::ckpt {

// Returns those of `places` (checkpoints, or folders for checkpoints) that hold the same save as
// `checkpoint`: their manifests are equal to the byte, or, when its own is damaged or missing, have
// its step.
std::vector<std::filesystem::path> copies_of(const std::filesystem::path& checkpoint,
                                             const std::vector<std::filesystem::path>& places);

// Returns the folder for checkpoints and the step that a user means by the name of a checkpoint to
// be made: step-NNNNNNNN says its own step, any other folder gets `otherwise`.
std::pair<std::filesystem::path, Step> target_of(const std::filesystem::path& to, Step otherwise);

// Returns one JSON object as text.
std::string json_of(const Damage& damage);

}  // namespace trireme::ckpt
