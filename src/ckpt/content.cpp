// What a checkpoint says, apart from how it lies on disk: a digest of it, and the differences of
// two.
#include "trireme/base/error.hpp"
#include "trireme/ckpt/checkpoint.hpp"
#include "trireme/ckpt/tools.hpp"

#include "ckpt/chunks.hpp"
#include "ckpt/format.hpp"
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>

namespace trireme::ckpt {

namespace {

constexpr std::string_view kTraining = "training";

class Digest {
 public:
  Digest() : state_(XXH3_createState(), &XXH3_freeState) {
    if (!state_) throw Error(ErrorKind::kOutOfMemory, "no memory for a digest");
    XXH3_128bits_reset(state_.get());
  }
  void add(std::span<const std::byte> bytes) {
    XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }
  void add(std::uint64_t number) { add(std::as_bytes(std::span(&number, 1))); }
  // With its length, so that no two sequences of texts run into one.
  void add(std::string_view text) {
    add(text.size());
    add(std::as_bytes(std::span(text)));
  }
  std::string hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

std::vector<std::size_t> sorted_by_path(const Reader& reader) {
  std::vector<std::size_t> order(reader.tensors().size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return reader.tensors()[a].path < reader.tensors()[b].path;
  });
  return order;
}

// How far a pass over all tensors is.
class Meter {
 public:
  Meter(const Reader& reader, const Progress& progress) : progress_(progress) {
    for (const TensorSpec& spec : reader.tensors()) all_ += *bytes_of(spec.dtype, spec.shape);
  }
  void add(std::uint64_t bytes) {
    done_ += bytes;
    if (progress_)
      progress_(Bytes(static_cast<std::int64_t>(done_)), Bytes(static_cast<std::int64_t>(all_)));
  }

