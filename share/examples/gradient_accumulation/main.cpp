// Accumulation: a step is 4 micro-batches, shared among the ranks there are. The weights come out
// the same to the bit on 1, 2 and 4 ranks.
//
//   mpirun -n 2 gradient_accumulation out
#include <trireme/trireme.hpp>

#include <cstdio>

struct Sample {
  at::Tensor x, y;
  auto fields() { return std::tie(x, y); }
};

struct Numbers {
  std::size_t size() const { return 48; }  // 12 micro-batches: three steps an epoch
  Sample get(std::size_t i) const {
    const auto x = torch::arange(8, torch::kFloat) * 0.1F + 0.03F * static_cast<float>(i);
    return {x, torch::sin(x)};
  }
};

int main(int argc, char** argv) {
  trireme::Context context(argc, argv);
  trireme::Accelerator accelerator(
      context, {.gradient_accumulation_steps = 4 / context.world().size(), .strategy = "zero3"});
  torch::manual_seed(7);
  torch::nn::Sequential net(torch::nn::Linear(8, 64), torch::nn::GELU(), torch::nn::Dropout(0.1),
                            torch::nn::Linear(64, 8));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(3e-3));
  auto [model, optimizer, loader] = accelerator.prepare(
      net, adamw, trireme::make_loader(Numbers(), {.batch_size = 4, .shuffle = true}));

  for (int epoch = 0; epoch < 5; ++epoch) {
    for (auto& batch : loader) {
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        accelerator.backward(torch::mse_loss(model->forward(batch.x), batch.y));
        accelerator.clip_grad_norm(model, 1.0);
        optimizer.step();
        optimizer.zero_grad();
      });
    }
    if (accelerator.is_main_process())
      std::printf("epoch %d loss %.9g norm %.9g\n", epoch, accelerator.last_loss(),
                  accelerator.last_grad_norm());
  }
  accelerator.save_model(model, argc > 1 ? argv[1] : "out");
}
