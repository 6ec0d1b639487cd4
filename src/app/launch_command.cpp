// trireme launch: N ranks of one job on this machine or on named hosts, by the mpirun or srun that
// is here. Labels what each rank prints, passes its exit code on, and shows the first error of the
// rank that failed last of all, where it is seen. Starts nothing that cannot be one job of N ranks.
#include "trireme/base/environment.hpp"
#include "trireme/base/error.hpp"
#include "trireme/cluster/command.hpp"
#include "trireme/cluster/hosts.hpp"
#include "trireme/cluster/identity.hpp"
#include "trireme/config/adapt.hpp"

#include "commands.hpp"
#include "labelled_job.hpp"
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

namespace trireme::app {

namespace {

struct Arguments {
  std::int64_t num_processes = 0;  // unknown
  std::int64_t num_machines = 0;
  std::string hosts;
  std::string host_file;
  std::string accelerate;
  std::string binding = "core";
  std::string mixed_precision;
  std::int64_t zero_stage = -1;
  bool use_fsdp = false;
  bool use_deepspeed = false;
  bool cpu = false;
  bool gpu = false;
  bool oversubscribe = false;
  bool no_label = false;
  bool print = false;
  int max_restarts = 0;
  std::vector<std::string> idle;  // flags of a rendezvous, which MPI needs none of
  std::vector<std::string> words;
};

[[noreturn]] void refuse(std::string message, std::string hint) {
  throw Error(ErrorKind::kUsage, std::move(message), std::move(hint));
}

// --- what is started

// Accelerate's flags about training, as settings of train.
std::vector<std::string> settings(const Arguments& arguments) {
  std::vector<std::string> out;
  const auto set = [&](std::string_view path, std::string_view value) {
    out.insert(out.end(), {"--set", fmt::format("{}={}", path, value)});
  };
  if (arguments.use_fsdp && arguments.use_deepspeed)
    refuse("--use_fsdp and --use_deepspeed do not go together", "one of the two");
  if (arguments.zero_stage >= 0 && !arguments.use_deepspeed)
    refuse("--zero_stage has no effect without --use_deepspeed", "add --use_deepspeed");
  if (arguments.use_fsdp) set("parallel.strategy", "zero3");
  if (arguments.use_deepspeed) {
    const std::int64_t stage = arguments.zero_stage < 0 ? 2 : arguments.zero_stage;
    set("parallel.strategy", stage == 0 ? "ddp" : fmt::format("zero{}", stage));
  }
  if (!arguments.mixed_precision.empty())
    set("precision.compute",
        arguments.mixed_precision == "no" ? "fp32" : arguments.mixed_precision);
  return out;
}

// The program of each rank: what the user named, or this one's own train.
std::vector<std::string> program_words(const Arguments& arguments) {
  std::vector<std::string> words = arguments.words;
  if (words.empty())
    refuse("nothing to start", "trireme launch -n 2 train my.yaml, or any MPI program");
  std::vector<std::string> set = settings(arguments);
  if (words[0] != "train") {
    if (!set.empty())
      refuse(fmt::format("settings of train do not reach the program '{}'", words[0]),
             "give it its own arguments, behind its name");
    return words;
  }
  words.insert(words.begin(), std::filesystem::read_symlink("/proc/self/exe").string());
  if (!arguments.accelerate.empty())
    words.insert(words.end(), {"--accelerate", arguments.accelerate});
  words.insert(words.end(), set.begin(), set.end());
  return words;
}

// After a failure train goes on where it stopped.
std::vector<std::string> resumed(std::vector<std::string> words) {
  const bool trains = words.size() > 1 && words[1] == "train";
  const auto resume = std::ranges::find_if(
      words, [](const std::string& word) { return word.starts_with("--resume"); });
  if (trains && resume == words.end()) words.insert(words.end(), {"--resume", "auto"});
  return words;
}

// --- where

struct Place {
  std::int64_t num_processes = 0;
  std::vector<cluster::HostSlots> hosts;  // empty: this machine, or the job's own
};

std::vector<cluster::HostSlots> named_hosts(const Arguments& arguments) {
  if (!arguments.hosts.empty() && !arguments.host_file.empty())
    refuse("--hosts and --hostfile both name hosts", "one of the two");
  if (!arguments.host_file.empty()) {
    std::ifstream stream(arguments.host_file);
    if (!stream) throw_errno("open the host file", arguments.host_file);
    std::string text;
    // "slots=2" as Open MPI and DeepSpeed write it is the number itself.
    for (std::string line; std::getline(stream, line);) {
      if (const auto at = line.find("slots="); at != std::string::npos) line.erase(at, 6);
      text += line.substr(0, line.find('#')) + "\n";
    }
    return cluster::parse_node_file(text);
  }
  std::vector<cluster::HostSlots> out;
  for (std::string_view rest = arguments.hosts; !rest.empty();) {
    const auto end = std::min(rest.find(','), rest.size());
    const std::string_view word = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const auto colon = word.find(':');
    int slots = 1;
    if (colon != std::string_view::npos) {
      const std::string number(word.substr(colon + 1));
      if (number.empty() || number.size() > 6 ||
          number.find_first_not_of("0123456789") != std::string::npos || number == "0")
        refuse(fmt::format("--hosts: '{}' is no host with a number of ranks", word),
               "--hosts node1:4,node2:4");
      slots = std::stoi(number);
    }
    if (word.substr(0, colon).empty()) refuse("--hosts: an empty name", "--hosts node1:4,node2:4");
    out.push_back({std::string(word.substr(0, colon)), slots});
  }
  return out;
}

void fill_from_file(Arguments& arguments) {
  if (arguments.accelerate.empty()) return;
  const config::Foreign foreign =
      config::read_foreign(config::ForeignKind::kAccelerate, arguments.accelerate);
  for (const config::ForeignFinding& finding : foreign.findings)
    if (finding.severity == config::Severity::kError)
      throw Error(ErrorKind::kConfig, finding.report(), "trireme config show --accelerate FILE");
  const auto asked = foreign.meaning.at("strategy").is("none")
                         ? std::optional<std::int64_t>(1)
                         : foreign.meaning.at("num_processes").integer();
  if (asked && arguments.num_processes != 0 && arguments.num_processes != *asked)
    refuse(fmt::format("-n {} contradicts {}, which says {}", arguments.num_processes,
                       arguments.accelerate, *asked),
           "leave -n out, or change num_processes in the file");
  if (asked) arguments.num_processes = *asked;
  if (arguments.num_machines == 0)
    arguments.num_machines = foreign.meaning.at("num_machines").integer().value_or(1);
  const config::Value& extra = foreign.meaning.at("extra");
  for (const char* const name : {"mpirun_hostfile", "hostfile"})
    if (const auto text = extra.at(name).text();
        text && arguments.hosts.empty() && arguments.host_file.empty())
      arguments.host_file = *text;
}

Place place_of(const Arguments& arguments, bool in_job) {
  Place place{arguments.num_processes, named_hosts(arguments)};
  const auto machines = static_cast<std::int64_t>(place.hosts.size());
  if (machines > 0) {
    const int slots = cluster::total_slots(place.hosts);
    if (place.num_processes == 0) place.num_processes = slots;
    if (place.num_processes > slots && !arguments.oversubscribe)
      refuse(fmt::format("{} processes do not fit the {} places of the hosts", place.num_processes,
                         slots),
             "more hosts, HOST:N with a larger number, or --oversubscribe");
    if (arguments.num_machines > 1 && arguments.num_machines != machines)
      refuse(
          fmt::format("{} machines asked for, but {} are named", arguments.num_machines, machines),
          "the same number");
    return place;
  }
  if (arguments.num_machines > 1 && !in_job)
    refuse(fmt::format("{} machines asked for, but none is named", arguments.num_machines),
           "--hosts node1:4,node2:4, --hostfile FILE, or start inside a job");
  if (place.num_processes == 0)
    refuse("how many processes?", "-n 2, --num_processes 2, or --accelerate FILE that says it");
  const int cores = cluster::usable_cores();
  if (!in_job && place.num_processes > cores && !arguments.oversubscribe)
    refuse(fmt::format("{} processes on {} cores", place.num_processes, cores),
           "fewer, --hosts for more machines, or --oversubscribe");
  return place;
}

// --- with what

std::vector<std::string> open_mpi_words(const Arguments& arguments, const Place& place) {
  std::vector<std::string> words{"mpirun", "-n", std::to_string(place.num_processes)};
  // Whoever runs this as root, as in a container, has decided that already.
  if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
  if (!arguments.no_label) words.emplace_back("--tag-output");
  words.insert(words.end(), {"--bind-to", arguments.oversubscribe ? "none" : arguments.binding});
  if (arguments.oversubscribe) words.emplace_back("--oversubscribe");
  if (!place.hosts.empty())
    words.insert(words.end(), {"--host", cluster::host_argument(place.hosts)});
  return words;
}

std::vector<std::string> hydra_words(const Arguments& arguments, const Place& place) {
  std::vector<std::string> words{"mpirun", "-n", std::to_string(place.num_processes)};
  if (!arguments.no_label) words.emplace_back("-prepend-rank");
  words.insert(words.end(), {"-bind-to", arguments.oversubscribe ? "none" : arguments.binding});
  if (!place.hosts.empty())
    words.insert(words.end(), {"-hosts", cluster::host_argument(place.hosts)});
  return words;
}

std::vector<std::string> srun_words(const Arguments& arguments, const Place& place) {
  if (!place.hosts.empty())
    refuse(
        "a job's hosts are the scheduler's choice; mpirun, which could start elsewhere, is not "
        "here",
        "leave --hosts and --hostfile out");
  std::vector<std::string> words{"srun", "-n", std::to_string(place.num_processes), "--mpi=pmix"};
  if (!arguments.no_label) words.emplace_back("--label");
  if (arguments.binding == "core") words.emplace_back("--cpu-bind=cores");
  if (arguments.binding == "none") words.emplace_back("--cpu-bind=none");
  return words;
}

std::vector<std::string> launcher_words(const Arguments& arguments, const Place& place,
                                        bool in_job) {
  constexpr std::chrono::seconds kPatience{20};
  const auto version = cluster::run_command({"mpirun", "--version"}, kPatience);
  if (version.good() && version.output.find("Open MPI") != std::string::npos)
    return open_mpi_words(arguments, place);
  if (version.good()) return hydra_words(arguments, place);
  if (in_job && cluster::run_command({"srun", "--version"}, kPatience).good())
    return srun_words(arguments, place);
  throw Error(ErrorKind::kEnvironment, "there is neither mpirun nor, in a job, srun",
              "load the MPI module that trireme is built with (trireme --version names it)");
}

void require_sensible(const Arguments& arguments) {
  if (arguments.gpu)
    refuse("--multi_gpu: training computes on the CPU in this version", "leave it out");
  if (!arguments.idle.empty())
    fmt::print(stderr, "trireme: no effect: {}: MPI connects the ranks\n",
               fmt::join(arguments.idle, ", "));
}

int run(Arguments arguments) {
  require_sensible(arguments);
  fill_from_file(arguments);
  const bool in_job = ::getenv("SLURM_JOB_ID") != nullptr || ::getenv("PBS_JOBID") != nullptr;
  const Place place = place_of(arguments, in_job);
  const std::vector<std::string> program = program_words(arguments);
  const std::vector<std::string> launcher = launcher_words(arguments, place, in_job);
  for (int attempt = 0;; ++attempt) {
    std::vector<std::string> words = launcher;
    const std::vector<std::string> rank = attempt == 0 ? program : resumed(program);
    words.insert(words.end(), rank.begin(), rank.end());
    if (arguments.print) {
      fmt::print("{}\n", fmt::join(words, " "));
      return 0;
    }
    const JobOutcome outcome = run_labelled(words);
    const bool hopeless = outcome.code == exit_code(ErrorKind::kUsage) ||
                          outcome.code == exit_code(ErrorKind::kConfig) || outcome.signalled;
    if (outcome.code == 0 || hopeless || attempt >= arguments.max_restarts) {
      print_first_error(outcome);
      return outcome.code;
    }
    print_first_error(outcome);
    fmt::print(stderr, "trireme: starting again, {} of {}\n", attempt + 1, arguments.max_restarts);
  }
}

}  // namespace

void add_launch(Program program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.cli.add_subcommand(
      "launch", "start N ranks of one job by mpirun or srun: train, or any MPI program");
  command
      ->add_option("-n,--num_processes,--num-processes", arguments->num_processes,
                   "ranks, over all machines")
      ->check(CLI::Range(1, 1'000'000));
  command
      ->add_option("--num_machines,--num-machines", arguments->num_machines,
                   "machines; must be as many as are named")
      ->check(CLI::Range(1, 1'000'000));
  command->add_option("--hosts", arguments->hosts, "hosts with ranks on each: node1:4,node2:4");
  command->add_option("--hostfile,--mpirun_hostfile,--deepspeed_hostfile", arguments->host_file,
                      "a file of hosts: NAME, NAME N or NAME slots=N");
  command->add_option("--accelerate,--config_file,--config-file", arguments->accelerate,
                      "a file that accelerate config wrote: ranks, hosts, and settings of train");
  command->add_option("--bind-to", arguments->binding, "what a rank is bound to")
      ->check(CLI::IsMember({"core", "socket", "numa", "none"}))
      ->capture_default_str();
  command
      ->add_option("--max_restarts,--max-restarts", arguments->max_restarts,
                   "starts again after a failure; train then goes on from its checkpoint")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command
      ->add_option("--mixed_precision,--mixed-precision", arguments->mixed_precision,
                   "of train: no, bf16 or fp16")
      ->check(CLI::IsMember({"no", "bf16", "fp16"}));
  command->add_flag("--use_fsdp,--use-fsdp", arguments->use_fsdp, "of train: zero3");
  command->add_flag("--use_deepspeed,--use-deepspeed", arguments->use_deepspeed,
                    "of train: zero2, or what --zero_stage says");
  command->add_option("--zero_stage,--zero-stage", arguments->zero_stage, "with --use_deepspeed")
      ->check(CLI::Range(0, 3));
  command->add_flag("--cpu", arguments->cpu, "as ever: training computes on the CPU");
  command->add_flag("--multi_gpu,--multi-gpu", arguments->gpu, "refused in this version");
  command->add_flag("--oversubscribe", arguments->oversubscribe,
                    "more ranks than cores; they wait for each other");
  command->add_flag("--no-label", arguments->no_label, "lines without the rank before them");
  command->add_flag("--print", arguments->print, "show the command and start nothing");
  for (const char* const flag : {"--machine_rank", "--main_process_ip", "--main_process_port",
                                 "--rdzv_backend", "--same_network", "--monitor_interval"})
    command->add_option_function<std::string>(
        flag, [arguments, flag](const std::string&) { arguments->idle.emplace_back(flag); },
        "no effect: MPI connects the ranks");
  command->footer("Then: train FILE.yaml ... with its own options, or PROGRAM ARGUMENTS ...");
  command->prefix_command();
  command->callback([program, arguments, command] {
    program.action = [arguments, command] {
      arguments->words = command->remaining();
      return run(*arguments);
    };
  });
}

}  // namespace trireme::app
