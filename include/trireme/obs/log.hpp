// How a run speaks to people: one line at a time on standard error and in a per-rank file. Standard
// output is for results only.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

namespace trireme::obs {

enum class Level { kDebug, kInfo, kWarning, kError };

class Log {
 public:
  // `console`: whether this rank prints (root only, by convention). `file` may be empty: no file
  // yet.
  Log(int rank, bool console, const std::filesystem::path& file = {});
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // Starts writing to `file` as well; creates its folder. Throws Io.
  void open(const std::filesystem::path& file);
  // Debug lines go to the file only. Never throws: a full disk must not end a run because of its
  // log.
  void write(Level level, std::string_view text);
  void info(std::string_view text) { write(Level::kInfo, text); }
  void warn(std::string_view text) { write(Level::kWarning, text); }
  void error(std::string_view text) { write(Level::kError, text); }
  // Text for the file only, whatever its level.
  void record(Level level, std::string_view text);
  // Text for the console only, as it is, newline included (banners, tables, progress).
  void print(std::string_view text);
  void flush();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::obs
