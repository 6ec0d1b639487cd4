// What tests of the engine share: a small network that no one wrote with sharding in mind, and the engine's state put
// together again from all ranks.
#pragma once

#include "trireme/comm/session.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/engine.hpp"
#include "trireme/parallel/recompute.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme::testing {

namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  explicit BlockImpl(std::int64_t width) {
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    up = register_module("up", nn::Linear(width, 2 * width));
    down = register_module("down", nn::Linear(2 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) {
    return x + down->forward(torch::gelu(up->forward(norm->forward(x))));
  }
  nn::LayerNorm norm{nullptr};
  nn::Linear up{nullptr};
  nn::Linear down{nullptr};
};
TORCH_MODULE(Block);

// A loop over blocks, one of them used twice, a layer that only odd micro-batches use, one that nobody uses, a weight that
// serves as embedding and as head, a buffer, and a convolution.
struct NetworkImpl : nn::Module {
  static constexpr std::int64_t kWords = 61;
  static constexpr std::int64_t kWidth = 96;

  NetworkImpl() {
    embed = register_module("embed", nn::Embedding(kWords, kWidth));
    blocks = register_module("blocks", nn::ModuleList());
    for (int i = 0; i < 4; ++i) blocks->push_back(Block(kWidth));
    mix = register_module("mix", nn::Conv1d(nn::Conv1dOptions(kWidth, kWidth, 3).padding(1)));
    sometimes = register_module("sometimes", nn::Linear(kWidth, kWidth));
    never = register_module("never", nn::Linear(kWidth, 5));
    scale = register_buffer("scale", torch::full({1}, 0.5F));
    gain = register_parameter("gain", torch::ones({}));
  }

  // Returns the sum of the losses over the targets of micro-batch m of a step.
  at::Tensor loss(std::int64_t step, std::int64_t m) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step * 1000 + m));
    const auto words_BT = torch::randint(0, kWords, {2, 9}, generator, at::kLong);
    auto x_BTC = embed->forward(words_BT.narrow(1, 0, 8));
    for (const auto& block : *blocks) {
      const auto run = [&block](const at::Tensor& x) { return block->as<BlockImpl>()->forward(x); };
      x_BTC = recompute ? checkpoint_one(run, x_BTC) : run(x_BTC);
    }
    x_BTC = blocks[1]->as<BlockImpl>()->forward(x_BTC);
    x_BTC = x_BTC + mix->forward(x_BTC.transpose(1, 2)).transpose(1, 2);
    if (m % 2 == 1) x_BTC = x_BTC + sometimes->forward(x_BTC);
    const auto logits = nn::functional::linear(x_BTC * gain * scale.to(x_BTC.scalar_type()), embed->weight);
    return nn::functional::cross_entropy(
        logits.to(at::kFloat).flatten(0, 1), words_BT.narrow(1, 1, 8).flatten(),
        nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  }
  static constexpr std::int64_t kTargets = 16;  // of a micro-batch

  bool recompute = false;  // blocks of the loop run again in backward
  nn::Embedding embed{nullptr};
  nn::ModuleList blocks{nullptr};
  nn::Conv1d mix{nullptr};
  nn::Linear sometimes{nullptr};
  nn::Linear never{nullptr};
  at::Tensor scale;
  at::Tensor gain;
};
TORCH_MODULE(Network);

// By parameter, in the engine's order.
using Values = std::vector<std::vector<float>>;

struct Part {
  std::size_t parameter;
  std::int64_t begin;
  std::span<const float> values;
};

// Puts the parts of all ranks together. Every element must come from somebody, and from all who have it alike.
inline Values gathered(comm::Communicator& world, const parallel::Engine& engine, const std::vector<Part>& parts,
                       bool once = false) {
  comm::ByteVector mine;
  const auto put = [&](const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    mine.insert(mine.end(), bytes, bytes + size);
  };
  for (const Part& part : parts) {
    const std::int64_t head[] = {static_cast<std::int64_t>(part.parameter), part.begin, std::ssize(part.values)};
    put(head, sizeof head);
    put(part.values.data(), part.values.size_bytes());
  }
  Values values;
  std::vector<std::vector<int>> times;
  for (const parallel::Slot* slot : engine.parameters()) {
    values.emplace_back(static_cast<std::size_t>(slot->size));
    times.emplace_back(static_cast<std::size_t>(slot->size));
  }
  std::size_t unlike = 0;
  for (const comm::ByteVector& bytes : world.all_gather(mine, "parts")) {
    for (std::size_t at = 0; at < bytes.size();) {
      std::int64_t head[3];
      std::memcpy(head, bytes.data() + at, sizeof head);
      at += sizeof head;
      for (std::int64_t i = 0; i < head[2]; ++i, at += sizeof(float)) {
        float value = 0;
        std::memcpy(&value, bytes.data() + at, sizeof value);
        const auto parameter = static_cast<std::size_t>(head[0]);
        const auto element = static_cast<std::size_t>(head[1] + i);
        float& known = values.at(parameter).at(element);
        if (times[parameter][element]++ > 0 && std::memcmp(&known, &value, sizeof value) != 0) ++unlike;
        known = value;
      }
    }
  }
  EXPECT_EQ(unlike, 0U) << "elements that ranks have different values of";
  std::size_t wrong = 0;
  for (const auto& counts : times) {
    for (const int count : counts) wrong += count == 0 || (once && count != 1) ? 1U : 0U;
  }
  EXPECT_EQ(wrong, 0U) << "elements that nobody has, or too many";
  return values;
}

