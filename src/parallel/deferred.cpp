#include "trireme/parallel/deferred.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/random.hpp"
#include "trireme/kernels/initialise.hpp"
#include "trireme/parallel/dispatch.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <torch/torch.h>

#include <cstring>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace trireme::parallel {

namespace {

constexpr std::size_t kHeader = 4096;  // keeps the mapping's length in front of the data

// Hands out addresses whose pages appear only when touched, and go back to the system when freed.
class ReservingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, [](void*) {}, c10::Device(c10::kCPU)};
    const std::size_t total = bytes + kHeader;
    void* base = mmap(nullptr, total, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
      throw Error(ErrorKind::kOutOfMemory,
                  fmt::format("cannot reserve {} bytes of addresses for a parameter", bytes),
                  "raise `ulimit -v`");
    }
    std::memcpy(base, &total, sizeof total);
    return {static_cast<char*>(base) + kHeader, base, &release, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void release(void* base) {
    std::size_t total = 0;
    std::memcpy(&total, base, sizeof total);
    munmap(base, total);
  }
};

// While it lives, every tensor's storage is only reserved.
class ReserveStorage {
 public:
  // Above every allocator that LibTorch or a user may have set.
  static constexpr std::uint8_t kPriority = 255;
  ReserveStorage() : previous_(c10::GetCPUAllocator()) {
    // Tensors may outlive any object of ours, and their storage remembers this function: it is kept
    // for good.
    static ReservingAllocator reserving;
    c10::SetCPUAllocator(&reserving, kPriority);
  }
  ~ReserveStorage() { c10::SetCPUAllocator(previous_, kPriority); }
  ReserveStorage(const ReserveStorage&) = delete;
  ReserveStorage& operator=(const ReserveStorage&) = delete;

 private:
  c10::Allocator* previous_;
};

struct Recorded {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;

  const at::Tensor& self() const { return arguments[0].toTensor(); }
  std::string_view name() const { return op.schema().name(); }
};

using Tape = std::vector<Recorded>;

// An operator that only changes the values of its first argument, from plain numbers. Those that
// change its shape or storage (t_, resize_, set_) must run at once: the constructor goes on from it.
bool writes_only_self(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments) {
  const auto& schema = op.schema().arguments();
  if (schema.empty() || !schema[0].alias_info() || !schema[0].alias_info()->isWrite()) return false;
  if (!arguments[0].isTensor() || op.hasTag(at::Tag::inplace_view)) return false;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const bool has_tensors =
        arguments[i].isTensor() || arguments[i].isTensorList() || arguments[i].isGenerator();
    if (has_tensors) return false;
  }
  return op.schema().returns().size() == 1;
}

bool covers_its_storage(const at::Tensor& tensor) {
  return tensor.is_contiguous() && tensor.storage_offset() == 0 &&
         tensor.scalar_type() == at::kFloat &&
         static_cast<std::size_t>(tensor.numel()) * sizeof(float) == tensor.storage().nbytes();
}

bool overwrites(std::string_view op) {
  return op == "aten::normal_" || op == "aten::uniform_" || op == "aten::zero_" ||
         op == "aten::fill_";
}

float scalar(const c10::IValue& value) { return static_cast<float>(value.toScalar().toDouble()); }

// Writes a range of what one overwriting operator gives. `draw` numbers the operators of a
// parameter, so that two draws into the same parameter differ.
void evaluate(const Recorded& recorded, std::uint64_t key, std::uint64_t draw, std::int64_t begin,
              std::span<float> out) {
  const auto& arguments = recorded.arguments;
  const std::uint64_t stream = draw == 0 ? key : mix(key, draw);
  if (recorded.name() == "aten::normal_") {
    kernels::fill_normal(out, stream, begin, scalar(arguments[1]), scalar(arguments[2]));
  } else if (recorded.name() == "aten::uniform_") {
    kernels::fill_uniform(out, stream, begin, scalar(arguments[1]), scalar(arguments[2]));
  } else {
    std::fill(out.begin(), out.end(),
              recorded.name() == "aten::zero_" ? 0.0F : scalar(arguments[1]));
  }
}

// Draws by LibTorch's own generator come from `key` while it lives; afterwards the user's go on as if
// nothing had been drawn.
class SeedGenerator {
 public:
  explicit SeedGenerator(std::uint64_t key)
      : generator_(at::detail::getDefaultCPUGenerator()), state_(generator_.get_state()) {
    generator_.set_current_seed(key);
  }
  ~SeedGenerator() { generator_.set_state(state_); }
  SeedGenerator(const SeedGenerator&) = delete;
  SeedGenerator& operator=(const SeedGenerator&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

// Runs the tape of one storage for good. Draws come from our streams, so that any rank gets the same
// values; what else draws (exponential_, randperm) uses LibTorch's generator, seeded from the same
// key.
void replay(const Tape& tape, std::uint64_t key) {
  const at::NoGradGuard no_grad;
  const SeedGenerator seed(key);
  for (std::size_t draw = 0; draw < tape.size(); ++draw) {
    const Recorded& recorded = tape[draw];
    const bool ours = (recorded.name() == "aten::normal_" || recorded.name() == "aten::uniform_") &&
                      recorded.self().scalar_type() == at::kFloat;
    if (ours) {
      at::Tensor self = recorded.self();
      at::Tensor values = at::empty(self.sizes(), at::kFloat);
      evaluate(recorded, key, draw, 0,
               {values.data_ptr<float>(), static_cast<std::size_t>(values.numel())});
      self.copy_(values);
      continue;
    }
    torch::jit::Stack stack(recorded.arguments.begin(), recorded.arguments.end());
    recorded.op.callBoxed(&stack);
  }
}

}  // namespace

void EagerValues::fill(const at::Tensor& parameter, const std::string& name, std::int64_t begin,
                       std::span<float> out) {
  const at::Tensor values = parameter.detach().to(at::kFloat).contiguous();
  ensure(begin + static_cast<std::int64_t>(out.size()) <= values.numel(), name);
  std::copy_n(values.data_ptr<float>() + begin, out.size(), out.begin());
}

struct DeferredModule::Impl : OperatorObserver {
  std::uint64_t seed = 0;
  std::shared_ptr<torch::nn::Module> module;
  std::unordered_map<c10::StorageImpl*, Tape> tapes;
  std::vector<c10::StorageImpl*> order;  // of the tapes' beginnings, the same on every rank
  // The last parameter that had to be computed whole, because its tape is more than an overwrite.
  std::string whole_name;
  at::Tensor whole;

