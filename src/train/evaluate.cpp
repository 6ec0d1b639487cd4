#include "trireme/train/evaluate.hpp"

#include "trireme/base/error.hpp"

#include "stored_model.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numbers>
#include <optional>
#include <span>

namespace trireme::train {

namespace {

using nlohmann::json;
using Ids = std::vector<std::int64_t>;

at::Tensor row_of(std::span<const std::int64_t> ids) {
  return torch::tensor(at::ArrayRef<std::int64_t>(ids.data(), ids.size())).unsqueeze(0);
}

// -log p of the tokens of `ids` from `first` >= 1 on, each behind all that stand before it.
double nats_of(model::LanguageModel& network, std::span<const std::int64_t> ids,
               std::size_t first) {
  at::Tensor targets_1T = row_of(ids.subspan(1));
  targets_1T.slice(1, 0, static_cast<std::int64_t>(first) - 1).fill_(model::kIgnoredTarget);
  return network.loss_sum(row_of(ids.first(ids.size() - 1)), targets_1T).item<double>();
}

Ids encoded(const data::Tokenizer& tokenizer, std::string_view text) {
  const std::vector<std::uint32_t> ids = tokenizer.encode(text, true);
  return {ids.begin(), ids.end()};
}

// A stretch of a document: tokens from `counted` on have not been scored by windows before it.
struct Window {
  std::size_t begin;
  std::size_t end;
  std::size_t counted;
};

std::vector<Window> windows_of(std::size_t tokens, std::size_t context, std::size_t stride) {
  std::vector<Window> windows;
  std::size_t scored = 1;
  for (std::size_t begin = 0; scored < tokens; begin += stride) {
    const std::size_t end = std::min(begin + context + 1, tokens);
    windows.push_back({begin, end, scored});
    scored = end;
  }
  return windows;
}

// Every rank's values of its turns, in the order of turns.
template <class Value>
std::vector<Value> in_turn(comm::Communicator& world, const std::vector<Value>& mine,
                           std::size_t turns) {
  const auto all = world.all_gather(std::as_bytes(std::span(mine)), "evaluation");
  std::vector<Value> values;
  const auto ranks = static_cast<std::size_t>(world.size());
  for (std::size_t turn = 0; turn < turns; ++turn) {
    const auto* theirs = reinterpret_cast<const Value*>(all[turn % ranks].data());
    values.push_back(theirs[turn / ranks]);
  }
  return values;
}

class Turns {
 public:
  explicit Turns(const comm::Communicator& world)
      : rank_(static_cast<std::size_t>(world.rank().value)),
        ranks_(static_cast<std::size_t>(world.size())) {}
  bool mine() { return count_++ % ranks_ == rank_; }
  std::size_t count() const { return count_; }

 private:
  std::size_t rank_;
  std::size_t ranks_;
  std::size_t count_ = 0;
};

std::size_t checked_stride(std::int64_t stride, std::int64_t context) {
  if (stride < 0 || stride > context) {
    throw Error(
        ErrorKind::kConfig,
        fmt::format("--stride {} is not between 1 and the model's context {}", stride, context));
  }
  return static_cast<std::size_t>(stride == 0 ? context : stride);
}

struct Question {
  std::string prompt;
  std::vector<std::string> choices;
  std::size_t answer = 0;
};

// Throws Corrupt, without a path.
Question question_of(const std::string& line) {
  Question question;
  try {
    const json object = json::parse(line);
    question.prompt = object.at("prompt").get<std::string>();
    question.choices = object.at("choices").get<std::vector<std::string>>();
    question.answer = object.at("answer").get<std::size_t>();
  } catch (const json::exception& error) {
    throw Error(ErrorKind::kCorrupt, error.what(),
                R"(a line is {"prompt": "..", "choices": ["..", ".."], "answer": 0})");
  }
  if (question.answer >= question.choices.size() || std::ranges::count(question.choices, "") > 0) {
    throw Error(ErrorKind::kCorrupt, "the answer is no choice, or a choice is empty");
  }
  return question;
}

std::vector<Question> questions_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) throw Error(ErrorKind::kConfig, fmt::format("{}: cannot be opened", file.string()));
  std::vector<Question> questions;
  std::size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      questions.push_back(question_of(line));
    } catch (const Error& error) {
      throw Error(error.kind, fmt::format("{}:{}: {}", file.string(), number, error.message),
                  error.hint);
    }
  }
  if (questions.empty())
    throw Error(ErrorKind::kConfig, fmt::format("{}: no question in it", file.string()));
  return questions;
}

