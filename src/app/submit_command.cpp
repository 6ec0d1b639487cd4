#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/cluster/submission.hpp"

#include "commands.hpp"
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>

namespace trireme::app {

namespace {

namespace fs = std::filesystem;

struct Arguments {
  cluster::Submission job;
  std::string scheduler = "auto";
  std::string site;
  std::string time;
  int chain = 1;
  bool print = false;
  bool json = false;
};

// A scheduler under load takes its time; more than this and a person should look.
constexpr std::chrono::seconds kPatience{60};

cluster::Scheduler scheduler_of(const Arguments& arguments, const cluster::Ask& ask) {
  const std::string& sites = arguments.job.site ? arguments.job.site->scheduler : std::string();
  if (sites == "flux") {
    throw Error(ErrorKind::kConfig,
                fmt::format("{} is run by Flux, for which no job script can be written yet",
                            arguments.job.site->title),
                "start with flux run or flux batch: trireme train understands both");
  }
  const std::string asked = arguments.scheduler == "auto" ? sites : arguments.scheduler;
  if (!sites.empty() && asked != sites) {
    throw Error(ErrorKind::kConfig,
                fmt::format("--scheduler {} and --site {} contradict each other: the site has {}",
                            asked, arguments.job.site->name, sites),
                "leave --scheduler out");
  }
  if (asked == "slurm") return cluster::Scheduler::kSlurm;
  if (asked == "pbs") return cluster::Scheduler::kPbs;
  return cluster::find_scheduler(ask);
}

int count_settings(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw_errno("open the sweep", path);
  int count = 0;
  for (std::string line; std::getline(stream, line);) {
    const auto begin = line.find_first_not_of(" \t\r");
    if (begin != std::string::npos && line[begin] != '#') ++count;
  }
  if (count == 0)
    throw Error(ErrorKind::kConfig, fmt::format("{} has no line with settings", path),
                "a line for each task, as in: --set optimizer.lr=1e-3 --set run.name=lr-1e-3");
  return count;
}

// A name that no earlier submission has: the chain's file is named after it.
fs::path script_path(const cluster::Submission& job) {
  const std::time_t now = std::time(nullptr);
  std::array<char, 32> stamp{};
  std::tm parts{};
  localtime_r(&now, &parts);
  std::strftime(stamp.data(), stamp.size(), "%Y%m%d-%H%M%S", &parts);
  const char* ending = job.scheduler == cluster::Scheduler::kSlurm ? "sbatch" : "pbs";
  for (int number = 0;; ++number) {
    const fs::path path =
        fs::current_path() / fmt::format("{}-{}{}.{}", job.name, stamp.data(),
                                         number == 0 ? "" : fmt::format("-{}", number), ending);
    if (!fs::exists(path)) return path;
  }
}

void require_sensible(const Arguments& arguments) {
  const auto refuse = [](std::string message, std::string hint) {
    throw Error(ErrorKind::kUsage, std::move(message), std::move(hint));
  };
  const cluster::Submission& job = arguments.job;
  if (job.words.empty()) refuse("nothing to train", "trireme submit --nodes 2 train my.yaml");
  if (job.words[0] != "train")
    refuse(fmt::format("submit cannot run '{}'", job.words[0]),
           "options of submit come first, then: train FILE.yaml ...");
  if (job.words.size() < 2) refuse("train needs a configuration file", "submit ... train my.yaml");
  if (arguments.chain > 1 && !job.sweep.empty())
    refuse("--chain and --sweep do not go together", "a chain for each line, or an array without");
  const bool plain = std::ranges::all_of(job.name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
  if (job.name.empty() || !plain)
    refuse(fmt::format("--name '{}' has other characters than letters, digits, - _ .", job.name),
           "PBS takes no others");
}

void write_script(const fs::path& path, const std::string& text) {
  std::ofstream stream(path);
  stream << text;
  if (!stream.flush()) throw_errno("write", path.string());
  fs::permissions(path, fs::perms::owner_exec, fs::perm_options::add);
}

int run(Arguments arguments, const Program& program) {
  require_sensible(arguments);
  cluster::Submission& job = arguments.job;
  const cluster::Ask ask = cluster::ask_within(kPatience);
  if (!arguments.site.empty()) job.site = cluster::find_site(arguments.site);
  job.scheduler = scheduler_of(arguments, ask);
  if (!arguments.time.empty()) job.seconds = cluster::time_limit(arguments.time);
  if (!job.sweep.empty()) job.num_tasks = count_settings(job.sweep);
  job.chain = arguments.chain > 1;
  job.words.erase(job.words.begin());  // "train" is the script's
  job.program = fs::read_symlink("/proc/self/exe").string();
  job.command_line.assign(program.argv, program.argv + program.argc);
  job.script = script_path(job);

  const std::string text = cluster::job_script(job);
  if (job.site) {
    for (const std::string& note : job.site->notes)
      fmt::print(stderr, "{}: {}\n", job.site->title, note);
  }
  if (arguments.print) {
    fmt::print("{}", text);
    return 0;
  }
  write_script(job.script, text);
  const auto ids = cluster::submit(job, arguments.chain, ask);
  if (!arguments.json) {
    fmt::print("{}\n", fmt::join(ids, "\n"));
    return 0;
  }
  std::string list;
  for (const std::string& id : ids) list += (list.empty() ? "" : ", ") + json_quoted(id);
  fmt::print("{{\"scheduler\": \"{}\", \"jobs\": [{}], \"script\": {}}}\n",
             job.scheduler == cluster::Scheduler::kSlurm ? "slurm" : "pbs", list,
             json_quoted(job.script.string()));
  return 0;
}

}  // namespace

void add_submit(Program program) {
  auto arguments = std::make_shared<Arguments>();
  cluster::Submission& job = arguments->job;
  CLI::App* command = program.cli.add_subcommand(
      "submit", "write a job script, hand it to Slurm or PBS and print the job's id");
  command->add_option("--scheduler", arguments->scheduler, "slurm, pbs, or auto: what is here")
      ->check(CLI::IsMember({"slurm", "pbs", "auto"}))
      ->capture_default_str();
  command->add_option("--site", arguments->site,
                      fmt::format("a centre's profile ({}), or a file of your own",
                                  fmt::join(cluster::site_names(), ", ")));
  command->add_option("--nodes", job.nodes, "how many nodes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--ranks-per-node", job.ranks_per_node,
                   "processes on each node; the site's number, else 1")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--cpus-per-rank", job.cpus_per_rank,
                   "cores for each process; the site's number, else 1")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--gpus-per-node", job.gpus_per_node,
                   "GPUs of each node; the site's number, else 0")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--time", arguments->time,
                      "the time limit: 90m, 2h, 01:30:00, 1-12:00:00; else the script's own");
  command
      ->add_option("--chain", arguments->chain,
                   "so many jobs one after the other; each goes on where the last one stopped")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--sweep", job.sweep,
                      "an array of jobs: a file with settings for each, a line a job");
  command->add_option("--name", job.name, "the job's name")->capture_default_str();
  command->add_option("--account", job.account, "the project that pays");
  command->add_option("--partition,--queue", job.partition, "Slurm's partition, PBS's queue");
  command
      ->add_option("--option", job.options,
                   "one more line for the scheduler, as in --option=--constraint=gpu")
      ->allow_extra_args(false);
  command
      ->add_option("--stage", job.stage,
                   "copy to each node first: 'binary' (with its libraries), or a file or folder; "
                   "{local} in a setting is the folder of the copies")
      ->allow_extra_args(false);
  command->add_flag("--print", arguments->print, "show the script and submit nothing");
  command->add_flag("--json", arguments->json, "one JSON object on standard output");
  command->footer("Then: train FILE.yaml ... with its own options; --resume auto is added.");
  command->prefix_command();
  command->callback([program, arguments, command] {
    program.action = [program, arguments, command] {
      arguments->job.words = command->remaining();
      return run(*arguments, program);
    };
  });
}

}  // namespace trireme::app
