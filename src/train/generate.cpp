#include "trireme/train/generate.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"

#include "sampling.hpp"
#include "stored_model.hpp"
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

// The scores behind the text. What is known of its tokens is kept while all of them fit into the context; then
// positions move with every token, and all is computed anew.
at::Tensor next_scores(model::LanguageModel& network, std::span<const std::int64_t> text,
                       std::int64_t context, model::Past& past) {
  if (std::ssize(text) <= context) {
    const auto added = text.subspan(static_cast<std::size_t>(past.length));
    const at::Tensor tokens_1T =
        torch::tensor(at::ArrayRef<std::int64_t>(added.data(), added.size())).unsqueeze(0);
    return network.next_logits(tokens_1T, past)[0].to(torch::kFloat).contiguous();
  }
  const auto window = text.last(std::min(static_cast<std::size_t>(context), text.size()));
  const at::Tensor tokens_1T =
      torch::tensor(at::ArrayRef<std::int64_t>(window.data(), window.size())).unsqueeze(0);
  return network.logits(tokens_1T)[0][-1].to(torch::kFloat).contiguous();
}

}  // namespace

void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& emit) {
  check(options);
  const auto [shape, network, tokenizer] = load_stored_model(options.checkpoint);
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> text = first_tokens(options.prompt, *tokenizer);
  const auto end = tokenizer->end_of_text();
  emit(options.prompt);
  model::Past past;
  Stream stream(*tokenizer, options.stop, emit);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const at::Tensor scores_V = next_scores(*network, text, shape.context, past);
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
