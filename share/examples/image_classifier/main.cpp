// An image classifier: circles, squares and crosses that the program draws itself, a convolutional
// network with batch norm, accuracy over an evaluation whose last batch is not full.
//
//   mpirun -n 2 image_classifier out
#include <trireme/trireme.hpp>

#include <cmath>
#include <cstdio>

// Image i is drawn from i alone, so that all ranks have the same data set without a file.
struct Shapes : torch::data::datasets::Dataset<Shapes> {
  explicit Shapes(std::size_t first, std::size_t count) : first_(first), count_(count) {}
  torch::data::Example<> get(std::size_t i) override {
    const std::uint64_t key = trireme::mix(11, first_ + i);
    const auto kind = static_cast<std::int64_t>(key % 3);
    const auto center_x = 5 + static_cast<double>(key >> 8 & 7);
    const auto center_y = 5 + static_cast<double>(key >> 16 & 7);
    const auto size = 3 + static_cast<double>(key >> 24 & 1);
    auto image = torch::zeros({1, 16, 16});
    auto pixels = image.accessor<float, 3>();
    for (int y = 0; y < 16; ++y) {
      for (int x = 0; x < 16; ++x) {
        const double dx = std::abs(x - center_x);
        const double dy = std::abs(y - center_y);
        const bool in = kind == 0   ? dx * dx + dy * dy <= size * size
                        : kind == 1 ? dx <= size && dy <= size
                                    : (dx <= 1 && dy <= size) || (dy <= 1 && dx <= size);
        const auto noise =
            static_cast<float>(trireme::mix(key, static_cast<std::uint64_t>(16 * y + x)) % 100);
        pixels[0][y][x] = (in ? 1.0F : 0.0F) + noise / 200;
      }
    }
    return {image, torch::tensor(kind)};
  }
  std::optional<std::size_t> size() const override { return count_; }

 private:
  std::size_t first_;
  std::size_t count_;
};

int main(int argc, char** argv) {
  using namespace torch::nn;
  trireme::Context context(argc, argv);
  trireme::Accelerator accelerator(context,
                                   {.gradient_accumulation_steps = 2 / context.world().size()});
  torch::manual_seed(7);
  Sequential net(Conv2d(Conv2dOptions(1, 8, 3).padding(1)), BatchNorm2d(8), ReLU(), MaxPool2d(2),
                 Conv2d(Conv2dOptions(8, 16, 3).padding(1)), BatchNorm2d(16), ReLU(), MaxPool2d(2),
                 Flatten(), Linear(16 * 4 * 4, 3));
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  auto [model, optimizer, train, test] = accelerator.prepare(
      net, sgd, trireme::make_loader(Shapes(0, 480), {.batch_size = 8, .shuffle = true}),
      trireme::make_loader(Shapes(480, 101), {.batch_size = 8}));

  for (int epoch = 0; epoch < 8; ++epoch) {
    net->train();
    for (auto& batch : train) {
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        const auto logits = model->forward(batch.data);
        accelerator.backward(torch::cross_entropy_loss(logits, batch.target));
        optimizer.step();
      });
    }
    net->eval();
    const torch::NoGradGuard no_grad;
    std::int64_t right = 0;
    std::int64_t all = 0;
    for (auto& batch : test) {
      const auto hits = model->forward(batch.data).argmax(1) == batch.target;
      const auto gathered = accelerator.gather_for_metrics(hits);
      right += gathered.sum().item<std::int64_t>();
      all += gathered.numel();
    }
    if (accelerator.is_main_process())
      std::printf("epoch %d loss %.9g accuracy %ld/%ld\n", epoch, accelerator.last_loss(), right,
                  all);
  }
  accelerator.save_model(model, argc > 1 ? argv[1] : "out");
}
