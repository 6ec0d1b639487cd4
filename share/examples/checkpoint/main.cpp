// Checkpoint and resume: `stop` ends the run in the middle of an epoch; started again, on any number
// of ranks, it goes on as if nothing had been.
//
//   mpirun -n 2 checkpoint out stop
//   mpirun -n 4 checkpoint out
#include <trireme/trireme.hpp>

#include <cstdio>
#include <filesystem>
#include <string>

struct Sample {
  at::Tensor x, y;
  auto fields() { return std::tie(x, y); }
};

struct Numbers {
  std::size_t size() const { return 64; }
  Sample get(std::size_t i) const {
    const auto x = torch::arange(8, torch::kFloat) * 0.1F + 0.03F * static_cast<float>(i);
    return {x, torch::sin(x)};
  }
};

// Something of one's own that belongs to the state.
struct Best {
  double loss = 1e9;
  std::string state_dict() const { return std::to_string(loss); }
  void load_state_dict(const std::string& text) { loss = std::stod(text); }
};

int main(int argc, char** argv) {
  const std::filesystem::path out = argc > 1 ? argv[1] : "out";
  const bool stop = argc > 2 && std::string(argv[2]) == "stop";
  trireme::Context context(argc, argv);
  trireme::Accelerator accelerator(
      context, {.gradient_accumulation_steps = 4 / context.world().size(), .strategy = "zero2"});
  torch::manual_seed(7);
  torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::GELU(), torch::nn::Dropout(0.1),
                            torch::nn::Linear(64, 8));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(3e-3));
  torch::optim::StepLR step_lr(adamw, 6, 0.5);
  auto [model, optimizer, schedule, loader] = accelerator.prepare(
      net, adamw, step_lr, trireme::make_loader(Numbers(), {.batch_size = 4, .shuffle = true}));
  Best best;
  accelerator.register_for_checkpointing("best", best);
  if (std::filesystem::exists(out / "state")) {
    accelerator.load_state(out / "state");
    accelerator.print("going on at step " + std::to_string(accelerator.completed_steps()));
  }

  for (auto epoch = loader.epoch(); epoch < 3; ++epoch) {
    for (auto& batch : loader) {
      accelerator.accumulate(
          model, [&, &model = model, &optimizer = optimizer, &schedule = schedule] {
            accelerator.backward(torch::mse_loss(model->forward(batch.x), batch.y));
            optimizer.step();
            schedule.step();
            if (accelerator.sync_gradients())
              best.loss = std::min(best.loss, accelerator.last_loss());
          });
      if (stop && accelerator.completed_steps() == 6) {
        accelerator.save_state(out / "state");
        accelerator.print("stopped at step 6");
        return 0;
      }
    }
  }
  if (accelerator.is_main_process()) std::printf("best loss %.9g\n", best.loss);
  accelerator.save_model(model, out);
}
