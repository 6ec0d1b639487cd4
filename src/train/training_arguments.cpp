#include "trireme/train/training_arguments.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <functional>

namespace trireme {

namespace {

using nlohmann::json;

template <class T>
void take(const json& from, T& into) {
  into = from.get<T>();
}
template <class T>
void take(const json& from, std::optional<T>& into) {
  into = from.is_null() ? std::nullopt : std::optional(from.get<T>());
}
void take(const json& from, std::filesystem::path& into) { into = from.get<std::string>(); }
void take(const json& from, std::string& into) {
  into = from.is_boolean() ? (from.get<bool>() ? "true" : "") : from.get<std::string>();
}
void take(const json& from, std::vector<std::string>& into) {
  if (from.is_string()) {
    into = from == "none" ? std::vector<std::string>{} : std::vector{from.get<std::string>()};
  } else {
    into = from.get<std::vector<std::string>>();
  }
}
void take(const json& from, std::map<std::string, std::string>& into) {
  for (const auto& [key, value] : from.items())
    into[key] = value.is_string() ? value.get<std::string>() : value.dump();
}

using Setter = std::function<void(TrainingArguments&, const json&)>;

template <class T>
Setter to(T TrainingArguments::*member) {
  return
      [member](TrainingArguments& arguments, const json& value) { take(value, arguments.*member); };
}

const std::map<std::string, Setter>& setters() {
  using A = TrainingArguments;
  static const std::map<std::string, Setter> all{
      {"output_dir", to(&A::output_dir)},
      {"per_device_train_batch_size", to(&A::per_device_train_batch_size)},
      {"per_device_eval_batch_size", to(&A::per_device_eval_batch_size)},
      {"num_train_epochs", to(&A::num_train_epochs)},
      {"max_steps", to(&A::max_steps)},
      {"gradient_accumulation_steps", to(&A::gradient_accumulation_steps)},
      {"optim", to(&A::optim)},
      {"learning_rate", to(&A::learning_rate)},
      {"weight_decay", to(&A::weight_decay)},
      {"adam_beta1", to(&A::adam_beta1)},
      {"adam_beta2", to(&A::adam_beta2)},
      {"adam_epsilon", to(&A::adam_epsilon)},
      {"max_grad_norm", to(&A::max_grad_norm)},
      {"lr_scheduler_type", to(&A::lr_scheduler_type)},
      {"lr_scheduler_kwargs", to(&A::lr_scheduler_kwargs)},
      {"warmup_steps", to(&A::warmup_steps)},
      {"bf16", to(&A::bf16)},
      {"fp16", to(&A::fp16)},
      {"logging_strategy", to(&A::logging_strategy)},
      {"logging_steps", to(&A::logging_steps)},
      {"logging_first_step", to(&A::logging_first_step)},
      {"eval_strategy", to(&A::eval_strategy)},
      {"eval_steps", to(&A::eval_steps)},
      {"eval_delay", to(&A::eval_delay)},
      {"eval_on_start", to(&A::eval_on_start)},
      {"save_strategy", to(&A::save_strategy)},
      {"save_steps", to(&A::save_steps)},
      {"save_total_limit", to(&A::save_total_limit)},
      {"load_best_model_at_end", to(&A::load_best_model_at_end)},
      {"metric_for_best_model", to(&A::metric_for_best_model)},
      {"greater_is_better", to(&A::greater_is_better)},
      {"resume_from_checkpoint", to(&A::resume_from_checkpoint)},
      {"seed", to(&A::seed)},
      {"data_seed", to(&A::data_seed)},
      {"dataloader_num_workers", to(&A::dataloader_num_workers)},
      {"dataloader_prefetch_factor", to(&A::dataloader_prefetch_factor)},
      {"dataloader_drop_last", to(&A::dataloader_drop_last)},
      {"report_to", to(&A::report_to)},
      {"run_name", to(&A::run_name)},
      {"strategy", to(&A::strategy)},
  };
  return all;
}

// Of transformers, without a meaning here: the value that changes nothing.
const std::map<std::string, json>& neutral() {
  static const std::map<std::string, json> all{
      {"auto_find_batch_size", false},
      {"batch_eval_metrics", false},
      {"bf16_full_eval", false},
      {"dataloader_persistent_workers", false},
      {"ddp_find_unused_parameters", true},
      {"deepspeed", nullptr},
      {"disable_tqdm", true},
      {"fp16_full_eval", false},
      {"fsdp", ""},
      {"full_determinism", true},
      {"gradient_checkpointing", false},
      {"group_by_length", false},
      {"ignore_data_skip", false},
      {"include_num_input_tokens_seen", "no"},
      {"label_smoothing_factor", 0.0},
      {"neftune_noise_alpha", nullptr},
      {"prediction_loss_only", false},
      {"push_to_hub", false},
      {"save_on_each_node", false},
      {"save_only_model", false},
      {"skip_memory_metrics", true},
      {"tf32", nullptr},
      {"torch_compile", false},
      {"torch_empty_cache_steps", nullptr},
      {"use_cpu", true},
      {"use_liger_kernel", false},
  };
  return all;
}

std::string nearest_key(const std::string& key) {
  std::vector<std::string> names;
  for (const auto& [name, setter] : setters()) names.push_back(name);
  const auto near = nearest(key, names);
  return near ? fmt::format("; did you mean '{}'?", *near) : "";
}

[[noreturn]] void refuse(const std::vector<std::string>& problems) {
  throw Error(ErrorKind::kConfig, fmt::format("{}", fmt::join(problems, "\n")));
}

}  // namespace

TrainingArguments load_training_arguments(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) throw_errno("open", file.string());
  const json all = json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!all.is_object()) {
    throw Error(ErrorKind::kConfig, fmt::format("{} holds no JSON object", file.string()),
                "write transformers' TrainingArguments as {\"learning_rate\": 1e-4, ...}");
  }
  TrainingArguments arguments;
  std::vector<std::string> problems;
  for (const auto& [key, value] : all.items()) {
    const auto setter = setters().find(key);
    const auto ignored = neutral().find(key);
    if (setter != setters().end()) {
      try {
        setter->second(arguments, value);
      } catch (const json::exception&) {
        problems.push_back(
            fmt::format("{}: {}: {} is of the wrong type", file.string(), key, value.dump()));
      }
    } else if (ignored == neutral().end()) {
      problems.push_back(
          fmt::format("{}: unknown key '{}'{}", file.string(), key, nearest_key(key)));
    } else if (value != ignored->second) {
      problems.push_back(fmt::format("{}: {}: {} has no meaning here; leave it out", file.string(),
                                     key, value.dump()));
    }
  }
  if (!problems.empty()) refuse(problems);
  check(arguments);
  return arguments;
}

