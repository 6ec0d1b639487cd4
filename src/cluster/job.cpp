#include "trireme/cluster/job.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <ctime>

namespace trireme::cluster {

namespace {

using Name = std::string_view;

std::string text_of(const Environment& environment, Name name) {
  return lookup(environment, name).value_or("");
}

std::optional<int> int_of(const Environment& environment, Name name) {
  const auto text = lookup(environment, name);
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc{} || end != text->data() + text->size()) return std::nullopt;
  return value;
}

std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

// ---- hosts ----

// The job's, not the step's: slots are what the job may start on each.
std::vector<HostSlots> slurm_hosts(const Environment& environment) {
  std::string list = text_of(environment, "SLURM_JOB_NODELIST");
  if (list.empty()) list = text_of(environment, "SLURM_NODELIST");
  std::string counts = text_of(environment, "SLURM_TASKS_PER_NODE");
  if (counts.empty()) counts = text_of(environment, "SLURM_JOB_CPUS_PER_NODE");
  const auto names = expand_hosts(list);
  std::vector<int> slots;
  if (!counts.empty()) slots = expand_counts(counts);
  // Inside a step on fewer nodes the counts are the step's; those of the job are processors then.
  if (slots.size() != names.size()) {
    counts = text_of(environment, "SLURM_JOB_CPUS_PER_NODE");
    slots = counts.empty() ? std::vector<int>{} : expand_counts(counts);
  }
  std::vector<HostSlots> hosts;
  for (std::size_t i = 0; i < names.size(); ++i)
    hosts.push_back({names[i], slots.size() == names.size() ? slots[i] : 1});
  return hosts;
}

// pbsdsh leaves the variable out for tasks on the first node; the file is where PBS keeps it.
std::vector<HostSlots> pbs_hosts(const Environment& environment, const ReadFile& read_file) {
  std::string path = text_of(environment, "PBS_NODEFILE");
  if (path.empty()) path = "/var/spool/pbs/aux/" + text_of(environment, "PBS_JOBID");
  const auto text = read_file(path);
  return text ? parse_node_file(*text) : std::vector<HostSlots>{};
}

// Where jsrun starts the ranks the script runs on a node of its own, which LSF lists first with one
// slot.
void drop_launch_node(const Environment& environment, std::vector<HostSlots>& hosts) {
  if (hosts.size() < 2 || hosts[0].slots != 1) return;
  const std::string& first = hosts[0].host;
  const bool named = first.starts_with("batch") || first.starts_with("launch") ||
                     first.starts_with("login") || first == text_of(environment, "LSB_SUB_HOST");
  if (named || environment.contains("JSM_NAMESPACE_RANK")) hosts.erase(hosts.begin());
}

std::vector<HostSlots> lsf_hosts(const Environment& environment, const ReadFile& read_file) {
  std::vector<HostSlots> hosts;
  const auto file = lookup(environment, "LSB_DJOB_HOSTFILE");
  if (const auto list = lookup(environment, "LSB_HOSTS")) {
    hosts = parse_lsf_hosts(*list);
  } else if (const auto counted = lookup(environment, "LSB_MCPU_HOSTS")) {
    hosts = parse_lsf_hosts(*counted);  // LSB_HOSTS is left out when it would be too long
  } else if (const auto text = file ? read_file(*file) : std::nullopt) {
    hosts = parse_node_file(*text);
  }
  drop_launch_node(environment, hosts);
  return hosts;
}

// ---- jobs ----

bool is_set(const Environment& environment, Name name) {
  return !text_of(environment, name).empty();
}

// ---- the end ----

// The value of "    Resource_List.walltime = 01:00:00", as qstat -f prints it.
std::string_view attribute(std::string_view output, std::string_view name) {
  const std::string key = fmt::format(" {} = ", name);
  const auto at = output.find(key);
  if (at == std::string_view::npos) return {};
  output.remove_prefix(at + key.size());
  return trimmed(output.substr(0, output.find('\n')));
}

// "Tue Dec  1 06:15:12 2026", local time, as PBS prints it.
std::optional<double> local_time(std::string_view text) {
  std::tm parts{};
  const std::string copy(text);
  if (strptime(copy.c_str(), "%a %b %d %H:%M:%S %Y", &parts) == nullptr) return std::nullopt;
  parts.tm_isdst = -1;
  const std::time_t time = std::mktime(&parts);
  return time > 0 ? std::optional<double>(static_cast<double>(time)) : std::nullopt;
}

std::optional<double> ask_slurm(const std::string& id, const Ask& ask, double now) {
  const CommandResult answer = ask({"squeue", "-h", "-j", id, "-o", "%L"});
  if (!answer.good()) return std::nullopt;
  const auto left = seconds_of(trimmed(answer.output), 60);
  return left ? std::optional(now + *left) : std::nullopt;
}

// From the start where it is told: the time used is brought up to date only now and then.
std::optional<double> ask_pbs(const std::string& id, const Ask& ask, double now) {
  const CommandResult answer = ask({"qstat", "-f", id});
  if (!answer.good()) return std::nullopt;
  if (const auto left = number_of(attribute(answer.output, "Walltime.Remaining")))
    return now + *left;
  const auto limit = seconds_of(attribute(answer.output, "Resource_List.walltime"), 1);
  if (!limit) return std::nullopt;
  if (const auto start = local_time(attribute(answer.output, "stime"))) return *start + *limit;
  const auto used = seconds_of(attribute(answer.output, "resources_used.walltime"), 1);
  return now + *limit - used.value_or(0);
}

std::optional<double> ask_flux(const Ask& ask, double now) {
  const CommandResult answer = ask({"flux", "job", "timeleft"});
  const auto left = answer.good() ? number_of(trimmed(answer.output)) : std::nullopt;
  // 0 and "infinity" stand for no limit.
  if (!left || !(*left > 0) || *left > 1e9) return std::nullopt;
  return now + *left;
}

// "1:30 L": hours and minutes until the limit.
std::optional<double> ask_lsf(const std::string& id, const Ask& ask, double now) {
  const CommandResult answer = ask({"bjobs", "-noheader", "-o", "time_left", id});
  if (!answer.good()) return std::nullopt;
  const std::string_view text = trimmed(answer.output);
  const std::string_view clock = text.substr(0, text.find(' '));
  const auto colon = clock.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto hours = number_of(clock.substr(0, colon));
  const auto minutes = number_of(clock.substr(colon + 1));
  if (!hours || !minutes) return std::nullopt;
  return now + 3600 * *hours + 60 * *minutes;
}

}  // namespace

