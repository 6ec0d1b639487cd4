// A loop as one writes it with LibTorch: one process, one device.
#include "data.hpp"
#include <torch/torch.h>

#include <cstdio>

int main() {
  torch::manual_seed(7);
  auto module = make_model();
  torch::optim::AdamW optimizer(module->parameters(), torch::optim::AdamWOptions(1e-2));
  torch::optim::StepLR schedule(optimizer, 10, 0.5);
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Waves().map(torch::data::transforms::Stack<>()), 8);

  for (int epoch = 0; epoch < 4; ++epoch) {
    double loss_of_last = 0;
    for (auto& batch : *loader) {
      auto loss = torch::mse_loss(module->forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      schedule.step();
      optimizer.zero_grad();
      loss_of_last = loss.item<double>();
    }
    std::printf("epoch %d loss %.6f\n", epoch, loss_of_last);
  }
}