  static c10::StorageImpl* storage_of(const at::Tensor& tensor) {
    return tensor.defined() && tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl()
                                                    : nullptr;
  }

  bool on_operator(const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    const std::size_t count = op.schema().arguments().size();
    auto arguments = torch::jit::last(stack, count).vec();
    if (writes_only_self(op, arguments)) {
      torch::jit::drop(stack, count);
      stack.push_back(arguments[0]);
      const at::Tensor self = arguments[0].toTensor();
      // An alias: the constructor may yet change the shape of its own tensor.
      arguments[0] = self.detach();
      auto [tape, is_new] = tapes.try_emplace(storage_of(self));
      if (is_new) order.push_back(tape->first);
      tape->second.push_back({op, std::move(arguments)});
      return true;
    }
    // The operator may read a tensor whose values are still on the tape, and views are harmless:
    // they carry the storage.
    if (op.schema().is_mutable() || !is_view(op)) {
      for (const auto& argument : arguments) run_now(argument);
    }
    return false;
  }

  static bool is_view(const c10::OperatorHandle& op) {
    for (const auto& result : op.schema().returns()) {
      if (result.alias_info() == nullptr) return false;
    }
    return true;
  }

  void run_now(const c10::IValue& value) {
    if (value.isTensor()) {
      run_now(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) run_now(tensor);
    }
  }

  void run_now(const at::Tensor& tensor) {
    const auto found = tapes.find(storage_of(tensor));
    if (found == tapes.end()) return;
    const Tape tape = std::move(found->second);
    tapes.erase(found);
    replay_unnamed(tape);
  }

  // For tensors whose name is not known: the order of construction is the same on every rank.
  void replay_unnamed(const Tape& tape) { replay(tape, mix(seed, ++num_unnamed)); }
  std::uint64_t num_unnamed = 0;

  // Buffers and plain members get their values; what is left are the parameters' tapes.
  void finish_construction() {
    for (const auto& item : module->named_buffers()) {
      const auto found = tapes.find(storage_of(item.value()));
      if (found == tapes.end()) continue;
      replay(found->second, stream_key(seed, item.key()));
      tapes.erase(found);
    }
    std::unordered_set<c10::StorageImpl*> of_parameters;
    for (const at::Tensor& parameter : module->parameters()) {
      of_parameters.insert(storage_of(parameter));
    }
    for (c10::StorageImpl* storage : order) {
      const auto found = tapes.find(storage);
      if (found == tapes.end() || of_parameters.contains(storage)) continue;
      replay_unnamed(found->second);
      tapes.erase(found);
    }
  }

  void compute_whole(const at::Tensor& parameter, const std::string& name, const Tape& tape) {
    auto* storage = storage_of(parameter);
    at::DataPtr memory = c10::GetCPUAllocator()->allocate(storage->nbytes());
    at::DataPtr reserved = storage->set_data_ptr(std::move(memory));
    // The constructor may have written values before the tape began.
    std::memcpy(storage->mutable_data(), reserved.get(), storage->nbytes());
    replay(tape, stream_key(seed, name));
    whole = parameter.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous();
    whole_name = name;
    storage->set_data_ptr(std::move(reserved));
  }
};

DeferredModule::DeferredModule(std::uint64_t seed,
                               const std::function<std::shared_ptr<torch::nn::Module>()>& construct)
    : impl_(std::make_unique<Impl>()) {
  impl_->seed = seed;
  {
    const SeedGenerator seed_factories(mix(seed, 0));
    const ReserveStorage reserve;
    const ObserveOperators observe(*impl_);
    impl_->module = construct();
  }
  ensure(impl_->module != nullptr, "a model factory returns a module");
  impl_->finish_construction();
}

DeferredModule::~DeferredModule() = default;

const std::shared_ptr<torch::nn::Module>& DeferredModule::module() const { return impl_->module; }

void DeferredModule::fill(const at::Tensor& parameter, const std::string& name, std::int64_t begin,
                          std::span<float> out) {
  const auto found = impl_->tapes.find(Impl::storage_of(parameter));
  if (found == impl_->tapes.end()) {
    EagerValues().fill(parameter, name, begin, out);
    return;
  }
  const Tape& tape = found->second;
  const Recorded& last = tape.back();
  if (overwrites(last.name()) && covers_its_storage(last.self())) {
    evaluate(last, stream_key(impl_->seed, name), tape.size() - 1, begin, out);
    return;
  }
  if (impl_->whole_name != name) impl_->compute_whole(parameter, name, tape);
  std::copy_n(impl_->whole.data_ptr<float>() + begin, out.size(), out.begin());
}

}  // namespace trireme::parallel
