// Tokens a second of forward and backward of the S model on one thread: the fused operators against
// plain ATen, in turn, medians of both; then milliseconds by operator of the fused step.
//   model_step [rounds = 9] [gpt2 | llama]     (llama has no plain version: it is timed twice)
#include "trireme/kernels/runtime.hpp"
#include "trireme/model/language_model.hpp"

#include "model/reference.hpp"
#include <malloc.h>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <string>

namespace {

using torch::Tensor;

constexpr std::int64_t kBatch = 4, kSequence = 256;

// The thread's own time: other programs on the machine do not count.
double seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The same network on the same parameters, one ATen operator after the other.
Tensor plain_gpt2_loss(const trireme::model::LanguageModel& model,
                       const trireme::config::Model& shape, const Tensor& tokens_BT,
                       const Tensor& targets_BT) {
  namespace r = reference;
  const auto p = model.named_parameters();
  const auto norm = [&](const Tensor& x, const std::string& name) {
    return torch::layer_norm(x, {x.size(-1)}, p[name + ".weight"], p[name + ".bias"],
                             shape.norm_eps);
  };
  const auto linear = [&](const Tensor& x, const std::string& name) {
    return torch::addmm(p[name + ".bias"], x.flatten(0, 1), p[name + ".weight"])
        .unflatten(0, {x.size(0), x.size(1)});
  };
  auto x = r::embed(tokens_BT, p["transformer.wte.weight"], p["transformer.wpe.weight"]);
  for (std::int64_t i = 0; i < shape.layers; ++i) {
    const auto h = "transformer.h." + std::to_string(i);
    const auto qkv = linear(norm(x, h + ".ln_1"), h + ".attn.c_attn")
                         .unflatten(-1, {3, shape.heads, -1})
                         .permute({2, 0, 3, 1, 4});
    const auto y = torch::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0, true)
                       .transpose(1, 2)
                       .flatten(2);
    x = x + linear(y, h + ".attn.c_proj");
    x = x + linear(torch::gelu(linear(norm(x, h + ".ln_2"), h + ".mlp.c_fc"), "tanh"),
                   h + ".mlp.c_proj");
  }
  const auto logits = norm(x, "transformer.ln_f").matmul(p["transformer.wte.weight"].t());
  return r::cross_entropy_sum(logits, targets_BT);
}

// Time of an operator less that of the operators it calls.
struct SelfTime : at::ObserverContext {
  double begin = seconds(), inside = 0;
  SelfTime* outer = nullptr;
  inline static thread_local SelfTime* current = nullptr;
  inline static std::map<std::string, std::pair<double, int>> total;  // seconds, calls
};

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction&) {
  auto timer = std::make_unique<SelfTime>();
  timer->outer = std::exchange(SelfTime::current, timer.get());
  return timer;
}

void end_operator(const at::RecordFunction& function, at::ObserverContext* context) {
  auto& timer = *static_cast<SelfTime*>(context);
  const double spent = seconds() - timer.begin;
  if (timer.outer) timer.outer->inside += spent;
  SelfTime::current = timer.outer;
  auto& [sum, calls] = SelfTime::total[function.name()];
  sum += spent - timer.inside;
  ++calls;
}

void print_operators(const std::function<void()>& step, int repeats) {
  const auto handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(begin_operator, end_operator));
  for (int i = 0; i < repeats; ++i) step();
  at::removeCallback(handle);
  std::vector<std::pair<double, std::string>> sorted;
  for (const auto& [name, time] : SelfTime::total)
    sorted.emplace_back(time.first / repeats * 1e3,
                        name + " x" + std::to_string(time.second / repeats));
  std::sort(sorted.rbegin(), sorted.rend());
  for (const auto& [ms, name] : sorted)
    if (ms > 0.05) std::printf("  %8.2f ms  %s\n", ms, name.c_str());
}

// Pages stay with the process, and its heap grows into a range that may have huge pages:
// activations of a step are some 100 MB, far more than the table of small pages reaches.
void keep_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  constexpr std::uintptr_t kHugePage = 2 << 20, kReserve = 1 << 30;
  const auto begin = reinterpret_cast<std::uintptr_t>(sbrk(0));
  void* volatile reserve = std::malloc(kReserve);  // volatile, or the compiler drops the pair
  std::free(reserve);
  const auto first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  madvise(reinterpret_cast<void*>(first), begin + kReserve - first, MADV_HUGEPAGE);
}

}  // namespace

int main(int argc, char** argv) {
  keep_memory();
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 9;
  const std::string type = argc > 2 ? argv[2] : "gpt2";
  const trireme::kernels::Runtime runtime;
  torch::set_num_threads(1);
  torch::manual_seed(1);
  const auto shape = trireme::model::resolved({.type = type, .vocab = 256});
  auto model = trireme::model::make(shape);
  for (auto& p : model->parameters()) p.set_data(p.detach().to(torch::kBFloat16));
  const auto tokens_BT = torch::randint(0, 256, {kBatch, kSequence}, torch::kLong);
  const auto targets_BT = torch::randint(0, 256, {kBatch, kSequence}, torch::kLong);

  const auto timed = [&](auto loss) {
    for (auto& p : model->parameters()) p.mutable_grad() = Tensor();
    const auto begin = seconds();
    const auto value = loss();
    const auto forward = seconds();
    value.backward();
    return std::array{seconds() - begin, forward - begin,
                      static_cast<double>(value.template item<float>())};
  };
  const auto fused = [&] { return model->loss_sum(tokens_BT, targets_BT); };
  const auto plain = [&] {
    return type == "gpt2" ? plain_gpt2_loss(*model, shape, tokens_BT, targets_BT) : fused();
  };
  std::vector<double> fused_s, fused_forward_s, plain_s;
  for (int i = -2; i < rounds; ++i) {
    const auto a = timed(fused), b = timed(plain);
    if (std::abs(a[2] / b[2] - 1) > 2e-3)
      return std::printf("losses differ: %f and %f\n", a[2], b[2]), 1;
    if (i < 0) continue;
    fused_s.push_back(a[0]);
    fused_forward_s.push_back(a[1]);
    plain_s.push_back(b[0]);
  }
  const double tokens = kBatch * kSequence,
               flops = static_cast<double>(trireme::model::flops_per_token(shape, kSequence));
  std::printf(
      "%s fused: %.1f ms (forward %.1f), %.0f tokens/s, %.0f GFLOP/s; plain ATen: %.1f ms, %.0f "
      "tokens/s; ratio %.2f\n",
      type.c_str(), median(fused_s) * 1e3, median(fused_forward_s) * 1e3, tokens / median(fused_s),
      tokens * flops / median(fused_s) / 1e9, median(plain_s) * 1e3, tokens / median(plain_s),
      median(plain_s) / median(fused_s));
  print_operators([&] { timed(fused); }, 5);
}
