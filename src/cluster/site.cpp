#include "trireme/cluster/site.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

#include "cluster/shipped.hpp"
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace trireme::cluster {

namespace {

constexpr std::string_view kFolder = "share/sites/";
constexpr std::string_view kEnding = ".site";

[[noreturn]] void refuse(const std::string& file, int line, const std::string& what,
                         const std::string& hint = "share/sites/README.md lists the keys") {
  throw Error(ErrorKind::kConfig, fmt::format("{}:{}: {}", file, line, what), hint);
}

// A line's key and the rest of it.
struct Line {
  std::string key, value;
  int number = 0;
  const std::string& file;

  [[noreturn]] void fail(const std::string& what) const { refuse(file, number, what); }

  int whole_number() const {
    int found = 0;
    const char* end = value.data() + value.size();
    const auto [stopped, error] = std::from_chars(value.data(), end, found);
    if (error != std::errc{} || stopped != end || found < 1)
      fail(fmt::format("{} '{}' is not a number of 1 or more", key, value));
    return found;
  }

  void require_variable() const {
    const auto blank = value.find(' ');
    const std::string name = value.substr(0, blank);
    const bool letters =
        std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
    if (name.empty() || !letters || blank == std::string::npos)
      fail(fmt::format("{} takes the name of a variable and its value, not '{}'", key, value));
  }
};

void apply(const Line& line, Site& site) {
  const std::string& key = line.key;
  if (line.value.empty()) line.fail(fmt::format("{} needs a value", key));
  if (key == "title") {
    site.title = line.value;
  } else if (key == "scheduler") {
    site.scheduler = line.value;
    if (site.scheduler != "slurm" && site.scheduler != "pbs" && site.scheduler != "flux")
      line.fail(fmt::format("scheduler '{}' is none of slurm, pbs, flux", line.value));
  } else if (key == "ranks-per-node") {
    site.ranks_per_node = line.whole_number();
  } else if (key == "cpus-per-rank") {
    site.cpus_per_rank = line.whole_number();
  } else if (key == "gpus-per-node") {
    site.gpus_per_node = line.whole_number();
  } else if (key == "option") {
    site.options.push_back(line.value);
  } else if (key == "needs") {
    site.needs.push_back(line.value);
  } else if (key == "note") {
    site.notes.push_back(line.value);
  } else if (key == "set" || key == "set-multi-node") {
    line.require_variable();
  } else if (key == "bind-gpus") {
    std::istringstream words(line.value);
    std::string variable;
    std::string order;
    int count = 0;
    if (!(words >> variable >> order >> count) || count < 1 ||
        (order != "forward" && order != "reverse"))
      line.fail("bind-gpus takes VARIABLE forward|reverse N");
  } else if (key != "module" && key != "launcher" && key != "launch" && key != "mpi") {
    const std::vector<std::string> known{
        "title", "scheduler", "ranks-per-node", "cpus-per-rank", "gpus-per-node", "option",
        "needs", "module",    "launcher",       "launch",        "mpi",           "bind-gpus",
        "set",   "note",      "set-multi-node"};
    const auto near = nearest(key, known);
    line.fail(fmt::format("unknown key '{}'{}", key,
                          near ? fmt::format("; did you mean '{}'?", *near) : std::string()));
  }
}

}  // namespace

Site parse_site(const std::string& name, std::string_view text, const std::string& file) {
  Site site;
  site.name = name;
  site.text = text;
  std::istringstream stream{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    const auto begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos || line[begin] == '#') continue;
    const auto blank = line.find_first_of(" \t", begin);
    const auto value = line.find_first_not_of(" \t", blank);
    apply({line.substr(begin, blank - begin),
           blank == std::string::npos || value == std::string::npos ? "" : line.substr(value),
           number, file},
          site);
  }
  return site;
}

std::vector<std::string> site_names() {
  std::vector<std::string> names;
  for (const ShippedFile& file : shipped_files()) {
    if (file.path.starts_with(kFolder) && file.path.ends_with(kEnding))
      names.emplace_back(
          file.path.substr(kFolder.size(), file.path.size() - kFolder.size() - kEnding.size()));
  }
  std::ranges::sort(names);
  return names;
}

Site find_site(const std::string& name_or_path) {
  for (const ShippedFile& file : shipped_files()) {
    if (file.path == fmt::format("{}{}{}", kFolder, name_or_path, kEnding))
      return parse_site(name_or_path, file.text, std::string(file.path));
  }
  const std::filesystem::path path(name_or_path);
  if (name_or_path.find('/') != std::string::npos || path.extension() == kEnding) {
    std::ifstream stream(path);
    if (!stream) throw_errno("open the site profile", name_or_path);
    return parse_site(path.stem().string(), std::string(std::istreambuf_iterator<char>(stream), {}),
                      name_or_path);
  }
  const auto names = site_names();
  const auto near = nearest(name_or_path, names);
  throw Error(ErrorKind::kConfig, fmt::format("there is no site profile '{}'", name_or_path),
              near ? fmt::format("did you mean '{}'?", *near)
                   : fmt::format("there are {}; --site also takes the path of a file",
                                 fmt::join(names, ", ")));
}

}  // namespace trireme::cluster
