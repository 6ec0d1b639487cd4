// Reads the options of a schedule: texts by name, each asked for once with its default. All
// problems are collected, names that nobody asked for among them.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::optim::detail {

class OptionReader {
 public:
  OptionReader(std::string type, std::map<std::string, std::string> options)
      : type_(std::move(type)), options_(std::move(options)) {}

  double number(const std::string& name, double otherwise);
  std::optional<double> number(const std::string& name);
  double positive(const std::string& name, double otherwise);
  bool flag(const std::string& name, bool otherwise);
  // One of `words`, the first where the option is absent.
  std::string word(const std::string& name, std::span<const std::string> words);

  void refuse(bool wrong, std::string problem) {
    if (wrong) problems_.push_back(std::move(problem));
  }
  // Throws Config with all problems.
  void finish();

 private:
  std::optional<std::string> take(const std::string& name);

  std::string type_;
  std::map<std::string, std::string> options_;
  std::vector<std::string> asked_;
  std::vector<std::string> problems_;
};

}  // namespace trireme::optim::detail
