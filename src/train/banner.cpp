#include "banner.hpp"

#include "trireme/base/version.hpp"
#include "trireme/obs/table.hpp"

#include "options.hpp"
#include <fmt/format.h>

#include <algorithm>

namespace trireme::train {

namespace {

std::string describe_ranks(Context& context, const config::Config& config) {
  const comm::Topology& topology = context.session().topology();
  const int threads = threads_of(context, config.run);
  std::string text =
      fmt::format("{} on {} node{}, {} thread{} each", context.world().size(), topology.num_nodes,
                  topology.num_nodes == 1 ? "" : "s", threads, threads == 1 ? "" : "s");
  if (context.identity().launcher != "none")
    text += fmt::format(" (started by {})", context.identity().launcher);
  return text;
}

std::string describe_batch(const config::Config& config, int ranks) {
  const std::int64_t micro_batches = config.train.global_batch_size / config.train.micro_batch_size;
  return fmt::format("{} sequences of {} tokens a step = {} micro-batches of {} over {} rank{}",
                     config.train.global_batch_size, config.data.sequence_length, micro_batches,
                     config.train.micro_batch_size, ranks, ranks == 1 ? "" : "s");
}

std::string describe_data(const TrainingState& state, std::uint64_t eval_samples) {
  return fmt::format("{} training and {} evaluation sequences; position {} ({:.2f} epochs)",
                     state.train_samples, eval_samples, state.samples,
                     static_cast<double>(state.samples) / static_cast<double>(state.train_samples));
}

std::string describe_units(const parallel::Layout& layout) {
  return fmt::format("{} parameters in {} units, the largest {}",
                     human_count(layout.num_parameters()), layout.units().size(),
                     human_count(layout.largest_unit()));
}

}  // namespace

std::string banner(Context& context, const config::Loaded& loaded, const parallel::Engine& engine,
                   const TrainingState& state, std::uint64_t eval_samples) {
  const config::Config& config = loaded.config;
  const parallel::MemoryUse memory = engine.memory();
  obs::Rows rows{
      {"run", fmt::format("{}/{}", config.run.dir, config.run.name)},
      {"model", fmt::format("{}: {}", model_name(config.model), describe_units(engine.layout()))},
      {"strategy", fmt::format("{}, compute {}, reduce {}", config.parallel.strategy,
                               config.precision.compute, config.precision.reduce)},
      {"ranks", describe_ranks(context, config)},
      {"batch", describe_batch(config, context.world().size())},
      {"data", describe_data(state, eval_samples)},
      {"memory a rank",
       fmt::format("{} = weights {} + gradients {} + master {} + moments {} + buffers {}",
                   human(memory.total()), human(memory.work), human(memory.grad),
                   human(memory.master), human(memory.moments), human(memory.transient)) +
           (memory.disk.value > 0 ? fmt::format("; on disk {}", human(memory.disk)) : "")},
      {"steps", state.step == 0 ? fmt::format("{}", config.train.max_steps)
                                : fmt::format("{} to {}", state.step, config.train.max_steps)},
  };
  std::string text = obs::aligned(fmt::format("trireme {}", build::kVersion), rows);
  const obs::Rows changed = config::changed_settings(config, loaded.sources);
  if (!changed.empty()) text += obs::aligned("settings that are not the defaults", changed);
  return text;
}

int threads_of(Context& context, const config::Run& run) {
  const int asked = static_cast<int>(run.threads);
  if (run.reproducible)
    return asked;  // products with other numbers of threads may differ in the last bit
  return std::max(asked, cluster::usable_cores() / context.session().node().size());
}

std::vector<std::string> start_warnings(Context& context, const config::Config& config,
                                        const parallel::Engine& engine) {
  std::vector<std::string> warnings;
  const std::string& inexact = engine.assignment().inexact;
  if (!inexact.empty() && config.run.reproducible) {
    warnings.push_back("results will not equal those of other rank counts to the bit: " + inexact);
  }
  if (config.precision.reduce == "bf16" && context.session().topology().num_nodes == 1) {
    warnings.emplace_back(
        "precision.reduce: bf16 changes what travels between nodes, and this job has one");
  }
  const int busy = threads_of(context, config.run);
  const int cores = cluster::usable_cores();
  if (context.session().node().size() == 1 && busy < cores) {
    warnings.push_back(
        fmt::format("{} of {} usable cores will work: start more ranks (mpirun -np {}), or raise "
                    "run.threads (which changes the last bits of results)",
                    busy, cores, cores));
  }
  return warnings;
}

}  // namespace trireme::train
