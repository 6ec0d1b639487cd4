#include "trireme/cluster/submission.hpp"

#include "trireme/base/error.hpp"
#include "trireme/cluster/job.hpp"

#include "cluster/shipped.hpp"
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace trireme::cluster {

namespace {

using Lines = std::vector<std::string>;

Lines lines_of(std::string_view text) {
  Lines lines;
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

void append(Lines& to, const Lines& from) { to.insert(to.end(), from.begin(), from.end()); }

[[noreturn]] void refuse(std::string message, std::string hint) {
  throw Error(ErrorKind::kConfig, std::move(message), std::move(hint));
}

std::string clock(double seconds) {
  const auto total = static_cast<long>(std::ceil(seconds));
  return fmt::format("{:02}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

// ---- what is asked for ----

// The numbers of a job after the site's and our own defaults.
struct Shape {
  int ranks, cpus, gpus;
  std::string script;  // which of the annotated scripts
};

Shape shape_of(const Submission& job) {
  const Site none;
  const Site& site = job.site ? *job.site : none;
  const auto first = [](std::optional<int> asked, std::optional<int> sites, int otherwise) {
    return asked.value_or(sites.value_or(otherwise));
  };
  Shape shape{first(job.ranks_per_node, site.ranks_per_node, 1),
              first(job.cpus_per_rank, site.cpus_per_rank, 1),
              first(job.gpus_per_node, site.gpus_per_node, 0),
              {}};
  shape.script = !job.sweep.empty() ? "array-sweep"
                 : job.chain        ? "chained"
                 : job.nodes == 1   ? "single-node"
                 : shape.gpus > 0   ? "multi-node-gpu"
                                    : "multi-node-cpu";
  return shape;
}

bool slurm(const Submission& job) { return job.scheduler == Scheduler::kSlurm; }

// Every line for the scheduler that is not one of the script's own.
std::vector<std::string> extra_options(const Submission& job) {
  std::vector<std::string> options;
  if (job.site) options = job.site->options;
  if (!job.account.empty()) options.push_back((slurm(job) ? "--account=" : "-A ") + job.account);
  if (!job.partition.empty())
    options.push_back((slurm(job) ? "--partition=" : "-q ") + job.partition);
  options.insert(options.end(), job.options.begin(), job.options.end());
  return options;
}

void require_what_the_site_needs(const Submission& job) {
  if (!job.site) return;
  const auto options = extra_options(job);
  for (const std::string& need : job.site->needs) {
    if (std::ranges::any_of(options, [&](const auto& option) { return option.starts_with(need); }))
      continue;
    const bool account = need == "--account" || need == "-A";
    const bool queue = need == "--partition" || need == "-q";
    refuse(fmt::format("every job of {} needs {}", job.site->title, need),
           account ? "say --account PROJECT"
           : queue ? "say --partition NAME"
                   : fmt::format("say --option '{}=...'", need));
  }
}

// ---- lines for the scheduler ----

// Replaces the line with this option, or adds it: later lines win in Slurm, and PBS wants one of each.
void set_option(Lines& directives, const std::string& prefix, const std::string& key,
                const std::string& line) {
  const std::string start = prefix + " " + key;
  const auto found =
      std::ranges::find_if(directives, [&](const auto& entry) { return entry.starts_with(start); });
  if (found != directives.end()) {
    *found = prefix + " " + line;
  } else {
    directives.push_back(prefix + " " + line);
  }
}

void remove_option(Lines& directives, const std::string& start) {
  std::erase_if(directives, [&](const auto& entry) { return entry.starts_with(start); });
}

// A line of a profile or a person: "--constraint=gpu" takes the place of another --constraint=.
std::string key_of(const Submission& job, const std::string& option) {
  if (slurm(job)) return option.substr(0, option.find('='));
  return option.substr(0, option.find('='));  // "-l place" of "-l place=scatter", "-A m1"
}

void set_slurm(Lines& directives, const Submission& job, const Shape& shape) {
  const auto set = [&](const std::string& key, const std::string& value) {
    set_option(directives, "#SBATCH", key, fmt::format("{}={}", key, value));
  };
  set("--job-name", job.name);
  set("--nodes", std::to_string(job.nodes));
  set("--ntasks-per-node", std::to_string(shape.ranks));
  set("--cpus-per-task", std::to_string(shape.cpus));
  remove_option(directives, "#SBATCH --gpus-per-node");
  const auto options = extra_options(job);
  const bool own_gpus = std::ranges::any_of(
      options, [](const auto& option) { return option.starts_with("--gres=gpu"); });
  if (shape.gpus > 0 && !own_gpus) set("--gpus-per-node", std::to_string(shape.gpus));
  if (job.seconds) {
    set("--time", clock(*job.seconds));
    // A short job cannot be told three minutes before its end.
    const int lead = std::min(180, std::max(30, static_cast<int>(*job.seconds / 3)));
    set("--signal", fmt::format("B:USR1@{}", lead));
  }
  if (!job.sweep.empty()) set("--array", fmt::format("1-{}", job.num_tasks));
  for (const std::string& option : options)
    set_option(directives, "#SBATCH", key_of(job, option), option);
}

void set_pbs(Lines& directives, const Submission& job, const Shape& shape) {
  const auto set = [&](const std::string& key, const std::string& line) {
    set_option(directives, "#PBS", key, line);
  };
  set("-N", "-N " + job.name);
  std::string select = fmt::format("-l select={}:ncpus={}:mpiprocs={}", job.nodes,
                                   shape.ranks * shape.cpus, shape.ranks);
  if (shape.gpus > 0) select += fmt::format(":ngpus={}", shape.gpus);
  set("-l select", select);
  if (job.seconds) set("-l walltime", "-l walltime=" + clock(*job.seconds));
  if (!job.sweep.empty()) set("-J", fmt::format("-J 1-{}", job.num_tasks));
  for (const std::string& option : extra_options(job)) set(key_of(job, option), option);
}

// ---- the script ----

// A script's parts: what the scheduler reads, with its comments, and what the shell runs.
struct Parts {
  Lines directives, body;
};

Parts parts_of(std::string_view text, const std::string& prefix) {
  Parts parts;
  bool begun = false;
  bool ended = false;
  for (const std::string& line : lines_of(text)) {
    if (!begun && !line.starts_with(prefix)) continue;  // how to submit it by hand
    begun = true;
    ended = ended || !line.starts_with('#');
    (ended ? parts.body : parts.directives).push_back(line);
  }
  return parts;
}

bool sources_something(const std::string& line) { return line.starts_with(". \""); }
bool is_checkers_hint(const std::string& line) { return line.starts_with("# shellcheck source="); }

// The shell code of a shipped file, with the files that it sources in their place.
Lines inlined(const std::string& path) {
  Lines result;
  for (const std::string& line : lines_of(shipped_file(path))) {
    if (line.starts_with("# shellcheck shell=") || is_checkers_hint(line)) continue;
    if (sources_something(line)) {
      append(result, inlined("share/job/job.sh"));
    } else {
      result.push_back(line);
    }
  }
  return result;
}

std::string quoted_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + shell_quoted(word);
  return text;
}

Lines settings(const Submission& job) {
  Lines lines{"", "# What was asked for; what the environment has already is left as it is."};
  const auto set = [&](const char* name, const std::string& value) {
    lines.push_back(
        fmt::format("if [[ -z ${{{0}:-}} ]]; then export {0}={1}; fi", name, shell_quoted(value)));
  };
  set("TRIREME_BIN", job.program);
  // Not left as it is: a job that submits another hands its environment down.
  if (job.chain)
    lines.push_back("export TRIREME_CHAIN=" + shell_quoted(job.script.string() + ".chain"));
  if (!job.stage.empty()) set("TRIREME_STAGE", fmt::format("{}", fmt::join(job.stage, " ")));
  if (!job.sweep.empty() && !slurm(job)) set("SWEEP", job.sweep);
  return lines;
}

Lines site_lines(const Submission& job) {
  if (!job.site) return {};
  Lines lines{"", fmt::format("trireme_apply_site {} \"$trireme_nodes\" <<'TRIREME_SITE_PROFILE'",
                              shell_quoted(job.site->name))};
  append(lines, lines_of(job.site->text));
  lines.push_back("TRIREME_SITE_PROFILE");
  return lines;
}

// The script's last lines, with our words for those that a person would give by hand.
Lines body(const Submission& job, const Lines& annotated) {
  Lines result;
  const std::string folder = slurm(job) ? "slurm" : "pbs";
  std::vector<std::string> words = job.words;
  if (slurm(job) && !job.sweep.empty()) words.insert(words.begin(), job.sweep);
  for (const std::string& line : annotated) {
    if (is_checkers_hint(line)) continue;
    if (sources_something(line)) {
      append(result, settings(job));
      result.emplace_back();
      append(result, inlined(folder + "/trireme.sh"));
      append(result, site_lines(job));
      result.emplace_back();
      if (slurm(job)) result.push_back("set -- " + quoted_words(words));
    } else if (line.starts_with("read -ra words")) {
      result.push_back("words=(" + quoted_words(words) + ")");
    } else if (line.starts_with("export TRIREME_SCRIPT=")) {
      result.push_back("export TRIREME_SCRIPT=" + shell_quoted(job.script.string()));
    } else if (line.starts_with("export TRIREME_WALLTIME=") && job.seconds) {
      result.push_back(fmt::format("export TRIREME_WALLTIME={:.0f}", std::ceil(*job.seconds)));
    } else {
      result.push_back(line);
    }
  }
  return result;
}

std::string first_line(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_first_of(" \t\r\n", begin) - begin);
}

}  // namespace

std::string_view shipped_file(std::string_view path) {
  for (const ShippedFile& file : shipped_files()) {
    if (file.path == path) return file.text;
  }
  throw Error(ErrorKind::kInternal, fmt::format("{} is not part of the program", path));
}

std::string shell_quoted(std::string_view word) {
  const bool plain = !word.empty() && std::ranges::all_of(word, [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./=,:@%+").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return std::string(word);
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

double time_limit(std::string_view text) {
  constexpr std::string_view kUnits = "smhd";
  constexpr double kSeconds[] = {1, 60, 3600, 86400};
  std::optional<double> seconds;
  const auto unit = text.empty() ? std::string_view::npos : kUnits.find(text.back());
  if (unit != std::string_view::npos) {
    const std::string_view digits = text.substr(0, text.size() - 1);
    if (digits.find_first_of(":-") == std::string_view::npos)
      seconds = seconds_of(digits, kSeconds[unit]);
  } else if (text.find(':') != std::string_view::npos || text.find('-') != std::string_view::npos) {
    seconds = seconds_of(text, 0);
  }
  if (!seconds || !(*seconds > 0) || *seconds > 366.0 * 86400)
    refuse(fmt::format("--time '{}' is no time limit", text),
           "as in 90m, 2h, 1d, 01:30:00 or 1-12:00:00");
  return *seconds;
}

std::string job_script(const Submission& job) {
  require_what_the_site_needs(job);
  const std::string prefix = slurm(job) ? "#SBATCH" : "#PBS";
  const std::string path = slurm(job) ? "slurm/" : "pbs/";
  const Shape shape = shape_of(job);
  Parts parts =
      parts_of(shipped_file(path + shape.script + (slurm(job) ? ".sbatch" : ".pbs")), prefix);
  if (slurm(job)) {
    set_slurm(parts.directives, job, shape);
  } else {
    set_pbs(parts.directives, job, shape);
  }
  Lines script{
      "#!/bin/bash",
      fmt::format("# Written from {}{} by: {}", path, shape.script, quoted_words(job.command_line)),
      "# It stands alone: later changes of the installation do not reach a queued job.",
      "# shellcheck disable=SC2016,SC2317  # words are meant as they are; not every function is "
      "used"};
  append(script, parts.directives);
  append(script, body(job, parts.body));
  return fmt::format("{}\n", fmt::join(script, "\n"));
}

Scheduler find_scheduler(const Ask& ask) {
  if (ask({"sbatch", "--version"}).code != 127) return Scheduler::kSlurm;
  if (ask({"qsub", "--version"}).code != 127) return Scheduler::kPbs;
  throw Error(ErrorKind::kEnvironment, "there is neither sbatch nor qsub here",
              "run this on a login node, or use --print with --scheduler slurm or pbs");
}

std::vector<std::string> submit(const Submission& job, int links, const Ask& ask) {
  std::vector<std::string> ids;
  for (int link = 0; link < links; ++link) {
    std::vector<std::string> words = slurm(job) ? std::vector<std::string>{"sbatch", "--parsable"}
                                                : std::vector<std::string>{"qsub"};
    if (!ids.empty()) {
      const std::string after = "afterany:" + ids.back();
      append(words, slurm(job) ? Lines{"--dependency=" + after} : Lines{"-W", "depend=" + after});
    }
    words.push_back(job.script.string());
    const CommandResult result = ask(words);
    // sbatch --parsable may add ";cluster".
    const std::string answer = first_line(result.output);
    const std::string id = answer.substr(0, answer.find(';'));
    if (!result.good() || id.empty() || std::isdigit(static_cast<unsigned char>(id[0])) == 0) {
      Error error(
          ErrorKind::kEnvironment,
          fmt::format(
              "{} refused the job{}", words[0],
              ids.empty() ? "" : fmt::format("; already submitted: {}", fmt::join(ids, " "))),
          fmt::format("the script is {}", job.script.string()));
      error.cause = result.timed_out ? "it did not answer in time" : result.output;
      throw error;
    }
    ids.push_back(id);
  }
  return ids;
}

}  // namespace trireme::cluster