 private:
  const Progress& progress_;
  std::uint64_t done_ = 0;
  std::uint64_t all_ = 0;
};

// The order of keys and white space in the text mean nothing.
std::string canonical(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  return json.is_discarded() ? text
                             : json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string text_of(const Reader& reader, std::string_view name) {
  const auto found = reader.extra().find(std::string(name));
  return found == reader.extra().end() ? std::string() : canonical(found->second);
}

// The upper half of a float.
struct BFloat16 {
  std::uint16_t bits = 0;
  explicit operator double() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

struct Tally {
  std::int64_t differing = 0;
  std::int64_t first = -1;
  double largest = 0;
};

double difference(double a, double b) {
  const double gap = std::abs(a - b);
  return std::isnan(gap) ? INFINITY : gap;
}

template <class T>
void tally(std::span<const std::byte> a, std::span<const std::byte> b, std::int64_t begin,
           Tally& result) {
  for (std::size_t i = 0; i < a.size(); i += sizeof(T)) {
    T one{};
    T two{};
    std::memcpy(&one, a.data() + i, sizeof(T));
    std::memcpy(&two, b.data() + i, sizeof(T));
    // By bits: -0 differs from 0, and a NaN equals itself.
    if (std::memcmp(&one, &two, sizeof(T)) == 0) continue;
    if (result.differing++ == 0) result.first = begin + static_cast<std::int64_t>(i / sizeof(T));
    result.largest =
        std::max(result.largest, difference(static_cast<double>(one), static_cast<double>(two)));
  }
}

void tally_as(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b,
              std::int64_t begin, Tally& result) {
  if (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0) return;
  switch (dtype) {
    case DType::kFloat32:
      return tally<float>(a, b, begin, result);
    case DType::kFloat64:
      return tally<double>(a, b, begin, result);
    case DType::kInt64:
      return tally<std::int64_t>(a, b, begin, result);
    case DType::kUInt8:
      return tally<std::uint8_t>(a, b, begin, result);
    case DType::kBFloat16:
      return tally<BFloat16>(a, b, begin, result);
  }
}

// Returns what differs between two tensors of one name; empty when nothing.
std::string tensor_difference(const Reader& a, std::size_t in_a, const Reader& b,
                              std::size_t in_b) {
  const TensorSpec& one = a.tensors()[in_a];
  const TensorSpec& two = b.tensors()[in_b];
  if (one.dtype != two.dtype)
    return fmt::format("type {} and {}", name_of(one.dtype), name_of(two.dtype));
  if (one.shape != two.shape) {
    return fmt::format("shape [{}] and [{}]", fmt::join(one.shape, ","), fmt::join(two.shape, ","));
  }
  Tally result;
  std::vector<std::byte> buffer_a;
  std::vector<std::byte> buffer_b;
  const std::size_t size = element_bytes(one.dtype);
  each_chunk(a, in_a, buffer_a, [&](std::int64_t begin, std::span<const std::byte> bytes) {
    buffer_b.resize(bytes.size());
    const Extent extent{in_b, begin, static_cast<std::int64_t>(bytes.size() / size),
                        buffer_b.data()};
    b.read({&extent, 1});
    tally_as(one.dtype, bytes, buffer_b, begin, result);
  });
  if (result.differing == 0) return {};
  return fmt::format("{} of {} elements differ, largest absolute {:.3g}, first at {}",
                     result.differing, elements_of(one), result.largest, result.first);
}

// Returns "tokens: 5 and 6; ..." for two JSON objects, a plain sentence otherwise.
std::string text_difference(const std::string& a, const std::string& b) {
  const auto one = nlohmann::json::parse(a, nullptr, false);
  const auto two = nlohmann::json::parse(b, nullptr, false);
  if (!one.is_object() || !two.is_object())
    return a.empty() ? "only in B" : b.empty() ? "only in A" : "the texts differ";
  std::set<std::string> keys;
  for (const auto& [key, value] : one.items()) keys.insert(key);
  for (const auto& [key, value] : two.items()) keys.insert(key);
  std::string text;
  for (const std::string& key : keys) {
    const std::string left = one.contains(key) ? one[key].dump() : "nothing";
    const std::string right = two.contains(key) ? two[key].dump() : "nothing";
    if (left != right)
      text += fmt::format("{}{}: {} and {}", text.empty() ? "" : "; ", key, left, right);
  }
  return text;
}

}  // namespace

std::string content_hash(const std::filesystem::path& checkpoint, const Progress& progress) {
  const Reader reader(checkpoint);
  Meter meter(reader, progress);
  Digest digest;
  digest.add("trireme content 1");
  digest.add(static_cast<std::uint64_t>(reader.step().value));
  std::vector<std::byte> buffer;
  for (const std::size_t tensor : sorted_by_path(reader)) {
    const TensorSpec& spec = reader.tensors()[tensor];
    digest.add(spec.path);
    digest.add(name_of(spec.dtype));
    digest.add(spec.shape.size());
    for (const std::int64_t dim : spec.shape) digest.add(static_cast<std::uint64_t>(dim));
    each_chunk(reader, tensor, buffer, [&](std::int64_t, std::span<const std::byte> bytes) {
      digest.add(bytes);
      meter.add(bytes.size());
    });
  }
  digest.add(text_of(reader, kTraining));
  return digest.hex();
}

std::vector<Difference> compare(const std::filesystem::path& a, const std::filesystem::path& b,
                                const Progress& progress) {
  const Reader one(a);
  const Reader two(b);
  Meter meter(one, progress);
  std::vector<Difference> differences;
  if (one.step() != two.step()) {
    differences.push_back({"step", fmt::format("{} and {}", one.step().value, two.step().value)});
  }
  for (const std::size_t tensor : sorted_by_path(one)) {
    const std::string& path = one.tensors()[tensor].path;
    const auto other = two.find(path);
    std::string what = other ? tensor_difference(one, tensor, two, *other) : "only in A";
    if (!what.empty()) differences.push_back({path, std::move(what)});
    meter.add(*bytes_of(one.tensors()[tensor].dtype, one.tensors()[tensor].shape));
  }
  for (const std::size_t tensor : sorted_by_path(two)) {
    const std::string& path = two.tensors()[tensor].path;
    if (!one.find(path)) differences.push_back({path, "only in B"});
  }
  const std::string left = text_of(one, kTraining);
  const std::string right = text_of(two, kTraining);
  if (left != right)
    differences.push_back({fmt::format("extra/{}", kTraining), text_difference(left, right)});
  return differences;
}

}  // namespace trireme::ckpt
