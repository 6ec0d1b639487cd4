// Saves step after step on all ranks until it is killed, or loads the newest and says which it was:
// what kill_ranks.py starts, kills and asks. No torch, so that it starts at once.
//
//   save_forever FOLDER FIRST_STEP   prints "rank R pid P" per rank, then "saved S" for each step
//   save_forever FOLDER check        prints "loaded S", after comparing every value
//   save_forever FOLDER hang         saves, while the last rank's disk does not answer
#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/comm/session.hpp"

#include "sample.hpp"
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace trireme::testing {
namespace {

Share share_of(comm::Communicator& comm, const std::vector<TensorSpec>& specs) {
  return {specs, Deal::kCrumbs, static_cast<int>(comm.rank().value), comm.size()};
}

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void save_forever(comm::Communicator& comm, const std::filesystem::path& folder,
                  std::int64_t step) {
  const auto specs = sample_specs();
  Share share = share_of(comm, specs);
  ckpt::Saver saver;
  say(fmt::format("rank {} pid {}", comm.rank().value, ::getpid()));
  for (;; ++step) {
    share.fill(specs, static_cast<std::uint64_t>(step));
    saver.save(comm, snapshot_of(specs, share, "{}"), {folder, Step(step), 2});
    if (comm.is_root()) say(fmt::format("saved {}", step));
  }
}

int check(comm::Communicator& comm, const std::filesystem::path& folder) {
  const auto specs = sample_specs();
  Share share = share_of(comm, specs);
  const auto step = ckpt::load_newest(
      comm, folder,
      [&](const ckpt::Reader& reader) {
        share.clear(specs);
        reader.read(share.wanted());
      },
      [](const std::string& text) { say("warning: " + text); });
  const bool right = !step || share.holds(specs, static_cast<std::uint64_t>(step->value));
  if (!right) say("the values are of another step");
  comm.barrier("checked");
  if (comm.is_root()) say(fmt::format("loaded {}", step ? step->value : -1));
  return right ? 0 : 1;
}

// ByteDance-Seed/VeOmni#801: storage that hung on one rank held up the job without a word.
[[noreturn]] void hang(comm::Communicator& comm, const std::filesystem::path& folder) {
  const bool stuck = comm.rank().value == comm.size() - 1;
  comm.set_timeout(std::chrono::seconds(1));
  ckpt::Saver saver([&](std::string_view call, bool done) {
    if (stuck && !done && call == "fsync") std::this_thread::sleep_for(std::chrono::seconds(4));
    return 0;
  });
  const auto specs = sample_specs();
  Share share = share_of(comm, specs);
  share.fill(specs, 1);
  try {
    saver.save(comm, snapshot_of(specs, share, "{}"), {folder, Step(1'000'000), 2});
    say("saved all the same");
  } catch (const Error& error) {
    if (!stuck) say(fmt::format("{} error: {}", name_of(error.kind), error.message));
  }
  // What the missing rank was waited for with is still under way: nothing orderly is left to do.
  ::_exit(0);
}

}  // namespace
}  // namespace trireme::testing

int main(int argc, char** argv) {
  trireme::comm::Session session(&argc, &argv, {.timeout = std::chrono::seconds(20)});
  const std::string what = argv[2];
  if (what == "check") return trireme::testing::check(session.world(), argv[1]);
  if (what == "hang") trireme::testing::hang(session.world(), argv[1]);
  trireme::testing::save_forever(session.world(), argv[1], std::atoll(what.c_str()));
}
