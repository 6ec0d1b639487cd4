#include "option_reader.hpp"

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace trireme::optim::detail {

std::optional<std::string> OptionReader::take(const std::string& name) {
  asked_.push_back(name);
  const auto found = options_.find(name);
  if (found == options_.end()) return std::nullopt;
  std::string text = found->second;
  options_.erase(found);
  return text;
}

std::optional<double> OptionReader::number(const std::string& name) {
  const auto text = take(name);
  if (!text) return std::nullopt;
  double value = 0;
  const char* const last = text->data() + text->size();
  const auto [end, error] = std::from_chars(text->data(), last, value);
  const bool good = error == std::errc() && end == last && std::isfinite(value);
  refuse(!good, fmt::format("options.{}: '{}' is no number", name, *text));
  return good ? value : 0;
}

double OptionReader::number(const std::string& name, double otherwise) {
  return number(name).value_or(otherwise);
}

double OptionReader::positive(const std::string& name, double otherwise) {
  const double value = number(name, otherwise);
  refuse(!(value > 0), fmt::format("options.{}: must be above 0, not {}", name, value));
  return value;
}

bool OptionReader::flag(const std::string& name, bool otherwise) {
  const auto text = take(name);
  if (!text) return otherwise;
  refuse(*text != "true" && *text != "false",
         fmt::format("options.{}: must be true or false, not '{}'", name, *text));
  return *text == "true";
}

std::string OptionReader::word(const std::string& name, std::span<const std::string> words) {
  const auto text = take(name);
  if (!text) return words.front();
  refuse(std::ranges::find(words, *text) == words.end(),
         fmt::format("options.{}: '{}' is none of {}", name, *text, fmt::join(words, ", ")));
  return *text;
}

void OptionReader::finish() {
  for (const auto& [name, text] : options_) {
    const auto near = nearest(name, asked_);
    problems_.push_back(fmt::format("options.{}: type {} has no such option{}", name, type_,
                                    near ? fmt::format(" (did you mean '{}'?)", *near)
                                    : asked_.empty()
                                        ? std::string("; it has none")
                                        : fmt::format("; it has {}", fmt::join(asked_, ", "))));
  }
  if (problems_.empty()) return;
  for (std::string& problem : problems_) problem = "schedule." + problem;
  throw Error(ErrorKind::kConfig, fmt::format("{}", fmt::join(problems_, "\n")));
}

}  // namespace trireme::optim::detail
