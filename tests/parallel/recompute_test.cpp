// Recomputation in backward against the ordinary way: the same gradients to the bit, generators included, and less kept.
#include "trireme/parallel/recompute.hpp"

#include "kokkos.hpp"
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <vector>

namespace trireme {
namespace {

namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  BlockImpl() {
    first = register_module("first", nn::Linear(16, 32));
    second = register_module("second", nn::Linear(32, 16));
  }
  at::Tensor forward(const at::Tensor& x) {
    return x + second->forward(torch::dropout(torch::tanh(first->forward(x)), 0.3, true));
  }
  nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Block);

using Way = std::function<at::Tensor(Block&, const at::Tensor&)>;
const Way kOrdinary = [](Block& block, const at::Tensor& x) { return block->forward(x); };
const Way kRecomputed = [](Block& block, const at::Tensor& x) {
  return checkpoint_one([block](const at::Tensor& in) mutable { return block->forward(in); }, x);
};

// Gradients of all parameters and of the input after the same two draws of dropout masks.
std::vector<at::Tensor> gradients(const std::function<at::Tensor(const at::Tensor&)>& loss,
                                  const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    at::Tensor(parameter).mutable_grad().reset();
  }
  at::manual_seed(7);
  const at::Tensor x = torch::randn({4, 16}).requires_grad_(true);
  loss(x).backward();
  std::vector<at::Tensor> result{x.grad(), torch::rand({1})};  // the generator goes on alike
  for (const at::Tensor& parameter : parameters) {
    result.push_back(parameter.grad().defined() ? parameter.grad() : torch::zeros({1}));
  }
  return result;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << "gradient " << i;
}

TEST(Checkpoint, gives_the_gradients_of_the_ordinary_way_to_the_bit) {
  Block a, b;
  std::vector<at::Tensor> parameters = a->parameters();
  for (const at::Tensor& parameter : b->parameters()) parameters.push_back(parameter);
  const auto loss = [&](const Way& run) {
    return [&, run](const at::Tensor& x) { return run(b, run(a, x)).square().sum(); };
  };
  expect_equal(gradients(loss(kRecomputed), parameters), gradients(loss(kOrdinary), parameters));
}

TEST(Checkpoint, serves_a_module_that_is_called_twice_and_functions_inside_each_other) {
  Block block;
  const auto twice = [&](const Way& run) {
    return [&, run](const at::Tensor& x) { return run(block, run(block, x)).sum(); };
  };
  expect_equal(gradients(twice(kRecomputed), block->parameters()), gradients(twice(kOrdinary), block->parameters()));
  const auto nested = [&](const at::Tensor& x) {
    return checkpoint_one([&](const at::Tensor& in) { return kRecomputed(block, in).relu(); }, x).sum();
  };
  const auto plain = [&](const at::Tensor& x) { return kOrdinary(block, x).relu().sum(); };
  expect_equal(gradients(nested, block->parameters()), gradients(plain, block->parameters()));
}

class Count : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Count(int& fired) : fired_(fired) {}
  void operator()(const at::Tensor& /*parameter*/) override { ++fired_; }

 private:
  int& fired_;
};

TEST(Checkpoint, gives_a_parameter_its_whole_gradient_once) {
  Block block;
  int fired = 0;
  for (const at::Tensor& parameter : block->parameters()) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Count>(fired));
  }
  kRecomputed(block, kRecomputed(block, torch::randn({2, 16}))).sum().backward();
  EXPECT_EQ(fired, 4);
}

TEST(Checkpoint, takes_undefined_inputs_several_outputs_and_those_that_nobody_uses) {
  const auto w = torch::randn({3}).requires_grad_(true);
  const auto x = torch::randn({3}).requires_grad_(true);
  const auto outputs = checkpoint(
      [&](const TensorList& in) -> TensorList {
        EXPECT_FALSE(in[1].defined());
        return {in[0] * w, in[0] + w, at::Tensor()};
      },
      {x, at::Tensor()});
  ASSERT_EQ(outputs.size(), 3U);
  EXPECT_FALSE(outputs[2].defined());
  outputs[0].sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), w));
  EXPECT_TRUE(torch::equal(w.grad(), x));
}

TEST(Checkpoint, keeps_nothing_where_no_gradient_is_wanted) {
  Block block;
  int runs = 0;
  const auto counted = [&](const at::Tensor& x) {
    ++runs;
    return x * 2;
  };
  EXPECT_FALSE(checkpoint_one(counted, torch::ones({2})).requires_grad());
  const at::NoGradGuard no_gradients;
  EXPECT_FALSE(kRecomputed(block, torch::ones({2, 16})).requires_grad());
  EXPECT_EQ(runs, 1);
}

TEST(Checkpoint, refuses_a_second_backward) {
  Block block;
  const auto loss = kRecomputed(block, torch::ones({2, 16})).sum();
  loss.backward();
  EXPECT_ANY_THROW(loss.backward());
}

TEST(Checkpoint, lets_go_of_what_the_part_makes) {
  Block block;
  std::weak_ptr<int> kept;
  at::Tensor out;
  {
    auto token = std::make_shared<int>(1);
    kept = token;
    out = checkpoint_one([block, token](const at::Tensor& in) mutable { return block->forward(in); },
                         torch::ones({2, 16}));
  }
  EXPECT_FALSE(kept.expired());
  out.sum().backward();
  EXPECT_TRUE(kept.expired()) << "the function is not needed any more";
}

}  // namespace
}  // namespace trireme
