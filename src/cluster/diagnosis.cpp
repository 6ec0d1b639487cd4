#include "trireme/cluster/diagnosis.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/base/units.hpp"
#include "trireme/cluster/hosts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace trireme::cluster {

namespace {

constexpr std::array<std::string_view, 4> kNames{"good", "note", "warning", "fault"};

std::string_view name_of(Severity severity) { return kNames[static_cast<std::size_t>(severity)]; }

std::string human_bytes(std::uint64_t bytes) {
  return human(Bytes(static_cast<std::int64_t>(std::min<std::uint64_t>(bytes, INT64_MAX))));
}

std::size_t count(const Findings& findings, Severity severity) {
  return static_cast<std::size_t>(
      std::ranges::count(findings, severity, [](const Finding& f) { return f.severity; }));
}

// Fields and findings are parted by characters that no text has.
constexpr char kField = '\x1f';
constexpr char kFinding = '\x1e';

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const auto end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

Findings merged(const Findings& findings) {
  Findings result;
  std::vector<std::string> order;
  for (const Finding& finding : findings) {
    if (std::ranges::find(order, finding.check) == order.end()) order.push_back(finding.check);
    const auto same = std::ranges::find_if(result, [&](const Finding& other) {
      return other.check == finding.check && other.severity == finding.severity &&
             other.text == finding.text && other.remedy == finding.remedy;
    });
    if (same == result.end()) {
      result.push_back(finding);
    } else {
      same->hosts.insert(same->hosts.end(), finding.hosts.begin(), finding.hosts.end());
    }
  }
  std::ranges::stable_sort(result, {}, [&](const Finding& finding) {
    return std::ranges::find(order, finding.check) - order.begin();
  });
  return result;
}

std::string to_text(const Findings& findings, std::size_t num_hosts) {
  std::string text;
  for (const Finding& finding : findings) {
    const bool everywhere = finding.hosts.empty() || finding.hosts.size() == num_hosts;
    text += fmt::format("{:<8} {}: {}{}\n", name_of(finding.severity), finding.check, finding.text,
                        everywhere ? "" : fmt::format(" (on {})", compress_hosts(finding.hosts)));
    if (!finding.remedy.empty()) text += fmt::format("{:<9}-> {}\n", "", finding.remedy);
  }
  const std::size_t faults = count(findings, Severity::kFault);
  const std::size_t warnings = count(findings, Severity::kWarning);
  return text + fmt::format("{} fault{}, {} warning{} on {} node{}\n", faults,
                            faults == 1 ? "" : "s", warnings, warnings == 1 ? "" : "s", num_hosts,
                            num_hosts == 1 ? "" : "s");
}

std::string to_json(const Findings& findings, std::size_t num_hosts) {
  std::string list;
  for (const Finding& finding : findings) {
    std::string hosts;
    for (const std::string& host : finding.hosts)
      hosts += (hosts.empty() ? "" : ", ") + json_quoted(host);
    list += fmt::format(
        "{}{{\"check\": {}, \"severity\": \"{}\", \"text\": {}, \"remedy\": {}, "
        "\"hosts\": [{}]}}",
        list.empty() ? "" : ", ", json_quoted(finding.check), name_of(finding.severity),
        json_quoted(finding.text), json_quoted(finding.remedy), hosts);
  }
  return fmt::format("{{\"nodes\": {}, \"faults\": {}, \"warnings\": {}, \"findings\": [{}]}}",
                     num_hosts, count(findings, Severity::kFault),
                     count(findings, Severity::kWarning), list);
}

int exit_code_of(const Findings& findings) {
  return count(findings, Severity::kFault) > 0 ? exit_code(ErrorKind::kEnvironment) : 0;
}

std::string encode(const Findings& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("{}{}{}{}{}{}{}", finding.check, kField, static_cast<int>(finding.severity),
                        kField, finding.text, kField, finding.remedy);
    for (const std::string& host : finding.hosts) text += kField + host;
    text += kFinding;
  }
  return text;
}

Findings decode_findings(std::string_view text) {
  Findings findings;
  for (const std::string& entry : split(text, kFinding)) {
    if (entry.empty()) continue;
    const auto fields = split(entry, kField);
    ensure(
        fields.size() >= 4 && fields[1].size() == 1 && fields[1][0] >= '0' && fields[1][0] <= '3',
        "a message of findings is whole");
    findings.push_back({fields[0],
                        static_cast<Severity>(fields[1][0] - '0'),
                        fields[2],
                        fields[3],
                        {fields.begin() + 4, fields.end()}});
  }
  return findings;
}

// ---- judgements ----

