// What the sharding engine builds on: every weight is read by an operator that the dispatcher sees,
// in forward and in backward. Weights here exist only while an operator that names them runs;
// anything else that read one would crash.
#include "trireme/model/language_model.hpp"

#include "kernels/kokkos.hpp"
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <map>

namespace {

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

using Storage = c10::StorageImpl*;
std::map<Storage, torch::Tensor> copies;

Storage storage_of(const torch::Tensor& t) { return t.storage().unsafeGetStorageImpl(); }

void take_away(Storage storage) { storage->set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU)); }

void bring(Storage storage) {
  auto data = c10::GetAllocator(at::kCPU)->allocate(storage->nbytes());
  std::memcpy(data.get(), copies.at(storage).data_ptr(), storage->nbytes());
  storage->set_data_ptr_noswap(std::move(data));
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  std::vector<Storage> read;
  for (const auto& argument : torch::jit::last(*stack, op.schema().arguments().size()))
    if (argument.isTensor() && argument.toTensor().defined() &&
        copies.contains(storage_of(argument.toTensor())))
      read.push_back(storage_of(argument.toTensor()));
  for (auto* storage : read) bring(storage);
  {
    const c10::impl::ExcludeDispatchKeyGuard off(kKey);
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
  }
  for (auto* storage : read) take_away(storage);
}
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

class AbsentWeights : public testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(AbsentWeights, are_read_only_by_operators_that_name_them) {
  torch::set_num_threads(1);
  torch::manual_seed(5);
  const auto [type, bf16] = GetParam();
  auto model = trireme::model::make(
      {.type = type, .layers = 2, .hidden = 32, .heads = 4, .context = 40, .vocab = 50});
  if (bf16)
    for (auto& p : model->parameters()) p.set_data(p.detach().to(torch::kBFloat16));
  const auto tokens = torch::randint(0, 50, {2, 40}, torch::kLong),
             targets = torch::randint(0, 50, {2, 40}, torch::kLong);
  auto whole = model->loss_sum(tokens, targets);
  whole.backward();
  std::vector<torch::Tensor> expected;
  for (auto& p : model->parameters()) {
    expected.push_back(p.grad().clone());
    p.mutable_grad() = torch::Tensor();
    copies[storage_of(p)] = p.detach().clone();
  }
  for (auto& [storage, copy] : copies) take_away(storage);
  torch::Tensor loss;
  {
    const c10::impl::IncludeDispatchKeyGuard on(kKey);
    loss = model->loss_sum(tokens, targets);
    loss.backward();
  }
  for (auto& [storage, copy] : copies) bring(storage);
  copies.clear();
  EXPECT_TRUE(torch::equal(loss, whole));
  const auto parameters = model->named_parameters();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(torch::equal(parameters[i].value().grad(), expected[i])) << parameters[i].key();
}

INSTANTIATE_TEST_SUITE_P(both, AbsentWeights,
                         testing::Combine(testing::Values("gpt2", "llama"), testing::Bool()),
                         [](const auto& p) {
                           return std::string(std::get<0>(p.param)) +
                                  (std::get<1>(p.param) ? "_bf16" : "_fp32");
                         });

}  // namespace
