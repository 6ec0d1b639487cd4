// `trireme bench io` without the rest of the program: starts at once and needs no LibTorch.
//
//   mpirun -np 2 io_bench FOLDER [BYTES [RUNS]]
//
// prints one JSON object.
#include "trireme/base/error.hpp"
#include "trireme/ckpt/measure.hpp"
#include "trireme/comm/session.hpp"

#include <fmt/format.h>

#include <cstdlib>

int main(int argc, char** argv) {
  using namespace trireme;
  comm::Session session(&argc, &argv, {});
  if (argc < 2) return exit_code(ErrorKind::kUsage);
  ckpt::MeasureOptions options{.folder = argv[1]};
  if (argc > 2) options.bytes = Bytes(std::atoll(argv[2]));
  if (argc > 3) options.runs = std::atoi(argv[3]);
  options.progress = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  try {
    const ckpt::Measured measured = ckpt::measure_io(session.world(), options);
    if (session.world().is_root()) fmt::print("{}\n", ckpt::to_text(measured, true));
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "io_bench: {}\n", error.report());
    session.abort(exit_code(error.kind));
  }
}