Finding judge_shared_memory(std::uint64_t size, std::uint64_t free, std::uint64_t memory) {
  Finding finding{"shared memory", Severity::kGood,
                  fmt::format("/dev/shm has {} free of {}", human_bytes(free), human_bytes(size))};
  if (size < 256ULL << 20U) {
    finding.severity = Severity::kFault;
    finding.remedy =
        "weights live there: give containers more (docker --shm-size, apptainer --bind "
        "/dev/shm), or mount -o remount,size=50% /dev/shm";
  } else if (size < memory / 4) {
    finding.severity = Severity::kWarning;
    finding.remedy = fmt::format(
        "a model's weights must fit there, and the node has {}; have it made "
        "larger for models that need it",
        human_bytes(memory));
  } else if (free < size / 2) {
    finding.severity = Severity::kWarning;
    finding.remedy = "files of other programs or of killed jobs: ls -l /dev/shm, and remove yours";
  }
  return finding;
}

Findings judge_limits(const Limits& limits, bool has_fast_network) {
  Findings findings;
  const auto shown = [](std::optional<std::uint64_t> limit) {
    return limit ? human_bytes(*limit) : std::string("unlimited");
  };
  if (limits.files && *limits.files < 1024) {
    findings.push_back({"limits", Severity::kWarning, fmt::format("{} open files", *limits.files),
                        "ulimit -n 4096 in the job script"});
  }
  if (limits.address_space) {
    findings.push_back({"limits", Severity::kWarning,
                        fmt::format("{} of address space", shown(limits.address_space)),
                        "ulimit -v unlimited: shared windows count once for every rank"});
  }
  if (limits.stack && *limits.stack < 1U << 20U) {
    findings.push_back({"limits", Severity::kWarning,
                        fmt::format("{} of stack", shown(limits.stack)),
                        "ulimit -s 8192 in the job script"});
  }
  if (has_fast_network && limits.locked && *limits.locked < 1ULL << 30U) {
    findings.push_back({"limits", Severity::kWarning,
                        fmt::format("{} of locked memory", shown(limits.locked)),
                        "the network registers buffers with it: ask for memlock unlimited "
                        "(PropagateResourceLimitsExcept=MEMLOCK in slurm.conf)"});
  }
  if (findings.empty()) {
    findings.push_back({"limits", Severity::kGood,
                        fmt::format("{} open files, {} of locked memory",
                                    limits.files ? std::to_string(*limits.files) : "unlimited",
                                    shown(limits.locked))});
  }
  return findings;
}

Finding judge_clocks(const std::vector<double>& ahead, const std::vector<std::string>& hosts,
                     double uncertainty) {
  const auto [least, most] = std::ranges::minmax_element(ahead);
  const double skew = *most - *least;
  Finding finding{"clocks", Severity::kGood,
                  fmt::format("{:.3f} s apart, to within {:.3f} s", skew, uncertainty)};
  if (skew - uncertainty > 0.5) {
    finding.severity = skew - uncertainty > 30 ? Severity::kFault : Severity::kWarning;
    finding.text +=
        fmt::format(", {} behind {}", hosts[static_cast<std::size_t>(least - ahead.begin())],
                    hosts[static_cast<std::size_t>(most - ahead.begin())]);
    finding.remedy =
        "have NTP or chrony looked at there: the job's end and times of files are compared with it";
  }
  return finding;
}

Finding judge_products(const std::vector<double>& rates, const std::vector<std::string>& hosts) {
  const double usual = median(rates);
  const auto slowest = std::ranges::min_element(rates);
  Finding finding{"products", Severity::kGood,
                  fmt::format("bf16 products at {:.0f} GFLOP/s a rank", usual / 1e9)};
  if (*slowest < 0.7 * usual) {
    const auto rank = static_cast<std::size_t>(slowest - rates.begin());
    finding.severity = Severity::kWarning;
    finding.text +=
        fmt::format(", but at {:.0f} on rank {} ({})", *slowest / 1e9, rank, hosts[rank]);
    finding.remedy =
        "all wait for the slowest: look for ranks on one core, other jobs or a hot "
        "processor there, and leave the node out (srun --exclude)";
  }
  return finding;
}

Finding judge_network(const Link& link, const std::string& device) {
  Finding finding{"network", Severity::kGood,
                  fmt::format("{:.0f} us and {:.2f} GB/s between nodes, slowest from {}{}",
                              link.latency_s * 1e6, link.bytes_per_s / 1e9, link.slowest,
                              device.empty() ? "" : fmt::format("; the nodes have {}", device))};
  if (!device.empty() && link.bytes_per_s < 2e9) {
    finding.severity = Severity::kWarning;
    finding.remedy =
        "that is the speed of TCP: does this MPI support the device (UCX, libfabric), and "
        "is a transport forced by OMPI_MCA_*, UCX_TLS or FI_PROVIDER?";
  } else if (link.bytes_per_s < 1e8) {
    finding.severity = Severity::kWarning;
    finding.remedy = "zero3 sends every weight twice a step: expect it to wait for the network";
  }
  return finding;
}

}  // namespace trireme::cluster