// Innermost first: Flux runs inside the others' jobs, and Slurm's qsub sets PBS names.
std::optional<Job> job_named(const Environment& environment) {
  const auto text = [&](Name name) { return text_of(environment, name); };
  if (is_set(environment, "FLUX_JOB_ID"))
    return Job{.scheduler = "Flux", .id = text("FLUX_JOB_ID")};
  for (const Name id : {Name("SLURM_JOB_ID"), Name("SLURM_JOBID")}) {
    if (!is_set(environment, id)) continue;
    return Job{.scheduler = "Slurm",
               .id = text(id),
               .name = text("SLURM_JOB_NAME"),
               .array_id = text("SLURM_ARRAY_JOB_ID"),
               .array_task = int_of(environment, "SLURM_ARRAY_TASK_ID"),
               .restarts = int_of(environment, "SLURM_RESTART_COUNT").value_or(0)};
  }
  if (is_set(environment, "PBS_JOBID")) {
    return Job{.scheduler = "PBS",
               .id = text("PBS_JOBID"),
               .name = text("PBS_JOBNAME"),
               .array_id = text("PBS_ARRAY_ID"),
               .array_task = int_of(environment, "PBS_ARRAY_INDEX")};
  }
  if (!is_set(environment, "LSB_JOBID")) return std::nullopt;
  Job job{.scheduler = "LSF", .id = text("LSB_JOBID"), .name = text("LSB_JOBNAME")};
  job.array_task = int_of(environment, "LSB_JOBINDEX");
  if (job.array_task == 0) job.array_task.reset();  // what LSF sets outside an array
  return job;
}

std::optional<Job> job_of(const Environment& environment, const ReadFile& read_file) {
  auto job = job_named(environment);
  if (!job) return job;
  if (job->scheduler == "Slurm") job->hosts = slurm_hosts(environment);
  if (job->scheduler == "PBS") job->hosts = pbs_hosts(environment, read_file);
  if (job->scheduler == "LSF") job->hosts = lsf_hosts(environment, read_file);
  return job;  // Flux tells its hosts only through its own commands
}

std::optional<double> seconds_of(std::string_view clock, double unit_of_bare_number) {
  double days = 0;
  const auto dash = clock.find('-');
  if (dash != std::string_view::npos) {
    const auto number = number_of(clock.substr(0, dash));
    if (!number) return std::nullopt;
    days = *number;
    clock.remove_prefix(dash + 1);
  }
  double total = 0;
  int parts = 0;
  while (true) {
    const auto colon = clock.find(':');
    const auto number = number_of(clock.substr(0, colon));
    if (!number || *number < 0 || ++parts > 3) return std::nullopt;
    total = 60 * total + *number;
    if (colon == std::string_view::npos) break;
    clock.remove_prefix(colon + 1);
  }
  if (dash != std::string_view::npos) {
    // Slurm's D-H, D-H:M and D-H:M:S count from the hours down.
    for (; parts < 3; ++parts) total *= 60;
    return 86400 * days + total;
  }
  return parts == 1 ? unit_of_bare_number * total : total;
}

std::optional<JobEnd> job_end(const Environment& environment) {
  constexpr std::array<Name, 2> kNames{"TRIREME_JOB_END_TIME", "SLURM_JOB_END_TIME"};
  for (const Name name : kNames) {
    const auto time = number_of(text_of(environment, name));
    if (time && *time > 0) return JobEnd{*time, std::string(name)};
  }
  return std::nullopt;
}

std::optional<JobEnd> job_end(const Environment& environment, const Ask& ask, double now) {
  // One that has passed was inherited from an earlier job.
  if (const auto known = job_end(environment); known && known->unix_time > now) return known;
  const auto job = job_named(environment);
  if (!job) return std::nullopt;
  const auto found = [&](std::optional<double> time, const char* source) {
    return time ? std::optional(JobEnd{*time, source}) : std::nullopt;
  };
  if (job->scheduler == "Slurm") return found(ask_slurm(job->id, ask, now), "squeue");
  if (job->scheduler == "PBS") return found(ask_pbs(job->id, ask, now), "qstat");
  if (job->scheduler == "Flux") return found(ask_flux(ask, now), "flux job timeleft");
  return found(ask_lsf(job->id, ask, now), "bjobs");
}

}  // namespace trireme::cluster
