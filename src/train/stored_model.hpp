// A model and its tokenizer out of a checkpoint, whole and in fp32. Private to the room.
#pragma once

#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/model/language_model.hpp"

#include <filesystem>
#include <memory>

namespace trireme::train {

struct StoredModel {
  config::Model shape;
  std::shared_ptr<model::LanguageModel> network;
  std::shared_ptr<const data::Tokenizer> tokenizer;
};

// `checkpoint`: anything that ckpt::resolve takes. Throws Config for a model whose tokens have no
// text here, Corrupt or Io when the checkpoint cannot be read.
StoredModel load_stored_model(const std::filesystem::path& checkpoint);

}  // namespace trireme::train
