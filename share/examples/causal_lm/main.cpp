// A causal language model over bytes, with the Trainer: evaluation, the best model, early stopping,
// a log in the names of transformers. Losses are sums over tokens; the Trainer takes the mean.
//
//   mpirun -n 2 causal_lm out
#include <trireme/trireme.hpp>

#include <cstdio>
#include <string>

namespace nn = torch::nn;

const std::string kText = [] {
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += "the ship has three rows of oars, and row " + std::to_string(i % 3) +
            " pulls with the rest. ";
  return text;
}();
constexpr std::int64_t kLength = 64;

struct Window {
  at::Tensor input, target;
  auto fields() { return std::tie(input, target); }
};

struct Text {
  std::size_t first, count;
  std::size_t size() const { return count; }
  Window get(std::size_t i) const {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(kText.data()) + (first + i) * 32;
    const auto all = torch::from_blob(const_cast<std::uint8_t*>(bytes), {kLength + 1}, torch::kByte)
                         .to(torch::kLong);
    return {all.slice(0, 0, kLength), all.slice(0, 1)};
  }
};

struct BlockImpl : nn::Module {
  BlockImpl(std::int64_t width, std::int64_t heads) : heads_(heads) {
    norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
    qkv = register_module("qkv", nn::Linear(width, 3 * width));
    out = register_module("out", nn::Linear(width, width));
    norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
    up = register_module("up", nn::Linear(width, 4 * width));
    down = register_module("down", nn::Linear(4 * width, width));
  }
  at::Tensor forward(at::Tensor x) {
    const auto b = x.size(0), t = x.size(1), c = x.size(2);
    const auto heads = qkv->forward(norm1->forward(x)).view({b, t, 3, heads_, c / heads_});
    const auto split = heads.permute({2, 0, 3, 1, 4}).unbind(0);
    const auto attended =
        at::scaled_dot_product_attention(split[0], split[1], split[2], {}, 0.0, /*is_causal=*/true);
    x = x + out->forward(attended.transpose(1, 2).reshape({b, t, c}));
    return x + down->forward(torch::gelu(up->forward(norm2->forward(x))));
  }
  std::int64_t heads_;
  nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct LanguageModelImpl : nn::Module {
  LanguageModelImpl() {
    words = register_module("words", nn::Embedding(256, 64));
    places = register_module("places", nn::Embedding(kLength, 64));
    blocks = register_module("blocks", nn::ModuleList());
    for (int i = 0; i < 2; ++i) blocks->push_back(Block(64, 4));
    head = register_module("head", nn::Linear(64, 256));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    auto x = words->forward(tokens) + places->forward(torch::arange(tokens.size(1)));
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    return head->forward(x);
  }
  nn::Embedding words{nullptr}, places{nullptr};
  nn::ModuleList blocks{nullptr};
  nn::Linear head{nullptr};
};

int main(int argc, char** argv) {
  trireme::Context context(argc, argv);
  trireme::TrainingArguments arguments;
  arguments.output_dir = argc > 1 ? argv[1] : "out";
  arguments.per_device_train_batch_size = 4;
  arguments.gradient_accumulation_steps = 4 / context.world().size();
  arguments.strategy = "zero3";
  arguments.learning_rate = 3e-3;
  arguments.lr_scheduler_type = "cosine";
  arguments.warmup_steps = 0.1;
  arguments.max_steps = 40;
  arguments.logging_steps = 10;
  arguments.eval_strategy = arguments.save_strategy = "steps";
  arguments.eval_steps = arguments.save_steps = 20;
  arguments.load_best_model_at_end = true;
  arguments.report_to = {"jsonl"};
  const auto loss_of = [](trireme::PreparedModel<LanguageModelImpl>& model, Window& batch) {
    const auto logits = model->forward(batch.input);
    const auto sum = nn::functional::cross_entropy(
        logits.flatten(0, 1), batch.target.flatten(),
        nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
    return trireme::parallel::MicroBatchLoss{sum, batch.target.numel()};
  };
  torch::manual_seed(7);
  trireme::Trainer trainer(context, arguments, std::make_shared<LanguageModelImpl>(), Text{0, 600},
                           loss_of);
  trainer.evaluate_on(Text{600, 37});
  trainer.add_callback(std::make_shared<trireme::EarlyStopping>(2));
  trainer.train();
  for (const auto& line : trainer.state().log_history) {
    const auto loss = line.find("eval_loss");
    if (loss != line.end() && context.world().is_root())
      std::printf("step %.0f eval_loss %.9g\n", line.at("step"), loss->second);
  }
  trainer.accelerator().save_model(trainer.model(), arguments.output_dir);
}
