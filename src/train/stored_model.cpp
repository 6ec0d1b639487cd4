#include "stored_model.hpp"

#include "trireme/base/error.hpp"
#include "trireme/ckpt/hugging_face.hpp"
#include "trireme/ckpt/tools.hpp"
#include "trireme/config/load.hpp"

#include <fmt/format.h>
#include <torch/torch.h>

namespace trireme::train {

namespace {

config::Model stored_model(const ckpt::Reader& reader) {
  const auto text = reader.extra().find("config");
  if (text == reader.extra().end()) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("{} holds no configuration", reader.path().string()));
  }
  return config::load_model(text->second, "extra/config of " + reader.path().string());
}

// The checkpoint's own tokenizer, or the one that its run named.
std::shared_ptr<const data::Tokenizer> load_tokenizer(const ckpt::Reader& reader) {
  const auto& texts = reader.extra();
  const auto kept = texts.find(std::string(ckpt::kStoredTokenizer));
  if (kept != texts.end()) {
    return data::parse_tokenizer(kept->second,
                                 "extra/" + kept->first + " of " + reader.path().string());
  }
  const config::Data data =
      config::load_data(texts.at("config"), "extra/config of " + reader.path().string());
  auto tokenizer = data::load_tokenizer(data.tokenizer);
  if (tokenizer->has_text()) return tokenizer;
  throw Error(ErrorKind::kConfig,
              fmt::format("the model reads tokens of a vocabulary of {}, which have no text here",
                          data.tokenizer),
              "only a run whose data.tokenizer is bytes or a tokenizer.json can be given a prompt");
}

std::shared_ptr<model::LanguageModel> load_model(const ckpt::Reader& reader,
                                                 const config::Model& shape) {
  auto network = model::make(shape);
  std::vector<ckpt::Extent> extents;
  for (const auto& item : network->network()->named_parameters()) {
    const auto found = reader.find("/model/" + item.key());
    // A tied parameter has a second name, and its values come with the first.
    if (!found) continue;
    at::Tensor weights = item.value();
    if (reader.tensors()[*found].shape != weights.sizes().vec()) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("{} of {} does not have the shape of its configuration", item.key(),
                              reader.path().string()));
    }
    extents.push_back({*found, 0, weights.numel(), weights.data_ptr<float>()});
  }
  reader.read(extents);
  network->network()->eval();
  return network;
}

}  // namespace

StoredModel load_stored_model(const std::filesystem::path& checkpoint) {
  const ckpt::Reader reader(ckpt::resolve(checkpoint));
  const config::Model shape = stored_model(reader);
  const auto tokenizer = load_tokenizer(reader);
  return {shape, load_model(reader, shape), tokenizer};
}

}  // namespace trireme::train