// -log p of a choice behind the prompt. The choice's tokens are those by which the whole text is longer than the
// prompt alone, as the peers count them.
double nats_of_choice(const StoredModel& model, const std::string& prompt,
                      const std::string& choice) {
  const std::size_t before = std::max<std::size_t>(encoded(*model.tokenizer, prompt).size(), 1);
  const Ids whole = encoded(*model.tokenizer, prompt + choice);
  const auto context = static_cast<std::size_t>(model.shape.context);
  if (whole.size() <= before || whole.size() - before > context) {
    throw Error(ErrorKind::kConfig,
                fmt::format("a choice of {} tokens behind a prompt of {} cannot be scored with a "
                            "context of {}",
                            whole.size() - std::min(before, whole.size()), before, context));
  }
  const std::size_t cut = whole.size() > context + 1 ? whole.size() - context - 1 : 0;
  return nats_of(*model.network, std::span(whole).subspan(cut), before - cut);
}

struct Verdict {
  bool right = false;
  bool right_per_byte = false;
};

Verdict judge(const StoredModel& model, const Question& question) {
  std::vector<double> nats;
  std::vector<double> per_byte;
  for (const std::string& choice : question.choices) {
    nats.push_back(nats_of_choice(model, question.prompt, choice));
    per_byte.push_back(nats.back() / static_cast<double>(choice.size()));
  }
  const auto best = [](const std::vector<double>& all) {
    return static_cast<std::size_t>(std::ranges::min_element(all) - all.begin());
  };
  return {best(nats) == question.answer, best(per_byte) == question.answer};
}

}  // namespace

double TextScore::perplexity() const { return std::exp(loss()); }

double TextScore::bits_per_byte() const {
  return nats / std::numbers::ln2 / static_cast<double>(bytes);
}

TextScore evaluate_text(comm::Communicator& world, const TextQuestion& question) {
  TextScore score;
  std::vector<double> mine;
  Turns turns(world);
  world.agree("evaluate", [&] {
    const StoredModel model = load_stored_model(question.checkpoint);
    const auto context = static_cast<std::size_t>(model.shape.context);
    const std::size_t stride = checked_stride(question.stride, model.shape.context);
    const at::NoGradGuard no_grad;
    for (const data::TextSource& source : question.sources) {
      const auto documents = data::open_documents(source);
      for (std::string text; documents->next(text); ++score.documents) {
        const Ids ids = encoded(*model.tokenizer, text);
        score.bytes += text.size();
        score.tokens += std::max<std::int64_t>(std::ssize(ids) - 1, 0);
        for (const Window& window : windows_of(ids.size(), context, stride)) {
          if (!turns.mine()) continue;
          const auto part = std::span(ids).subspan(window.begin, window.end - window.begin);
          mine.push_back(nats_of(*model.network, part, window.counted - window.begin));
        }
      }
    }
    if (score.tokens == 0) throw Error(ErrorKind::kConfig, "the texts have no two tokens");
  });
  for (const double nats : in_turn(world, mine, turns.count())) score.nats += nats;
  return score;
}

ChoiceScore evaluate_choices(comm::Communicator& world, const std::filesystem::path& checkpoint,
                             const std::filesystem::path& file) {
  ChoiceScore score;
  std::vector<Verdict> mine;
  Turns turns(world);
  world.agree("evaluate", [&] {
    const StoredModel model = load_stored_model(checkpoint);
    const at::NoGradGuard no_grad;
    for (const Question& question : questions_of(file)) {
      if (turns.mine()) mine.push_back(judge(model, question));
    }
  });
  for (const Verdict& verdict : in_turn(world, mine, turns.count())) {
    ++score.questions;
    score.right += verdict.right ? 1 : 0;
    score.right_per_byte += verdict.right_per_byte ? 1 : 0;
  }
  return score;
}

}  // namespace trireme::train
