#include "trireme/obs/report.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/units.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

namespace trireme::obs {

namespace {

namespace fs = std::filesystem;

struct Point {
  double x;
  double y;
};
using Curve = std::vector<Point>;
using Records = std::vector<nlohmann::json>;

// Curves longer than this are drawn as means over equal stretches: a screen has no more points.
constexpr std::size_t kMaxPoints = 1000;

Records read_metrics(const fs::path& file) {
  std::ifstream in(file);
  Records records;
  for (std::string line; std::getline(in, line);) {
    auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_object() && record.contains("step")) records.push_back(std::move(record));
  }
  if (records.empty()) {
    throw Error(ErrorKind::kConfig, fmt::format("{} holds no metrics of a run", file.string()),
                "name a run's folder, such as runs/demo");
  }
  return records;
}

Curve curve_of(const Records& records, const char* field) {
  Curve all;
  for (const nlohmann::json& record : records) {
    const auto value = record.find(field);
    if (value == record.end() || !value->is_number()) continue;  // infinities are written as text
    all.push_back({record["step"].get<double>(), value->get<double>()});
  }
  if (all.size() <= kMaxPoints) return all;
  Curve thinned;
  for (std::size_t i = 0; i < kMaxPoints; ++i) {
    const std::size_t begin = all.size() * i / kMaxPoints;
    const std::size_t end = all.size() * (i + 1) / kMaxPoints;
    double sum = 0;
    for (std::size_t k = begin; k < end; ++k) sum += all[k].y;
    thinned.push_back({all[(begin + end) / 2].x, sum / static_cast<double>(end - begin)});
  }
  return thinned;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

// A drawing area in pixels with room for the numbers of the axes.
struct Frame {
  static constexpr double kWidth = 520, kHeight = 220, kLeft = 60, kRight = 10, kTop = 10,
                          kBottom = 25;
  double x_min, x_max, y_min, y_max;

  explicit Frame(const std::vector<const Curve*>& curves)
      : x_min(INFINITY), x_max(-INFINITY), y_min(INFINITY), y_max(-INFINITY) {
    for (const Curve* curve : curves) {
      for (const Point& p : *curve) {
        x_min = std::min(x_min, p.x);
        x_max = std::max(x_max, p.x);
        y_min = std::min(y_min, p.y);
        y_max = std::max(y_max, p.y);
      }
    }
    if (x_min == x_max) x_max = x_min + 1;
    if (y_min == y_max) y_max = y_min + std::max(1e-12, std::abs(y_min) * 0.1);
  }
  double x(double value) const {
    return kLeft + (value - x_min) / (x_max - x_min) * (kWidth - kLeft - kRight);
  }
  double y(double value) const {
    return kHeight - kBottom - (value - y_min) / (y_max - y_min) * (kHeight - kTop - kBottom);
  }
};

std::string axes(const Frame& frame) {
  std::string out;
  for (const double part : {0.0, 0.5, 1.0}) {
    const double value = frame.y_min + part * (frame.y_max - frame.y_min);
    const double step = frame.x_min + part * (frame.x_max - frame.x_min);
    out += fmt::format("<line x1='{:.0f}' x2='{:.0f}' y1='{:.1f}' y2='{:.1f}' class='grid'/>",
                       Frame::kLeft, Frame::kWidth - Frame::kRight, frame.y(value), frame.y(value));
    out += fmt::format("<text x='{:.0f}' y='{:.1f}' text-anchor='end'>{:.4g}</text>",
                       Frame::kLeft - 5, frame.y(value) + 4, value);
    out += fmt::format("<text x='{:.1f}' y='{:.0f}' text-anchor='{}'>{:.0f}</text>", frame.x(step),
                       Frame::kHeight - 8,
                       part == 0   ? "start"
                       : part == 1 ? "end"
                                   : "middle",
                       step);
  }
  return out;
}

std::string line_of(const Frame& frame, const Curve& curve, const char* css) {
  std::string points;
  for (const Point& p : curve) points += fmt::format("{:.1f},{:.1f} ", frame.x(p.x), frame.y(p.y));
  return fmt::format("<polyline class='{}' points='{}'/>", css, points);
}

// `second` may be empty; it is drawn with dots, for values that come now and then.
std::string chart(const char* title, const Curve& first, const Curve& second = {}) {
  if (first.empty()) return {};
  const Frame frame({&first, &second});
  std::string dots;
  for (const Point& p : second) {
    dots += fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='3' class='second'/>", frame.x(p.x),
                        frame.y(p.y));
  }
  return fmt::format(
      "<figure><figcaption>{}</figcaption><svg viewBox='0 0 {:.0f} {:.0f}' "
      "role='img'>{}{}{}</svg></figure>\n",
      title, Frame::kWidth, Frame::kHeight, axes(frame), line_of(frame, first, "first"), dots);
}

double mean(const Records& records, const char* field) {
  double sum = 0;
  for (const nlohmann::json& record : records) {
    const auto value = record.find(field);
    if (value != record.end() && value->is_number()) sum += value->get<double>();
  }
  return sum / static_cast<double>(records.size());
}

std::string time_split(const Records& records) {
  constexpr std::pair<const char*, const char*> kParts[] = {{"compute", "compute_s"},
                                                            {"communication", "comm_s"},
                                                            {"optimizer", "optim_s"},
                                                            {"data", "data_s"},
                                                            {"checkpoint", "ckpt_s"}};
  const double step = mean(records, "step_s") + mean(records, "ckpt_s");
  std::string rows;
  for (const auto& [name, field] : kParts) {
    const double seconds = mean(records, field);
    const double share = step > 0 ? seconds / step * 100 : 0;
    rows += fmt::format(
        "<tr><td>{}</td><td>{:.1f} ms</td><td>{:.1f} %</td><td><div class='bar' "
        "style='width:{:.1f}%'></div></td></tr>\n",
        name, seconds * 1e3, share, std::min(share, 100.0));
  }
  return fmt::format("<h2>Where a step's time goes</h2><table class='split'>{}</table>\n", rows);
}

std::string summary(const Records& records) {
  const nlohmann::json& last = records.back();
  std::string rows;
  const auto row = [&rows](const char* name, const std::string& value) {
    rows += fmt::format("<tr><th>{}</th><td>{}</td></tr>", name, value);
  };
  const auto number = [&last](const char* field) {
    return last.contains(field) && last[field].is_number() ? last[field].get<double>() : NAN;
  };
  row("steps", fmt::format("{:.0f}", number("step")));
  row("last loss", fmt::format("{:.4f}", number("loss")));
  const Curve evaluations = curve_of(records, "eval_loss");
  if (!evaluations.empty())
    row("last evaluation loss", fmt::format("{:.4f}", evaluations.back().y));
  row("tokens", human_count(static_cast<std::int64_t>(number("tokens"))));
  row("mean tokens/s", fmt::format("{:.0f}", mean(records, "tokens_per_s")));
  row("mean utilisation",
      fmt::format("{:.1f} % of the measured product peak", mean(records, "mfu") * 100));
  row("highest resident memory of a rank", fmt::format("{:.0f} MiB", number("rss_mib_max")));
  row("steps without an update", fmt::format("{:.0f}", number("skipped")));
  return fmt::format("<table class='summary'>{}</table>\n", rows);
}

constexpr const char* kStyle = R"(
body{font:15px/1.5 system-ui,sans-serif;max-width:1120px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.6em}h2{font-size:1.2em;margin-top:2em}.charts{display:flex;flex-wrap:wrap;gap:1em}
figure{margin:0;flex:1 1 480px}figcaption{font-weight:600}svg{width:100%;height:auto}
svg text{font-size:11px;fill:#666}.grid{stroke:#ddd}.first{fill:none;stroke:#1b6ca8;stroke-width:1.5}
.second{fill:#d1495b}table{border-collapse:collapse}td,th{padding:.15em .8em .15em 0;text-align:left}
.split{width:100%}.split td:last-child{width:50%}.bar{height:.9em;background:#1b6ca8}
pre{background:#f6f6f6;padding:1em;overflow:auto}
)";

std::string page(const fs::path& run, const Records& records) {
  std::ifstream config_file(run / "config.yaml");
  const std::string config(std::istreambuf_iterator<char>(config_file), {});
  std::string charts = chart("loss in nats per token; dots: evaluation", curve_of(records, "loss"),
                             curve_of(records, "eval_loss"));
  charts += chart("learning rate", curve_of(records, "lr"));
  charts += chart("gradient norm before clipping", curve_of(records, "grad_norm"));
  charts += chart("tokens per second", curve_of(records, "tokens_per_s"));
  charts += chart("utilisation of the measured product peak", curve_of(records, "mfu"));
  charts += chart("highest resident memory of a rank, MiB", curve_of(records, "rss_mib_max"));
  const std::string title = escaped(fs::absolute(run).lexically_normal().filename().string());
  return fmt::format(
      "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>{0} - "
      "Trireme</title><style>{1}</style></head>\n"
      "<body><h1>Run {0}</h1>\n{2}<div "
      "class='charts'>\n{3}</div>\n{4}<h2>Configuration</h2><pre>{5}</pre></body></html>\n",
      title, kStyle, summary(records), charts, time_split(records), escaped(config));
}

}  // namespace

fs::path write_report(const fs::path& run) {
  const std::string text = page(run, read_metrics(run / "metrics.jsonl"));
  const fs::path path = run / "report.html";
  const fs::path unfinished = run / ".report.html.new";
  std::ofstream out(unfinished);
  out << text;
  out.close();
  if (!out) throw_errno("write", unfinished.string());
  fs::rename(unfinished, path);
  return path;
}

}  // namespace trireme::obs
