#include "trireme/obs/metrics.hpp"

#include "support/temp_dir.hpp"
#include "trireme/base/error.hpp"

#include "files.hpp"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <functional>
#include <limits>

namespace trireme::obs {
namespace {

StepMetrics step_of(std::int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 1.5;
  return metrics;
}

std::string io_message(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kIo);
    return error.message;
  }
  return "no error";
}

TEST(Metrics, writes_every_name_of_the_interface_once_and_in_order) {
  StepMetrics m;
  m.step = 7;
  m.loss = m.lr = m.grad_norm = 0.5;
  m.tokens = m.samples = 4096;
  m.tokens_per_s = m.mfu = m.step_s = m.data_s = m.compute_s = m.comm_s = m.optim_s = m.ckpt_s =
      0.25;
  m.skipped = 0;
  m.loss_scale = m.rss_mib_max = m.eval_loss = 2.0;
  const auto json = nlohmann::ordered_json::parse(to_json(m));
  std::string names;
  for (const auto& [name, value] : json.items()) names += name + " ";
  EXPECT_EQ(names,
            "step loss lr grad_norm tokens samples tokens_per_s mfu step_s data_s compute_s comm_s "
            "optim_s ckpt_s "
            "skipped loss_scale rss_mib_max eval_loss ");
}

TEST(Metrics, leaves_out_what_was_not_measured) {
  EXPECT_EQ(to_json(step_of(3)), R"({"step":3,"loss":1.5})");
}

TEST(Metrics, reads_back_the_same_double) {
  for (const double value :
       {0.1 + 0.2, 1.0 / 3.0, 5e-324, 1.7976931348623157e308, -0.0, 1e22, 123456789.0}) {
    StepMetrics m;
    m.loss = value;
    const double back = nlohmann::json::parse(to_json(m)).at("loss").get<double>();
    EXPECT_EQ(std::bit_cast<std::uint64_t>(back), std::bit_cast<std::uint64_t>(value))
        << to_json(m);
  }
}

TEST(Metrics, writes_what_json_has_no_number_for_as_text) {
  StepMetrics m;
  m.loss = std::numeric_limits<double>::quiet_NaN();
  m.grad_norm = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(to_json(m), R"({"step":0,"loss":"NaN","grad_norm":"-Infinity"})");
}

TEST(MetricsWriter, appends_whole_lines_at_once) {
  const testing::TempDir folder;
  MetricsWriter writer(folder.path(), 0, false);
  writer.write(step_of(1));
  EXPECT_EQ(content(folder / "metrics.jsonl"), "{\"step\":1,\"loss\":1.5}\n");
  writer.write(step_of(2));
  EXPECT_EQ(content(folder / "metrics.jsonl"),
            "{\"step\":1,\"loss\":1.5}\n{\"step\":2,\"loss\":1.5}\n");
}

TEST(MetricsWriter, drops_what_a_resumed_run_repeats) {
  const testing::TempDir folder;
  {
    MetricsWriter writer(folder.path(), 0, false);
    for (int step = 1; step <= 12; ++step) writer.write(step_of(step));
  }
  MetricsWriter resumed(folder.path(), 10, false);
  const std::string kept = content(folder / "metrics.jsonl");
  EXPECT_EQ(std::ranges::count(kept, '\n'), 10);
  EXPECT_TRUE(kept.ends_with("{\"step\":10,\"loss\":1.5}\n"));
  EXPECT_FALSE(std::filesystem::exists(folder / "metrics.jsonl.new"));
}

TEST(MetricsWriter, drops_a_torn_line_but_not_a_note) {
  const testing::TempDir folder;
  put(folder / "metrics.jsonl",
      "{\"step\":1,\"loss\":1}\n{\"note\":\"mine\"}\n{\"ste\n{\"step\":2}\n{\"step\":3,\"lo");
  MetricsWriter writer(folder.path(), 5, false);
  writer.write(step_of(6));
  EXPECT_EQ(
      content(folder / "metrics.jsonl"),
      "{\"step\":1,\"loss\":1}\n{\"note\":\"mine\"}\n{\"step\":2}\n{\"step\":6,\"loss\":1.5}\n");
}

