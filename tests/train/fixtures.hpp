// What tests of the user's loop share: one context, a small network and data, weights to compare.
#pragma once

#include "trireme/train/accelerator.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace trireme::testing {

// MPI starts once a process.
inline Context& context() {
  static int argc = 0;
  static char** argv = nullptr;
  static Context* const only = [] {
    at::set_num_threads(1);
    auto* made = new Context(argc, argv);  // lives as long as MPI does
    made->session().set_timeout(std::chrono::duration<double>(40));
    return made;
  }();
  return *only;
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool dropout) {
    first = register_module("first", torch::nn::Linear(4, 16));
    drop = register_module("drop", torch::nn::Dropout(dropout ? 0.2 : 0.0));
    last = register_module("last", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(drop->forward(torch::gelu(first->forward(x))));
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Dropout drop{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(Net);

struct Point {
  at::Tensor data, target, index;
  auto fields() { return std::tie(data, target, index); }
};

// Sample i is a function of i.
struct Points {
  std::int64_t length;
  std::size_t size() const { return static_cast<std::size_t>(length); }
  Point get(std::size_t i) const {
    const auto x = static_cast<float>(i);
    const auto data = torch::arange(4, at::kFloat) * 0.1F + 0.05F * x;
    return {data, torch::sin(data.slice(0, 0, 3) + x), torch::tensor(static_cast<std::int64_t>(i))};
  }
};

using Weights = std::map<std::string, at::Tensor>;

inline Weights weights_of(const torch::nn::Module& module) {
  Weights weights;
  for (const auto& item : module.named_parameters())
    weights[item.key()] = item.value().detach().clone();
  return weights;
}

inline void copy_weights(const torch::nn::Module& from, torch::nn::Module& to) {
  const at::NoGradGuard no_grad;
  const auto source = from.named_parameters();
  for (auto& item : to.named_parameters()) item.value().copy_(source[item.key()]);
}

// On rank 0; empty on others.
template <class M>
Weights whole(Accelerator& accelerator, const PreparedModel<M>& model) {
  Weights weights = accelerator.get_state_dict(model);
  std::erase_if(weights, [](const auto& item) { return !item.second.is_floating_point(); });
  return weights;
}

inline void expect_near(const Weights& got, const Weights& expected, double bound) {
  for (const auto& [name, weight] : got) {
    ASSERT_TRUE(expected.contains(name)) << name;
    EXPECT_LE((weight - expected.at(name)).abs().max().template item<double>(), bound) << name;
  }
}

inline void expect_equal(const Weights& got, const Weights& expected) {
  for (const auto& [name, weight] : got)
    EXPECT_TRUE(torch::equal(weight, expected.at(name))) << name << " differs";
}

// Compares with what the run of the same test on one rank left in the build folder; that run writes
// it. ctest runs it first.
inline void same_on_any_ranks(const std::string& name, const Weights& weights) {
  if (!context().world().is_root()) return;
  const auto path = std::filesystem::current_path() / (name + ".weights");
  if (context().world().size() == 1) {
    torch::serialize::OutputArchive archive;
    for (const auto& [key, weight] : weights) {
      std::string flat = key;
      for (char& c : flat) c = c == '.' ? '_' : c;
      archive.write(flat, weight);
    }
    archive.save_to(path.string());
    return;
  }
  ASSERT_TRUE(std::filesystem::exists(path)) << "run the test on one rank first";
  torch::serialize::InputArchive archive;
  archive.load_from(path.string());
  for (const auto& [key, weight] : weights) {
    std::string flat = key;
    for (char& c : flat) c = c == '.' ? '_' : c;
    at::Tensor expected;
    archive.read(flat, expected);
    EXPECT_TRUE(torch::equal(weight, expected))
        << name << ": " << key << " differs from one rank's";
  }
}

}  // namespace trireme::testing
