// Two models that train against each other: one makes points, the other tells them from those on a
// circle. Both have their optimizer; both go through the same accelerator.
//
//   mpirun -n 2 pair out
#include <trireme/trireme.hpp>

#include <cmath>
#include <cstdio>
#include <filesystem>

struct Circle {
  std::size_t size() const { return 256; }
  at::Tensor get(std::size_t i) const {
    const double angle = 2 * M_PI * static_cast<double>(i) / 256;
    return torch::tensor(
        {static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))});
  }
};

torch::nn::Sequential network(std::int64_t in, std::int64_t out) {
  return torch::nn::Sequential(torch::nn::Linear(in, 32), torch::nn::Tanh(),
                               torch::nn::Linear(32, out));
}

void set_trains(torch::nn::Sequential& net, bool trains) {
  for (auto& parameter : net->parameters()) parameter.requires_grad_(trains);
}

int main(int argc, char** argv) {
  trireme::Context context(argc, argv);
  trireme::Accelerator accelerator(context,
                                   {.gradient_accumulation_steps = 4 / context.world().size()});
  torch::manual_seed(7);
  auto maker = network(2, 2);
  auto judge = network(2, 1);
  torch::optim::Adam of_maker(maker->parameters(), torch::optim::AdamOptions(3e-3));
  torch::optim::Adam of_judge(judge->parameters(), torch::optim::AdamOptions(3e-3));
  auto [make, tell, maker_optimizer, judge_optimizer, loader] =
      accelerator.prepare(maker, judge, of_maker, of_judge,
                          trireme::make_loader(Circle(), {.batch_size = 16, .shuffle = true}));

  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& real : loader) {
      accelerator.accumulate([&, &make = make, &tell = tell, &maker_optimizer = maker_optimizer,
                              &judge_optimizer = judge_optimizer] {
        // Drawn anew for every batch, whichever rank has it.
        const auto made = make->forward(torch::randn({real.size(0), 2}));
        accelerator.backward(torch::softplus(-tell->forward(real)).mean() +
                             torch::softplus(tell->forward(made.detach())).mean());
        set_trains(judge, false);  // the maker's gradients pass through the judge and leave none
        accelerator.backward(torch::softplus(-tell->forward(made)).mean());
        set_trains(judge, true);
        judge_optimizer.step();
        maker_optimizer.step();
      });
    }
  }
  if (accelerator.is_main_process())
    std::printf("loss of the maker %.9g\n", accelerator.last_loss());
  const std::filesystem::path out = argc > 1 ? argv[1] : "out";
  accelerator.save_model(make, out / "maker");
  accelerator.save_model(tell, out / "judge");
}
