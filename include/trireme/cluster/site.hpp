// Site profiles: what a centre's scheduler, launcher and network want. share/sites/README.md says what
// a line may be; the environment part is applied by the job script, on the node, at the job's start.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::cluster {

struct Site {
  std::string name;       // "perlmutter"
  std::string title;      // "NERSC Perlmutter (GPU)"
  std::string scheduler;  // "slurm", "pbs", "flux"; empty: any
  std::optional<int> ranks_per_node, cpus_per_rank, gpus_per_node;
  std::vector<std::string> options;  // lines for the scheduler
  std::vector<std::string> needs;    // options without which a job is refused there
  std::vector<std::string> notes;
  std::string text;  // the whole profile, which travels in the job script
};

// Throws Config with file and line for a key or value that no profile can have.
Site parse_site(const std::string& name, std::string_view text, const std::string& file);

// Returns the profile of that name, or from that file when it is a path. Throws Config when there is
// none, with the nearest name.
Site find_site(const std::string& name_or_path);

// Returns the names of the profiles that come with Trireme.
std::vector<std::string> site_names();

}  // namespace trireme::cluster
