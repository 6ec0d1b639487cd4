#include "trireme/train/generate.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"
#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/ckpt/tools.hpp"
#include "trireme/config/load.hpp"
#include "trireme/model/language_model.hpp"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>

namespace trireme::train {

namespace {

void check(const GenerateOptions& options) {
  std::string problems;
  if (options.tokens < 1) problems += "\n  --tokens is at least 1";
  if (!(options.temperature >= 0) || options.temperature > 1e6)
    problems += "\n  --temperature is 0 or above";
  if (options.top_k < 0) problems += "\n  --top-k is 0 (all tokens) or above";
  if (!problems.empty()) throw Error(ErrorKind::kConfig, "generate:" + problems);
}

config::Model stored_model(const ckpt::Reader& reader) {
  const auto text = reader.extra().find("config");
  if (text == reader.extra().end()) {
    throw Error(ErrorKind::kCorrupt,
                fmt::format("{} holds no configuration", reader.path().string()));
  }
  return config::load_model(text->second, "extra/config of " + reader.path().string());
}

void require_bytes(const ckpt::Reader& reader) {
  const auto text = reader.extra().find("config");
  const config::Data data =
      config::load_data(text->second, "extra/config of " + reader.path().string());
  if (data.tokenizer == "bytes") return;
  throw Error(ErrorKind::kConfig,
              fmt::format("generate: the model reads tokens of '{}', which have no text here",
                          data.tokenizer),
              "only models of data.tokenizer: bytes can be given a prompt");
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

// Draws the next token: number `index` of the stream `seed`, so that a text is a function of seed
// and prompt.
std::int64_t draw(const at::Tensor& logits_V, const GenerateOptions& options, std::uint64_t index) {
  if (options.temperature == 0) return logits_V.argmax().item<std::int64_t>();
  const std::int64_t vocabulary = logits_V.size(0);
  const std::int64_t k = options.top_k == 0 ? vocabulary : std::min(options.top_k, vocabulary);
  const auto [values, tokens] = logits_V.to(torch::kDouble).topk(k);
  const at::Tensor sums = torch::softmax(values / options.temperature, 0).cumsum(0);
  const double target =
      static_cast<double>(unit_float(philox(options.seed, index)[0])) * sums[-1].item<double>();
  const std::int64_t place =
      torch::searchsorted(sums, torch::tensor(target, torch::kDouble), false, true)
          .item<std::int64_t>();
  return tokens[std::min(place, k - 1)].item<std::int64_t>();
}

}  // namespace

void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit) {
  check(options);
  const ckpt::Reader reader(ckpt::resolve(options.checkpoint));
  const config::Model shape = stored_model(reader);
  require_bytes(reader);
  const auto network = load_model(reader, shape);
  const at::NoGradGuard no_grad;
  // The byte tokenizer: a token is a byte. A text needs a first token to go on from.
  std::vector<std::int64_t> text;
  for (const char c : options.prompt.empty() ? std::string("\n") : options.prompt) {
    text.push_back(static_cast<unsigned char>(c));
  }
  emit(options.prompt);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const std::size_t window = std::min(static_cast<std::size_t>(shape.context), text.size());
    const at::Tensor tokens_1T =
        torch::tensor(at::ArrayRef<std::int64_t>(text.data() + text.size() - window, window))
            .unsqueeze(0);
    const at::Tensor logits_V = network->logits(tokens_1T)[0][-1];
    text.push_back(draw(logits_V, options, static_cast<std::uint64_t>(i)));
    const char letter = static_cast<char>(text.back());
    emit({&letter, 1});
  }
}

}  // namespace trireme::train
