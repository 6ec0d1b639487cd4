#include "trireme/train/generate.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"
#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/ckpt/hugging_face.hpp"
#include "trireme/ckpt/tools.hpp"
#include "trireme/config/load.hpp"
#include "trireme/data/tokenizer.hpp"
#include "trireme/model/language_model.hpp"

#include "sampling.hpp"
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>

namespace trireme::train {

namespace {

void check(const GenerateOptions& options) {
  const Sampling& sampling = options.sampling;
  std::string problems;
  if (options.tokens < 1) problems += "\n  --tokens is at least 1";
  if (!(sampling.temperature >= 0) || sampling.temperature > 1e6)
    problems += "\n  --temperature is 0 or above";
  if (sampling.top_k < 0) problems += "\n  --top-k is 0 (all tokens) or above";
  if (!(sampling.top_p > 0 && sampling.top_p <= 1))
    problems += "\n  --top-p is above 0 and at most 1";
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1)) problems += "\n  --min-p is from 0 to 1";
  if (!(sampling.repetition_penalty > 0) || sampling.repetition_penalty > 1e6)
    problems += "\n  --repetition-penalty is above 0";
  if (std::ranges::count(options.stop, "") > 0) problems += "\n  --stop is not empty";
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

// Text as it comes: bytes that may still become part of a character, or of what ends the text, wait.
class Stream {
 public:
  Stream(const data::Tokenizer& tokenizer, const std::vector<std::string>& stop,
         const std::function<void(std::string_view)>& emit)
      : tokenizer_(tokenizer), stop_(stop), emit_(emit) {
    for (const std::string& one : stop) longest_ = std::max(longest_, one.size());
  }

  // Returns whether the text goes on.
  bool add(std::int64_t token) {
    ids_.push_back(static_cast<std::uint32_t>(token));
    std::string text = tokenizer_.decode(ids_, true);
    for (const std::string& one : stop_) {
      const auto found = text.find(one);
      if (found == std::string::npos) continue;
      text.resize(found);
      show(text, text.size());
      return false;
    }
    constexpr std::string_view kUnfinished = "\xef\xbf\xbd";
    if (!tokenizer_.one_token_per_byte() && text.ends_with(kUnfinished)) return true;
    show(text, text.size() - std::min(text.size(), longest_ > 0 ? longest_ - 1 : 0));
    return true;
  }

  void finish() {
    const std::string text = tokenizer_.decode(ids_, true);
    show(text, text.size());
  }

 private:
  void show(const std::string& text, std::size_t end) {
    if (end <= shown_) return;
    emit_(std::string_view(text).substr(shown_, end - shown_));
    shown_ = end;
  }

  const data::Tokenizer& tokenizer_;
  const std::vector<std::string>& stop_;
  const std::function<void(std::string_view)>& emit_;
  std::size_t longest_ = 0;
  std::vector<std::uint32_t> ids_;
  std::size_t shown_ = 0;
};

// A text needs a first token to go on from.
std::vector<std::int64_t> first_tokens(const std::string& prompt,
                                       const data::Tokenizer& tokenizer) {
  std::vector<std::uint32_t> ids = tokenizer.encode(prompt, true);
  if (ids.empty() && tokenizer.end_of_text()) ids.push_back(*tokenizer.end_of_text());
  if (ids.empty()) ids = tokenizer.encode("\n", true);
  return {ids.begin(), ids.end()};
}

at::Tensor next_scores(model::LanguageModel& network, std::span<const std::int64_t> text,
                       std::int64_t context) {
  const auto window = text.last(std::min(static_cast<std::size_t>(context), text.size()));
  const at::Tensor tokens_1T =
      torch::tensor(at::ArrayRef<std::int64_t>(window.data(), window.size())).unsqueeze(0);
  return network.logits(tokens_1T)[0][-1].to(torch::kFloat).contiguous();
}

}  // namespace

void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit) {
  check(options);
  const ckpt::Reader reader(ckpt::resolve(options.checkpoint));
  const config::Model shape = stored_model(reader);
  const auto tokenizer = load_tokenizer(reader);
  const auto network = load_model(reader, shape);
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> text = first_tokens(options.prompt, *tokenizer);
  const auto end = tokenizer->end_of_text();
  emit(options.prompt);
  Stream stream(*tokenizer, options.stop, emit);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const at::Tensor scores_V = next_scores(*network, text, shape.context);
    const auto uniform =
        static_cast<double>(unit_float(philox(options.seed, static_cast<std::uint64_t>(i))[0]));
    text.push_back(draw({scores_V.data_ptr<float>(), static_cast<std::size_t>(scores_V.numel())},
                        options.sampling, text, uniform));
    if (end && text.back() == static_cast<std::int64_t>(*end)) break;
    if (!stream.add(text.back())) return;
  }
  stream.finish();
}

}  // namespace trireme::train
