// The user's loop: what a person writes, with every strategy, on any number of ranks, against plain
// torch and against itself.
#include "trireme/train/accelerator.hpp"

#include "support/golden.hpp"
#include "support/temp_dir.hpp"
#include "trireme/base/error.hpp"

#include "train/fixtures.hpp"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <fstream>

namespace trireme {
namespace {

using namespace trireme::testing;
using ::testing::HasSubstr;

// Trains on 24 samples for `epochs`, as one rank with the accumulation that makes the global batch
// 8, or as many ranks with less. Returns the weights.
struct Setting {
  AcceleratorOptions options = {};
  std::int64_t epochs = 2;
  std::int64_t samples = 24;
  bool dropout = true;
  double clip = 0;
};

template <class Optimizer = torch::optim::AdamW, class Options = torch::optim::AdamWOptions>
Weights train_it(const Setting& setting, const Options& options = Options(1e-2)) {
  AcceleratorOptions how = setting.options;
  how.gradient_accumulation_steps = 4 / context().world().size();
  Accelerator accelerator(context(), how);
  torch::manual_seed(1);
  Net module(setting.dropout);
  Optimizer torch_optimizer(module->parameters(), options);
  torch::optim::StepLR torch_schedule(torch_optimizer, 2, 0.5);
  auto [model, optimizer, schedule, loader] =
      accelerator.prepare(module, torch_optimizer, torch_schedule,
                          make_loader(Points{setting.samples}, {.batch_size = 2, .shuffle = true}));
  for (std::int64_t epoch = 0; epoch < setting.epochs; ++epoch) {
    for (auto& batch : loader) {
      accelerator.accumulate(
          model, [&, &model = model, &optimizer = optimizer, &schedule = schedule] {
            const auto loss = torch::mse_loss(model->forward(batch.data), batch.target);
            accelerator.backward(loss);
            if (setting.clip > 0) accelerator.clip_grad_norm(model, setting.clip);
            optimizer.step();
            schedule.step();
            optimizer.zero_grad();
          });
    }
  }
  return whole(accelerator, model);
}

bool exact() { return context().world().size() != 3; }

class Strategies : public ::testing::TestWithParam<const char*> {};

// The reference is the same loop on one rank, written down by plain torch.
Weights by_plain_torch(double clip) {
  torch::manual_seed(1);
  Net module(false);
  torch::optim::AdamW optimizer(module->parameters(), torch::optim::AdamWOptions(1e-2));
  torch::optim::StepLR schedule(optimizer, 2, 0.5);
  auto loader = make_loader(Points{24}, {.batch_size = 2, .shuffle = true});
  loader.core()->deal({{}, Rank(0), AcceleratorOptions{}.seed, &context().world(), {}, {}});
  for (int epoch = 0; epoch < 2; ++epoch) {
    int batches = 0;
    for (auto& batch : loader) {
      (torch::mse_loss(module->forward(batch.data), batch.target) / 4).backward();
      if (++batches % 4 != 0) continue;
      if (clip > 0) torch::nn::utils::clip_grad_norm_(module->parameters(), clip);
      optimizer.step();
      schedule.step();
      optimizer.zero_grad();
    }
  }
  return weights_of(*module);
}

TEST_P(Strategies, train_as_plain_torch_does) {
  if (!exact()) GTEST_SKIP() << "4 micro-batches are not divided by 3 ranks";
  for (const double clip : {0.0, 0.05}) {
    const Weights got =
        train_it({.options = {.strategy = GetParam()}, .dropout = false, .clip = clip});
    expect_near(got, by_plain_torch(clip), 2e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(all, Strategies, ::testing::Values("ddp", "zero1", "zero2", "zero3"));

// The numbers of one rank, written by the first run of this test on one rank in the same build.
TEST(Ranks, give_the_same_bits) {
  if (!exact()) GTEST_SKIP() << "4 micro-batches are not divided by 3 ranks";
  const Weights here = train_it({.options = {.strategy = "zero3"}});
  for (const char* strategy : {"ddp", "zero1", "zero2"}) {
    expect_equal(train_it({.options = {.strategy = strategy}}), here);
  }
  // Dispatched and split loaders see the same samples in the same places.
  Setting dispatched{.options = {.dataloader = {.dispatch_batches = true}}};
  expect_equal(train_it(dispatched), here);
  same_on_any_ranks("accelerator.fp32", here);
  for (const char* precision : {"bf16", "fp16"})
    same_on_any_ranks(std::string("accelerator.") + precision,
                      train_it({.options = {.mixed_precision = precision}}));
}

TEST(Ranks, give_the_same_bits_with_every_optimizer) {
  if (!exact()) GTEST_SKIP() << "4 micro-batches are not divided by 3 ranks";
  using namespace torch::optim;
  same_on_any_ranks("adam", train_it<Adam, AdamOptions>({}, AdamOptions(1e-2).amsgrad(true)));
  same_on_any_ranks("sgd", train_it<SGD, SGDOptions>({}, SGDOptions(1e-2).momentum(0.9)));
  same_on_any_ranks("adagrad", train_it<Adagrad, AdagradOptions>({}, AdagradOptions(1e-2)));
}

// complaint: short_last_group_steps_with_too_small_gradients
TEST(Accumulation, divides_a_short_last_group_by_what_it_had) {
  if (context().world().size() != 1) GTEST_SKIP() << "one rank";
  Accelerator accelerator(context(), {.gradient_accumulation_steps = 4});
  torch::manual_seed(1);
  Net module(false);
  Net plain(false);
  copy_weights(*module, *plain);
  torch::optim::SGD torch_optimizer(module->parameters(), 0.1);
  auto [model, optimizer, loader] =
      accelerator.prepare(module, torch_optimizer, make_loader(Points{6}, {.batch_size = 1}));
  for (auto& batch : loader) {
    accelerator.accumulate([&, &model = model, &optimizer = optimizer] {
      accelerator.backward(torch::mse_loss(model->forward(batch.data), batch.target));
      optimizer.step();
    });
  }
  torch::optim::SGD reference(plain->parameters(), 0.1);
  for (const auto& [first, last] : std::vector<std::pair<int, int>>{{0, 4}, {4, 6}}) {
    reference.zero_grad();
    for (int i = first; i < last; ++i) {
      const auto sample = Points{6}.get(static_cast<std::size_t>(i));
      (torch::mse_loss(plain->forward(sample.data.unsqueeze(0)), sample.target.unsqueeze(0)) /
       (last - first))
          .backward();
    }
    reference.step();
  }
  expect_near(whole(accelerator, model), weights_of(*plain), 1e-6);
}

TEST(Accumulation, steps_where_accelerate_does) {
  std::ifstream file(test_data() / "train" / "accumulate.json");
  const auto cases = nlohmann::json::parse(file)["cases"];
  EXPECT_EQ(cases.size(), 72U);
  for (const auto& c : cases) {
    Accelerator accelerator(context(), {.gradient_accumulation_steps = c["accumulation_steps"],
                                        .sync_with_dataloader = c["sync_with_dataloader"]});
    auto loader = accelerator.prepare(
        make_loader(Points{c["micro_batches"].get<std::int64_t>() * context().world().size()}, {}));
    std::vector<std::vector<bool>> seen;
    for (int epoch = 0; epoch < 2; ++epoch) {
      seen.emplace_back();
      for ([[maybe_unused]] auto& batch : loader)
        accelerator.accumulate([&] { seen.back().push_back(accelerator.sync_gradients()); });
    }
    EXPECT_EQ(nlohmann::json(seen), c["sync_gradients"]) << c;
  }
}

// A loss that is summed over a number of targets: the mean over all of them, whoever has how many.
TEST(Accumulation, divides_sums_by_the_targets_of_all_ranks) {
  Accelerator accelerator(context(), {.gradient_accumulation_steps = 2});
  torch::manual_seed(1);
  Net module(false);
  Net plain(false);
  copy_weights(*module, *plain);
  torch::optim::SGD torch_optimizer(module->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(module, torch_optimizer);
  const int ranks = accelerator.num_processes();
  const auto batch_of = [](std::int64_t m) {
    return std::pair(torch::full({m + 1, 4}, 0.1F * static_cast<float>(m)),
                     torch::ones({m + 1, 3}));
  };
  for (int turn = 0; turn < 2; ++turn) {
    accelerator.accumulate([&, &model = model, &optimizer = optimizer] {
      const auto [x, y] = batch_of(turn * ranks + accelerator.process_index());
      const auto loss = (model->forward(x) - y).pow(2).sum();
      accelerator.backward(loss, {.num_targets = y.numel()});
      optimizer.step();
    });
  }
  torch::optim::SGD reference(plain->parameters(), 0.1);
  at::Tensor sum = torch::zeros({});
  std::int64_t targets = 0;
  for (std::int64_t m = 0; m < 2 * ranks; ++m) {
    const auto [x, y] = batch_of(m);
    sum = sum + (plain->forward(x) - y).pow(2).sum();
    targets += y.numel();
  }
  (sum / targets).backward();
  reference.step();
  expect_near(whole(accelerator, model), weights_of(*plain), 1e-6);
  EXPECT_NEAR(accelerator.last_loss(), (sum / targets).item<double>(), 1e-5);
}

// complaint: scheduler_advances_n_times_per_step
TEST(Schedulers, tick_once_a_step_on_any_number_of_ranks) {
  Accelerator accelerator(context(), {.gradient_accumulation_steps = 2});
  Net module(false);
  torch::optim::SGD torch_optimizer(module->parameters(), 0.1);
  torch::optim::StepLR torch_schedule(torch_optimizer, 1, 0.5);
  auto [schedule, optimizer, model] = accelerator.prepare(torch_schedule, torch_optimizer, module);
  std::vector<double> rates;
  for (int i = 0; i < 6; ++i) {
    accelerator.accumulate([&, &model = model, &optimizer = optimizer, &schedule = schedule] {
      accelerator.backward(model->forward(torch::ones({1, 4})).sum());
      optimizer.step();
      schedule.step();
    });
    rates.push_back(optimizer.learning_rate());
  }
  // The first tick of torch's StepLR does nothing.
  EXPECT_EQ(rates, (std::vector{0.1, 0.1, 0.1, 0.05, 0.05, 0.025}));
}

TEST(Schedulers, of_ours_drive_optimizers_of_torch_and_ours) {
  const optim::ScheduleOptions linear{.type = "linear", .warmup_steps = 2, .total_steps = 6};
  const auto rates_with = [&](auto&& optimizer_like, Net& module) {
    Accelerator accelerator(context());
    auto [model, optimizer, schedule] = accelerator.prepare(module, optimizer_like, linear);
    std::vector<double> rates;
    for (int i = 0; i < 6; ++i) {
      rates.push_back(optimizer.learning_rate());
      accelerator.backward(model->forward(torch::ones({1, 4})).sum());
      optimizer.step();
      schedule.step();
    }
    return rates;
  };
  const optim::Schedule expected(
      {.type = "linear", .warmup_steps = 2, .total_steps = 6, .base_lr = 0.1});
  std::vector<double> rates;
  for (int i = 0; i < 6; ++i) rates.push_back(expected.rate(0.1, i));
  Net first(false);
  torch::optim::SGD sgd(first->parameters(), 0.1);
  EXPECT_EQ(rates_with(sgd, first), rates);
  Net second(false);
  EXPECT_EQ(rates_with(optim::OptimizerOptions{.type = "lion", .lr = 0.1}, second), rates);
}

TEST(Groups, have_rates_and_decay_of_their_own) {
  Accelerator accelerator(context());
  torch::manual_seed(1);
  Net module(false);
  Net plain(false);
  copy_weights(*module, *plain);
  const auto optimizer_of = [](Net& net) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(net->first->parameters(),
                        std::make_unique<torch::optim::AdamWOptions>(
                            torch::optim::AdamWOptions(1e-2).weight_decay(0.3)));
    // The last layer's bias is in no group: it stays.
    groups.emplace_back(std::vector<at::Tensor>{net->last->weight},
                        std::make_unique<torch::optim::AdamWOptions>(
                            torch::optim::AdamWOptions(3e-2).betas({0.5, 0.6})));
    return torch::optim::AdamW(groups, torch::optim::AdamWOptions(1e-3));
  };
  auto mine = optimizer_of(module);
  auto theirs = optimizer_of(plain);
  auto [model, optimizer] = accelerator.prepare(module, mine);
  for (int i = 0; i < 3; ++i) {
    const auto x = torch::full({2, 4}, 0.3F * static_cast<float>(i));
    accelerator.backward(model->forward(x).pow(2).mean());
    optimizer.step();
    theirs.zero_grad();
    plain->forward(x).pow(2).mean().backward();
    theirs.step();
  }
  expect_near(whole(accelerator, model), weights_of(*plain), 2e-6);
}

TEST(Optimizers, that_cannot_be_sharded_are_refused_with_the_list) {
  Accelerator accelerator(context());
  Net module(false);
  torch::optim::RMSprop rmsprop(module->parameters());
  try {
    accelerator.prepare(module, rmsprop);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message, HasSubstr("RMSprop"));
    EXPECT_THAT(error.hint, HasSubstr("AdamW, Adam, SGD or Adagrad"));
  }
}

TEST(Gathering, gives_every_sample_once) {
  for (const bool dispatch : {false, true}) {
    Accelerator accelerator(context(), {.dataloader = {.dispatch_batches = dispatch}});
    auto loader = accelerator.prepare(make_loader(Points{23}, {.batch_size = 3}));
    std::vector<std::int64_t> seen;
    for (auto& batch : loader) {
      const auto all = accelerator.gather_for_metrics(std::make_pair(batch.index, batch.data));
      EXPECT_EQ(all.first.size(0), all.second.size(0));
      for (std::int64_t i = 0; i < all.first.size(0); ++i)
        seen.push_back(all.first[i].item<std::int64_t>());
    }
    ASSERT_EQ(seen.size(), 23U);
    for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<std::int64_t>(i));
  }
}

TEST(Gathering, knows_all_of_accelerates_words) {
  Accelerator accelerator(context());
  const int ranks = accelerator.num_processes();
  const int me = accelerator.process_index();
  const auto mine = torch::full({2, 3}, static_cast<float>(me));
  EXPECT_EQ(accelerator.gather(mine).size(0), 2 * ranks);
  EXPECT_EQ(accelerator.gather(torch::tensor(1.5)).size(0), ranks);
  EXPECT_EQ(accelerator.reduce(mine).sum().item<float>(),
            6.0F * static_cast<float>(ranks * (ranks - 1)) / 2);
  EXPECT_EQ(accelerator.reduce(mine, "mean")[0][0].item<float>(),
            static_cast<float>(ranks - 1) / 2);
  const auto padded = accelerator.pad_across_processes(torch::ones({me + 1, 2}), 0, -1);
  EXPECT_EQ(padded.size(0), ranks);
  EXPECT_EQ((padded == -1).sum().item<std::int64_t>(), 2 * (ranks - 1 - me));
  EXPECT_EQ(accelerator.broadcast(std::string(me == 0 ? "zero" : "other")), "zero");
  EXPECT_EQ(accelerator.gather_object(std::vector<std::string>{std::to_string(me)}).size(),
            static_cast<std::size_t>(ranks));
  std::int64_t total = 0;
  for (const std::int64_t n : accelerator.gather_object(std::vector<std::int64_t>{
           std::ssize(accelerator.split_between_processes(std::vector<int>{1, 2, 3, 4, 5}))}))
    total += n;
  EXPECT_EQ(total, 5);
  EXPECT_EQ(accelerator.split_between_processes(torch::arange(5), true).size(0),
            (5 + ranks - 1) / ranks);
  EXPECT_FALSE(accelerator.check_trigger());
  if (accelerator.is_last_process()) accelerator.set_trigger();
  EXPECT_TRUE(accelerator.check_trigger());
  EXPECT_FALSE(accelerator.check_trigger());
  if (ranks > 1) {
    EXPECT_THROW(accelerator.gather(torch::ones({2, me + 1})), Error);
    EXPECT_THROW(accelerator.reduce(torch::ones({2, me + 1})), Error);
  }
  EXPECT_THROW(accelerator.reduce(mine, "median"), Error);
  int count = 0;
  accelerator.main_process_first([&] { ++count; });
  accelerator.on_main_process([&] { ++count; });
  accelerator.on_last_process([&] { ++count; });
  EXPECT_EQ(count, 1 + (me == 0 ? 1 : 0) + (me == ranks - 1 ? 1 : 0));
}

TEST(Joining, makes_uneven_loaders_even_without_counting_twice) {
  Accelerator accelerator(context(), {.dataloader = {.even_batches = false}});
  torch::manual_seed(1);
  Net module(false);
  Net plain(false);
  copy_weights(*module, *plain);
  torch::optim::SGD torch_optimizer(module->parameters(), 0.1);
  const std::int64_t samples = 2 * accelerator.num_processes() + 1;
  auto [model, optimizer, loader] =
      accelerator.prepare(module, torch_optimizer, make_loader(Points{samples}, {.batch_size = 1}));
  std::int64_t steps = 0;
  accelerator.join_uneven_inputs([&, &model = model, &optimizer = optimizer, &loader = loader] {
    for (auto& batch : loader) {
      ++steps;
      accelerator.backward(torch::mse_loss(model->forward(batch.data), batch.target));
      optimizer.step();
    }
  });
  EXPECT_EQ(steps, 3);
  torch::optim::SGD reference(plain->parameters(), 0.1);
  const std::int64_t ranks = accelerator.num_processes();
  for (std::int64_t first = 0; first < samples; first += ranks) {
    reference.zero_grad();
    const std::int64_t last = std::min(samples, first + ranks);
    for (std::int64_t i = first; i < last; ++i) {
      const auto sample = Points{samples}.get(static_cast<std::size_t>(i));
      (torch::mse_loss(plain->forward(sample.data.unsqueeze(0)), sample.target.unsqueeze(0)) /
       (last - first))
          .backward();
    }
    reference.step();
  }
  expect_near(whole(accelerator, model), weights_of(*plain), 1e-6);
}

TEST(Mistakes, are_named) {
  Accelerator accelerator(context());
  Net module(false);
  Net other(false);
  torch::optim::SGD torch_optimizer(module->parameters(), 0.1);
  torch::optim::SGD foreign(other->parameters(), 0.1);
  const auto message_of = [](const std::function<void()>& action) -> std::string {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::kConfig);
      return error.message + "; " + error.hint;
    }
    return "nothing";
  };
  EXPECT_THAT(message_of([&] { accelerator.prepare(foreign); }), HasSubstr("in no prepared model"));
  auto [model, optimizer] = accelerator.prepare(module, torch_optimizer);
  EXPECT_THAT(message_of([&, &optimizer = optimizer] { optimizer.step(); }),
              HasSubstr("without a backward()"));
  EXPECT_THAT(message_of([&, &model = model] {
                accelerator.backward(model->forward(torch::ones({1, 4})));
              }),
              HasSubstr("not a single number"));
  EXPECT_THAT(message_of([&] { accelerator.backward(torch::ones({1}).requires_grad_().sum()); }),
              HasSubstr("no prepared model"));
  EXPECT_THAT(message_of([&] { Accelerator wrong(context(), {.mixed_precision = "bf61"}); }),
              HasSubstr("did you mean 'bf16'"));
  EXPECT_THAT(message_of([&] { accelerator.save_state(); }),
              HasSubstr("automatic_checkpoint_naming"));
  EXPECT_THAT(message_of([&] { make_tracker("tensorbord", "."); }), HasSubstr("tensorboard"));
}

}  // namespace
}  // namespace trireme
