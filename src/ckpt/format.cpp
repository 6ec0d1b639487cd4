#include "ckpt/format.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace trireme::ckpt {

namespace {

constexpr std::array<std::pair<DType, std::string_view>, 5> kNames{{{DType::kFloat32, "F32"},
                                                                    {DType::kFloat64, "F64"},
                                                                    {DType::kInt64, "I64"},
                                                                    {DType::kUInt8, "U8"},
                                                                    {DType::kBFloat16, "BF16"}}};

// Returns the length of the UTF-8 sequence at the start of `text`, or 0 when it is none.
std::size_t utf8_sequence(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  std::uint32_t code = lead & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte & 0x3fU);
  }
  constexpr std::array<std::uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code < kLeast[length] || surrogate || code > 0x10ffff ? 0 : length;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_sequence(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string problem_with_component(std::string_view part) {
  if (part.empty()) return "an empty part";
  if (part == "." || part == "..") return "a part that is only dots";
  return {};
}

}  // namespace

std::uint64_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kFloat64:
      return 8;
    case DType::kInt64:
      return 8;
    case DType::kUInt8:
      return 1;
    case DType::kBFloat16:
      return 2;
  }
  return 1;
}

std::string_view name_of(DType dtype) {
  for (const auto& [type, name] : kNames) {
    if (type == dtype) return name;
  }
  return "?";
}

std::optional<DType> dtype_named(std::string_view name) {
  for (const auto& [type, known] : kNames) {
    if (known == name) return type;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> bytes_of(DType dtype, const std::vector<std::int64_t>& shape) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  std::uint64_t bytes = element_bytes(dtype);
  // Zeros first: a huge dimension beside an empty one is legal.
  for (const std::int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    if (dim == 0) bytes = 0;
  }
  for (const std::int64_t dim : shape) {
    if (bytes != 0 && static_cast<std::uint64_t>(dim) > kMost / bytes) return std::nullopt;
    bytes *= static_cast<std::uint64_t>(dim);
  }
  return bytes;
}

std::string problem_with_path(std::string_view path) {
  if (path.size() < 2 || path.front() != '/') return "it does not start with /";
  if (path.find('\0') != std::string_view::npos) return "it contains a zero byte";
  if (!is_utf8(path)) return "it is not UTF-8";
  for (std::string_view rest = path.substr(1);;) {
    const std::size_t slash = rest.find('/');
    const std::string problem = problem_with_component(rest.substr(0, slash));
    if (!problem.empty()) return "it has " + problem;
    if (slash == std::string_view::npos) return {};
    rest.remove_prefix(slash + 1);
  }
}

void check_specs(const std::vector<TensorSpec>& tensors) {
  std::vector<std::string_view> sorted;
  for (const TensorSpec& spec : tensors) {
    const std::string problem = problem_with_path(spec.path);
    ensure(problem.empty(), fmt::format("tensor path '{}': {}", spec.path, problem));
    ensure(!spec.path.starts_with("/extra/"), fmt::format("{} is a place of texts", spec.path));
    ensure(bytes_of(spec.dtype, spec.shape).has_value() && spec.shape.size() <= 32,
           fmt::format("{} has an impossible shape", spec.path));
    sorted.push_back(spec.path);
  }
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    ensure(sorted[i] != sorted[i - 1], fmt::format("two tensors are called {}", sorted[i]));
  }
  // A dataset cannot be a group as well: no path may be an ancestor of another.
  for (const std::string_view path : sorted) {
    for (std::size_t at = path.find('/', 1); at != path.npos; at = path.find('/', at + 1)) {
      ensure(!std::binary_search(sorted.begin(), sorted.end(), path.substr(0, at)),
             fmt::format("{} lies inside another tensor", path));
    }
  }
}

std::string step_folder(Step step) { return fmt::format("step-{:08}", step.value); }

std::optional<Step> step_of(std::string_view folder_name) {
  if (!folder_name.starts_with("step-")) return std::nullopt;
  const std::string_view digits = folder_name.substr(5);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  // Written back it must be the same, so that each step has one name.
  if (step_folder(Step(value)) != folder_name) return std::nullopt;
  return Step(value);
}

}  // namespace trireme::ckpt
