// The Trainer: what is logged, evaluated, saved and stopped when, and that it goes on to the bit.
#include "trireme/train/user_trainer.hpp"

#include "trireme/base/error.hpp"
#include "trireme/ckpt/checkpoint.hpp"

#include "train/fixtures.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>

namespace trireme {
namespace {

using namespace trireme::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

fs::path shared_folder(const std::string& name) {
  const auto folder = fs::current_path() / (name + "." + std::to_string(context().world().size()));
  context().world().agree("folder", [&] {
    if (context().world().is_root()) fs::remove_all(folder);
  });
  return folder;
}

const auto mse = [](PreparedModel<NetImpl>& model, Point& batch) {
  return torch::mse_loss(model->forward(batch.data), batch.target);
};

// 24 samples, 8 a step on 1, 2 and 4 ranks: 3 steps an epoch.
TrainingArguments arguments_in(const fs::path& folder) {
  TrainingArguments arguments;
  arguments.output_dir = folder;
  arguments.per_device_train_batch_size = 2;
  arguments.per_device_eval_batch_size = 2;
  arguments.gradient_accumulation_steps = 4 / context().world().size();
  arguments.learning_rate = 1e-2;
  arguments.num_train_epochs = 2;
  arguments.logging_steps = 2;
  arguments.save_strategy = "no";
  return arguments;
}

auto trainer_of(const TrainingArguments& arguments) {
  torch::manual_seed(1);
  auto trainer = std::make_unique<Trainer<NetImpl, Points, decltype(mse)>>(
      context(), arguments, Net(true).ptr(), Points{24}, mse);
  trainer->evaluate_on(Points{7});
  return trainer;
}

class Names : public TrainerCallback {
 public:
  std::vector<std::string> seen;
  void on_train_begin(TrainerEvent) override { seen.emplace_back("train["); }
  void on_train_end(TrainerEvent) override { seen.emplace_back("]train"); }
  void on_epoch_begin(TrainerEvent) override { seen.emplace_back("epoch["); }
  void on_epoch_end(TrainerEvent) override { seen.emplace_back("]epoch"); }
  void on_step_begin(TrainerEvent) override { seen.emplace_back("step["); }
  void on_pre_optimizer_step(TrainerEvent) override { seen.emplace_back("pre"); }
  void on_optimizer_step(TrainerEvent) override { seen.emplace_back("opt"); }
  void on_step_end(TrainerEvent) override { seen.emplace_back("]step"); }
  void on_log(TrainerEvent, LogValues&) override { seen.emplace_back("log"); }
  void on_evaluate(TrainerEvent, const LogValues&) override { seen.emplace_back("eval"); }
  void on_save(TrainerEvent) override { seen.emplace_back("save"); }
};

TEST(Trainer, tells_callbacks_in_transformers_order) {
  if (context().world().size() == 3) GTEST_SKIP() << "4 micro-batches are not divided by 3 ranks";
  TrainingArguments arguments = arguments_in(shared_folder("callbacks"));
  arguments.num_train_epochs = 1;
  arguments.eval_strategy = "epoch";
  arguments.save_strategy = "epoch";
  const auto trainer = trainer_of(arguments);
  const auto names = std::make_shared<Names>();
  trainer->add_callback(names);
  trainer->train();
  EXPECT_THAT(names->seen, ElementsAre("train[", "epoch[", "step[", "pre", "opt", "]step", "step[",
                                       "pre", "opt", "]step", "log", "step[", "pre", "opt", "]step",
                                       "]epoch", "log", "eval", "save", "log", "]train"));
}

TEST(Trainer, logs_under_transformers_names) {
  if (context().world().size() == 3) GTEST_SKIP() << "4 micro-batches are not divided by 3 ranks";
  TrainingArguments arguments = arguments_in(shared_folder("logging"));
  arguments.eval_strategy = "steps";
  arguments.eval_steps = 3;
  arguments.warmup_steps = 2;
  const auto trainer = trainer_of(arguments);
  trainer->compute_metrics(
      [](PreparedModel<NetImpl>& model, Point& batch) {
        return torch::cat({model->forward(batch.data), batch.index.unsqueeze(1)}, 1);
      },
      [](const at::Tensor& outputs) {
        const at::Tensor order = outputs.select(1, 3);
        EXPECT_TRUE(torch::equal(order, torch::arange(7, at::kFloat)));
        return LogValues{{"count", static_cast<double>(outputs.size(0))}};
      });
  const TrainOutput output = trainer->train();
  EXPECT_EQ(output.global_step, 6);
  const auto& history = trainer->state().log_history;
  ASSERT_EQ(history.size(), 6U);  // 3 windows, 2 evaluations, the end
  EXPECT_EQ(history[0].at("step"), 2);
  EXPECT_EQ(history[0].at("learning_rate"), 0.5e-2);  // the second update's, of two of warmup
  EXPECT_NEAR(history[0].at("epoch"), 2.0 / 3, 1e-12);
  EXPECT_TRUE(history[0].contains("loss") && history[0].contains("grad_norm"));
  EXPECT_EQ(history[1].at("eval_count"), 7);
  EXPECT_EQ(history[1].at("epoch"), 1);
  EXPECT_LT(history[4].at("eval_loss"), history[1].at("eval_loss"));
  EXPECT_TRUE(history[5].contains("train_runtime") && history[5].contains("train_loss"));
  Weights numbers;
  for (std::size_t i : {0UL, 1UL, 2UL, 3UL, 4UL}) {
    for (const char* key : {"loss", "grad_norm", "eval_loss"}) {
      if (history[i].contains(key))
        numbers[key + std::to_string(i)] = torch::tensor(history[i].at(key), at::kDouble);
    }
  }
  same_on_any_ranks("trainer", numbers);
}

// complaints: rotation_deletes_the_best, resume_is_not_identical
TEST(Trainer, keeps_the_best_and_goes_on_to_the_bit) {
  if (context().world().size() == 3) GTEST_SKIP() << "4 micro-batches are not divided by 3 ranks";
  const auto folder = shared_folder("trainer");
  const auto arguments_for = [&](const std::string& name) {
    TrainingArguments arguments = arguments_in(folder / name);
    arguments.num_train_epochs = 3;
    arguments.eval_strategy = "steps";
    arguments.eval_steps = 2;
    arguments.save_strategy = "steps";
    arguments.save_steps = 2;
    arguments.save_total_limit = 1;
    arguments.load_best_model_at_end = true;
    arguments.metric_for_best_model = "wanted";
    return arguments;
  };
  // The second evaluation is the best.
  const auto with_metric = [](auto& trainer) {
    trainer.compute_metrics(
        [](PreparedModel<NetImpl>& model, Point& batch) { return model->forward(batch.data); },
        [&trainer](const at::Tensor&) {
          return LogValues{{"wanted", trainer.state().global_step == 4 ? 1.0 : 0.5}};
        });
  };
  const auto uncut = trainer_of(arguments_for("uncut"));
  with_metric(*uncut);
  uncut->train();
  EXPECT_EQ(uncut->state().best_metric, 1.0);
  EXPECT_EQ(uncut->state().best_model_checkpoint.filename(), "step-00000004");
  std::vector<std::string> left;
  for (const auto& path : ckpt::list(folder / "uncut" / "checkpoints"))
    left.push_back(path.filename());
  EXPECT_THAT(left, ElementsAre("step-00000009", "step-00000004"));

  struct StopAt : TrainerCallback {
    void on_step_end(TrainerEvent event) override {
      // One rank alone wishes it.
      if (event.state.global_step == 5 && context().world().is_root()) {
        event.control.should_training_stop = true;
        event.control.should_save = true;
      }
    }
  };
  TrainingArguments cut = arguments_for("cut");
  {
    const auto trainer = trainer_of(cut);
    with_metric(*trainer);
    trainer->add_callback(std::make_shared<StopAt>());
    EXPECT_EQ(trainer->train().global_step, 5);
  }
  cut.resume_from_checkpoint = "true";
  cut.load_best_model_at_end = false;
  const auto rest = trainer_of(cut);
  with_metric(*rest);
  EXPECT_EQ(rest->train().global_step, 9);
  TrainingArguments plain = arguments_for("plain");
  plain.load_best_model_at_end = false;
  const auto reference = trainer_of(plain);
  with_metric(*reference);
  reference->train();
  expect_equal(whole(rest->accelerator(), rest->model()),
               whole(reference->accelerator(), reference->model()));
  EXPECT_EQ(rest->state().epoch, 3);
}

TEST(Trainer, stops_early) {
  TrainingArguments arguments = arguments_in(shared_folder("early"));
  arguments.num_train_epochs = 20;
  arguments.eval_strategy = "epoch";
  arguments.metric_for_best_model = "constant";
  arguments.per_device_train_batch_size = 24;
  const auto trainer = trainer_of(arguments);
  trainer->compute_metrics(
      [](PreparedModel<NetImpl>& model, Point& batch) { return model->forward(batch.data); },
      [](const at::Tensor&) {
        return LogValues{{"constant", 1.0}};
      });
  trainer->add_callback(std::make_shared<EarlyStopping>(3));
  trainer->train();
  EXPECT_NEAR(trainer->state().epoch, 4, 1e-9);
}

TEST(TrainingArgumentsFile, has_transformers_keys) {
  const auto folder = shared_folder("arguments");
  auto file = folder / "arguments.json";
  const auto write = [&](const std::string& text) {
    context().world().agree("write", [&] {
      if (!context().world().is_root()) return;
      fs::create_directories(folder);
      std::ofstream(file) << text;
    });
  };
  write(R"({"output_dir": "out", "learning_rate": 1e-4, "max_steps": 10, "warmup_steps": 0.1,
            "report_to": "tensorboard", "bf16": true, "greater_is_better": null, "torch_compile": false,
            "lr_scheduler_kwargs": {"num_cycles": 2}, "resume_from_checkpoint": true})");
  const TrainingArguments arguments = load_training_arguments(file);
  EXPECT_EQ(arguments.output_dir, "out");
  EXPECT_EQ(arguments.learning_rate, 1e-4);
  EXPECT_EQ(arguments.report_to, std::vector<std::string>{"tensorboard"});
  EXPECT_EQ(arguments.lr_scheduler_kwargs.at("num_cycles"), "2");
  EXPECT_EQ(arguments.resume_from_checkpoint, "true");
  file = folder / "wrong.json";  // others may still read the first
  write(
      R"({"learning_rat": 1, "max_steps": "ten", "torch_compile": true, "eval_strategy": "step"})");
  try {
    load_training_arguments(file);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message,
                HasSubstr("unknown key 'learning_rat'; did you mean 'learning_rate'?"));
    EXPECT_THAT(error.message, HasSubstr("max_steps: \"ten\" is of the wrong type"));
    EXPECT_THAT(error.message, HasSubstr("torch_compile: true has no meaning here"));
  }
  TrainingArguments wrong;
  wrong.save_strategy = "best";
  wrong.optim = "adamw";
  try {
    check(wrong);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message, HasSubstr("save_strategy: best needs an eval_strategy"));
    EXPECT_THAT(error.message, HasSubstr("optim: 'adamw'"));
  }
}

}  // namespace
}  // namespace trireme