void check(const TrainingArguments& arguments) {
  std::vector<std::string> problems;
  const auto require = [&](bool good, std::string text) {
    if (!good) problems.push_back(std::move(text));
  };
  const auto one_of = [&](const char* key, const std::string& value,
                          std::vector<std::string> words) {
    if (std::ranges::find(words, value) != words.end()) return;
    const auto near = nearest(value, words);
    problems.push_back(fmt::format("{}: '{}'; there are {}{}", key, value, fmt::join(words, ", "),
                                   near ? fmt::format(", did you mean {}?", *near) : ""));
  };
  one_of("optim", arguments.optim,
         {"adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "lion", "adafactor"});
  one_of("logging_strategy", arguments.logging_strategy, {"steps", "epoch", "no"});
  one_of("eval_strategy", arguments.eval_strategy, {"steps", "epoch", "no"});
  one_of("save_strategy", arguments.save_strategy, {"steps", "epoch", "no", "best"});
  require(arguments.per_device_train_batch_size >= 1, "per_device_train_batch_size: below 1");
  require(arguments.per_device_eval_batch_size >= 1, "per_device_eval_batch_size: below 1");
  require(arguments.gradient_accumulation_steps >= 1, "gradient_accumulation_steps: below 1");
  require(arguments.max_steps > 0 || arguments.num_train_epochs > 0,
          "num_train_epochs: must be above 0 without max_steps");
  require(arguments.logging_steps > 0, "logging_steps: must be above 0");
  require(arguments.save_steps > 0, "save_steps: must be above 0");
  require(arguments.eval_steps >= 0, "eval_steps: must not be negative");
  require(!(arguments.bf16 && arguments.fp16), "bf16 and fp16: one of them");
  require(arguments.save_total_limit >= 0, "save_total_limit: must not be negative");
  require(!arguments.load_best_model_at_end || arguments.eval_strategy != "no",
          "load_best_model_at_end: needs an eval_strategy");
  require(!arguments.load_best_model_at_end || arguments.save_strategy == "best" ||
              arguments.save_strategy == arguments.eval_strategy,
          "load_best_model_at_end: save_strategy must be eval_strategy, or best");
  require(arguments.save_strategy != "best" || arguments.eval_strategy != "no",
          "save_strategy: best needs an eval_strategy");
  if (!problems.empty()) refuse(problems);
}

}  // namespace trireme