TEST(MetricsWriter, ends_a_line_that_lost_only_its_newline) {
  const testing::TempDir folder;
  put(folder / "metrics.jsonl", "{\"step\":1}\n{\"step\":2}");
  MetricsWriter writer(folder.path(), 2, false);
  writer.write(step_of(3));
  EXPECT_EQ(content(folder / "metrics.jsonl"),
            "{\"step\":1}\n{\"step\":2}\n{\"step\":3,\"loss\":1.5}\n");
}

TEST(MetricsWriter, leaves_a_clean_file_untouched) {
  const testing::TempDir folder;
  put(folder / "metrics.jsonl", "{\"step\":1}\n");
  const auto before = std::filesystem::last_write_time(folder / "metrics.jsonl");
  MetricsWriter writer(folder.path(), 1, false);
  EXPECT_EQ(std::filesystem::last_write_time(folder / "metrics.jsonl"), before);
}

TEST(MetricsWriter, survives_a_crash_in_the_middle_of_the_rewrite) {
  const testing::TempDir folder;
  put(folder / "metrics.jsonl", "{\"step\":1}\n{\"step\":2}\n");
  put(folder / "metrics.jsonl.new", "{\"step\":1}\n{\"st");  // what the crash left
  MetricsWriter writer(folder.path(), 1, false);
  EXPECT_EQ(content(folder / "metrics.jsonl"), "{\"step\":1}\n");
}

TEST(MetricsWriter, names_the_file_on_a_full_disk) {
  const testing::TempDir folder;
  std::filesystem::create_symlink("/dev/full", folder / "metrics.jsonl");
  MetricsWriter writer(folder.path(), 0, false);
  const std::string message = io_message([&] { writer.write(step_of(1)); });
  EXPECT_NE(message.find("metrics.jsonl: No space left on device"), std::string::npos) << message;
}

TEST(MetricsWriter, leaves_no_torn_line_when_the_disk_takes_only_a_part) {
  const testing::TempDir folder;
  MetricsWriter writer(folder.path(), 0, false);
  writer.write(step_of(1));
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit tight = before;
  tight.rlim_cur = 30;  // the first line has 22 bytes
  setrlimit(RLIMIT_FSIZE, &tight);
  const std::string message = io_message([&] { writer.write(step_of(2)); });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(message.find("metrics.jsonl"), std::string::npos) << message;
  EXPECT_EQ(content(folder / "metrics.jsonl"), "{\"step\":1,\"loss\":1.5}\n");
}

TEST(MetricsWriter, names_a_folder_that_is_not_there) {
  const std::string message = io_message([] { MetricsWriter("/nonexistent/run", 0, true); });
  EXPECT_NE(message.find("/nonexistent/run/metrics.jsonl: No such file"), std::string::npos)
      << message;
}

TEST(Progress, reads_like_a_sentence) {
  StepMetrics m;
  m.step = 120;
  m.loss = 2.31416;
  m.lr = 2.9e-4;
  m.grad_norm = 0.831;
  m.tokens_per_s = 6130;
  m.mfu = 0.412;
  EXPECT_EQ(progress_line(m, 200, 80.4),
            "step 120/200  loss 2.3142  lr 2.9e-04  norm 0.83  6.1K tok/s  mfu 41%  left 1m20s");
}

TEST(Progress, shows_only_what_is_known) {
  StepMetrics m;
  m.step = 7;
  EXPECT_EQ(progress_line(m, 200, -1), "step   7/200");
  EXPECT_EQ(progress_line(m, 0, std::nan("")), "step 7");
  m.loss = std::nan("");
  m.eval_loss = 2.5;
  m.skipped = 2;
  m.tokens_per_s = 812.4;
  EXPECT_EQ(progress_line(m, 200, 59.9),
            "step   7/200  loss nan  eval 2.5000  812 tok/s  skipped 2  left 59s");
}

TEST(Progress, is_no_wider_at_the_edges_of_the_suffixes) {
  StepMetrics m;
  m.tokens_per_s = 999.6;
  EXPECT_EQ(progress_line(m, 0, -1), "step 0  1.0K tok/s");
  m.tokens_per_s = 1.25e6;
  EXPECT_EQ(progress_line(m, 0, -1), "step 0  1.2M tok/s");
  m.tokens_per_s = 0;
  EXPECT_EQ(progress_line(m, 0, -1), "step 0  0.0 tok/s");
}

}  // namespace
}  // namespace trireme::obs