inline Values master_of(comm::Communicator& world, parallel::Engine& engine, bool owned = false) {
  std::vector<Part> parts;
  for (const parallel::StatePiece& piece : engine.state(owned)) {
    parts.push_back({piece.parameter, piece.begin, {piece.master, static_cast<std::size_t>(piece.count)}});
  }
  return gathered(world, engine, parts, owned);
}

// Returns one array of the engine's state, wherever it is: 0 is master, 1 + m moment m.
inline Values state_of(comm::Communicator& world, parallel::Engine& engine, int array) {
  std::vector<std::vector<float>> held;
  std::vector<Part> parts;
  for (const parallel::StatePiece& piece : engine.state(false)) {
    auto& values = held.emplace_back(static_cast<std::size_t>(piece.count));
    engine.read_state(piece, array, 0, std::as_writable_bytes(std::span(values)));
    parts.push_back({piece.parameter, piece.begin, values});
  }
  return gathered(world, engine, parts);
}

inline Values gradient_of(comm::Communicator& world, parallel::Engine& engine) {
  const std::vector<parallel::StatePiece> held = engine.state(false);
  std::vector<Part> parts;
  engine.for_each_update([&](const parallel::UpdatePiece& piece) {
    const float* const master = piece.master.data();
    const auto found = std::find_if(held.begin(), held.end(), [&](const parallel::StatePiece& state) {
      return master >= state.master && master < state.master + state.count;
    });
    ASSERT_NE(found, held.end());
    EXPECT_EQ(engine.parameters()[found->parameter], piece.slot);
    EXPECT_EQ(piece.parameter, found->parameter);
    EXPECT_EQ(piece.begin, found->begin + (master - found->master));
    parts.push_back({found->parameter, found->begin + (master - found->master), piece.grad});
  });
  return gathered(world, engine, parts);
}

// Returns what autograd left in a module's parameters, in fp32; zeros where it left nothing.
inline Values gradients_in(const std::vector<at::Tensor>& parameters) {
  Values values;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor grad = parameter.grad().defined() ? parameter.grad().to(at::kFloat).contiguous()
                                                       : torch::zeros(parameter.sizes());
    values.emplace_back(grad.data_ptr<float>(), grad.data_ptr<float>() + grad.numel());
  }
  return values;
}

// Adds in the order of DESIGN section 4.
inline Values tree(const std::vector<Values>& items, std::size_t first, std::size_t number) {
  if (number == 1) return items[first];
  const std::size_t left = std::bit_floor(number - 1);
  Values sum = tree(items, first, left);
  const Values right = tree(items, first + left, number - left);
  for (std::size_t p = 0; p < sum.size(); ++p) {
    for (std::size_t i = 0; i < sum[p].size(); ++i) sum[p][i] += right[p][i];
  }
  return sum;
}

struct AdamWStep {
  double lr;
  std::int64_t number;
  double grad_scale;
};

// For tests that need weights to move, no matter how.
inline void take_adamw_step(parallel::Engine& engine, comm::Communicator& world,
                            const AdamWStep& step) {
  optim::Optimizer optimizer({.lr = step.lr});
  optimizer.attach(engine, world);
  parallel::StepSums sums;
  sums.square_norms = {0};
  optimizer.update(engine, sums, {.number = step.number, .grad_scale = step.grad_scale});
}

// Returns the values of a module's parameters, in the engine's order.
inline std::vector<at::Tensor> parameters_like(const parallel::Engine& engine, const nn::Module& module) {
  std::vector<at::Tensor> result;
  const auto named = module.named_parameters();
  for (const parallel::Slot* slot : engine.parameters()) result.push_back(named[slot->name]);
  return result;
}

inline void assign(const std::vector<at::Tensor>& parameters, const Values& values) {
  const at::NoGradGuard no_grad;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    at::Tensor to = parameters[p];
    to.copy_(at::from_blob(const_cast<float*>(values[p].data()), to.sizes(), at::kFloat));
  }
}

// Starts a strategy's engine over a module that is constructed under deferral.
template <class Holder>
struct Engaged {
  Engaged(comm::Session& session, const parallel::EngineOptions& options, std::uint64_t seed = 3)
      : deferred(seed,
                 [this] {
                   module = Holder();
                   return module.ptr();
                 }),
        engine(session, *module, deferred, options) {}

  Holder module{nullptr};
  parallel::DeferredModule deferred;
  parallel::Engine engine;
};

}  // namespace trireme::testing
