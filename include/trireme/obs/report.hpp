// One HTML file that shows a run: curves, time split, configuration. It needs no network and no
// script.
#pragma once

#include <filesystem>

namespace trireme::obs {

// Writes <run>/report.html from the run's metrics.jsonl and config.yaml, and returns its path.
// Lines that cannot be read (torn by a crash) are left out. Throws Config when the folder holds no
// metrics, Io when the file cannot be written.
std::filesystem::path write_report(const std::filesystem::path& run);

}  // namespace trireme::obs
