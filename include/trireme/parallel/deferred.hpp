// Deferred construction: a module of any size is built without touching the memory of its weights.
// While it is being constructed, storage only reserves addresses and in-place initialisations go on
// a tape; the values are made later, unit by unit or range by range, each parameter from its own
// counter-based stream keyed by (seed, name).
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace trireme::parallel {

// Gives the initial fp32 values of a module's parameters, the same on every rank.
class InitialValues {
 public:
  virtual ~InitialValues() = default;
  // Writes elements [begin, begin + out.size()) of `parameter`, whose unique name is `name`. At
  // most this parameter is held whole while it is computed.
  virtual void fill(const at::Tensor& parameter, const std::string& name, std::int64_t begin,
                    std::span<float> out) = 0;
};

// A module that was constructed in the ordinary way: the values are what its tensors hold.
class EagerValues : public InitialValues {
 public:
  void fill(const at::Tensor& parameter, const std::string& name, std::int64_t begin,
            std::span<float> out) override;
};

class DeferredModule : public InitialValues {
 public:
  struct Impl;
  // Runs `construct` under recording. Buffers are given their values before this returns;
  // parameters are not.
  DeferredModule(std::uint64_t seed,
                 const std::function<std::shared_ptr<torch::nn::Module>()>& construct);
  ~DeferredModule() override;

  const std::shared_ptr<torch::nn::Module>& module() const;
  void fill(const at::Tensor& parameter, const std::string& name, std::int64_t begin,
            std::span<float> out) override;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::parallel
