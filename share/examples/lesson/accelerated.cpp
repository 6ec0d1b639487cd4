// The same loop on any number of ranks: the lines marked with * are those that changed.
#include <trireme/trireme.hpp>  // *

#include "data.hpp"
#include <torch/torch.h>

#include <string>

int main(int argc, char** argv) {
  trireme::Context context(argc, argv);       // *
  trireme::Accelerator accelerator(context);  // *
  torch::manual_seed(7);
  auto module = make_model();
  torch::optim::AdamW torch_optimizer(module->parameters(), torch::optim::AdamWOptions(1e-2));
  torch::optim::StepLR torch_schedule(torch_optimizer, 10, 0.5);
  auto data = trireme::make_loader<torch::data::samplers::SequentialSampler>(  // *
      Waves().map(torch::data::transforms::Stack<>()), 8);
  auto [model, optimizer, schedule, loader] =
      accelerator.prepare(module, torch_optimizer, torch_schedule, data);  // *

  for (int epoch = 0; epoch < 4; ++epoch) {
    for (auto& batch : loader) {
      auto loss = torch::mse_loss(model->forward(batch.data), batch.target);
      accelerator.backward(loss);  // *
      optimizer.step();
      schedule.step();
      optimizer.zero_grad();
    }
    accelerator.print("epoch " + std::to_string(epoch) + " loss " +
                      std::to_string(accelerator.last_loss()));
  }
}
