// Tensors inside whatever a loop hands around: tensors themselves, torch's Example, pairs, tuples,
// vectors, maps and optionals of them, and any struct that lists its members:
//
//   struct Batch {
//     at::Tensor input, target;
//     auto fields() { return std::tie(input, target); }
//   };
//
// Samples of such types are stacked into a batch of the same type; batches can be sent to other
// ranks. Numbers and strings travel along untouched.
#pragma once

#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"

#include <torch/data/example.h>
#include <torch/types.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme::train {

template <class T>
concept HasFields = requires(T& value) {
  value.fields();
};

namespace detail {

template <class T>
struct IsExample : std::false_type {};
template <class D, class T>
struct IsExample<torch::data::Example<D, T>> : std::true_type {};
template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsMap : std::false_type {};
template <class K, class V, class... Rest>
struct IsMap<std::map<K, V, Rest...>> : std::true_type {};
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};
template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};

template <class T>
inline constexpr bool kIsLeaf = std::is_arithmetic_v<T> || std::is_same_v<T, std::string>;

template <class T>
inline constexpr bool kUnknown = false;

// Calls `visit` for each leaf: tensors, numbers, strings.
template <class T, class Visit>
void for_each_leaf(T& value, const Visit& visit) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Plain, at::Tensor> || kIsLeaf<Plain>) {
    visit(value);
  } else if constexpr (IsExample<Plain>::value) {
    for_each_leaf(value.data, visit);
    if constexpr (requires { value.target; }) for_each_leaf(value.target, visit);
  } else if constexpr (IsVector<Plain>::value) {
    for (auto& item : value) for_each_leaf(item, visit);
  } else if constexpr (IsMap<Plain>::value) {
    for (auto& [key, item] : value) for_each_leaf(item, visit);
  } else if constexpr (IsOptional<Plain>::value) {
    if (value) for_each_leaf(*value, visit);
  } else if constexpr (HasFields<Plain>) {
    std::apply([&](auto&... item) { (for_each_leaf(item, visit), ...); },
               const_cast<Plain&>(value).fields());
  } else if constexpr (TupleLike<Plain>) {
    std::apply([&](auto&... item) { (for_each_leaf(item, visit), ...); }, value);
  } else {
    static_assert(kUnknown<Plain>,
                  "this type is no tensor, container of tensors or struct with fields(): give it "
                  "auto fields() { return std::tie(members...); }");
  }
}

// Whether a type has tensors alone, and always the same number of them.
template <class T>
constexpr bool is_stackable();
template <class Tuple, std::size_t... I>
constexpr bool all_stackable(std::index_sequence<I...>) {
  return (is_stackable<std::remove_cvref_t<std::tuple_element_t<I, Tuple>>>() && ...);
}
template <class T>
constexpr bool is_stackable() {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return true;
  } else if constexpr (IsExample<T>::value) {
    if constexpr (requires(T & value) { value.target; }) {
      return is_stackable<typename T::DataType>() && is_stackable<typename T::TargetType>();
    } else {
      return is_stackable<typename T::DataType>();
    }
  } else if constexpr (IsMap<T>::value) {
    return is_stackable<typename T::mapped_type>();
  } else if constexpr (HasFields<T>) {
    using Fields = decltype(std::declval<T&>().fields());
    return all_stackable<Fields>(std::make_index_sequence<std::tuple_size_v<Fields>>());
  } else if constexpr (TupleLike<T>) {
    return all_stackable<T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return false;
  }
}

at::Tensor stack(const std::vector<at::Tensor>& tensors);
void pack_tensor(const at::Tensor& tensor, comm::ByteVector& out);
at::Tensor unpack_tensor(std::span<const std::byte>& from);
void pack_bytes(const void* data, std::size_t size, comm::ByteVector& out);
void unpack_bytes(void* data, std::size_t size, std::span<const std::byte>& from);

}  // namespace detail

// Calls `visit` for every tensor in `value`.
template <class T, class Visit>
void for_each_tensor(T& value, const Visit& visit) {
  detail::for_each_leaf(value, [&](auto& leaf) {
    if constexpr (std::is_same_v<std::remove_const_t<std::remove_reference_t<decltype(leaf)>>,
                                 at::Tensor>)
      visit(leaf);
  });
}

// What a batch of samples is: of the same type where that has tensors alone, each stacked along a
// new first dimension; one tensor for numbers; else the samples as they are.
template <class Sample>
auto collate(std::vector<Sample> samples) {
  if constexpr (detail::is_stackable<Sample>()) {
    std::vector<std::vector<at::Tensor>> leaves;
    for (Sample& sample : samples) {
      std::size_t leaf = 0;
      for_each_tensor(sample, [&](at::Tensor& tensor) {
        if (leaf == leaves.size()) leaves.emplace_back();
        leaves[leaf++].push_back(tensor);
      });
    }
    Sample batch = samples.at(0);
    std::size_t leaf = 0;
    for_each_tensor(batch, [&](at::Tensor& tensor) { tensor = detail::stack(leaves[leaf++]); });
    return batch;
  } else if constexpr (std::is_arithmetic_v<Sample>) {
    using Number = std::conditional_t<std::is_floating_point_v<Sample>, float, std::int64_t>;
    const std::vector<Number> numbers(samples.begin(), samples.end());
    return torch::tensor(numbers);
  } else {
    return samples;
  }
}

// Bytes of a value for another rank, and the value again.
template <class T>
void pack(const T& value, comm::ByteVector& out) {
  using detail::pack_bytes;
  if constexpr (std::is_same_v<T, at::Tensor>) {
    detail::pack_tensor(value, out);
  } else if constexpr (std::is_arithmetic_v<T>) {
    pack_bytes(&value, sizeof value, out);
  } else if constexpr (std::is_same_v<T, std::string>) {
    pack(value.size(), out);
    pack_bytes(value.data(), value.size(), out);
  } else if constexpr (detail::IsVector<T>::value || detail::IsMap<T>::value) {
    pack(value.size(), out);
    for (const auto& item : value) pack(item, out);
  } else if constexpr (detail::IsOptional<T>::value) {
    pack(value.has_value(), out);
    if (value) pack(*value, out);
  } else if constexpr (detail::IsExample<T>::value) {
    pack(value.data, out);
    if constexpr (requires { value.target; }) pack(value.target, out);
  } else if constexpr (HasFields<T>) {
    std::apply([&](const auto&... item) { (pack(item, out), ...); },
               const_cast<T&>(value).fields());
  } else {
    std::apply([&](const auto&... item) { (pack(item, out), ...); }, value);
  }
}

template <class T>
void unpack(T& value, std::span<const std::byte>& from) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    value = detail::unpack_tensor(from);
  } else if constexpr (std::is_arithmetic_v<T>) {
    detail::unpack_bytes(&value, sizeof value, from);
  } else if constexpr (std::is_same_v<T, std::string>) {
    std::size_t size = 0;
    unpack(size, from);
    value.resize(size);
    detail::unpack_bytes(value.data(), size, from);
  } else if constexpr (detail::IsVector<T>::value) {
    std::size_t size = 0;
    unpack(size, from);
    value.resize(size);
    for (auto& item : value) unpack(item, from);
  } else if constexpr (detail::IsMap<T>::value) {
    std::size_t size = 0;
    unpack(size, from);
    value.clear();
    for (std::size_t i = 0; i < size; ++i) {
      typename T::key_type key{};
      unpack(key, from);
      unpack(value[key], from);
    }
  } else if constexpr (detail::IsOptional<T>::value) {
    bool has = false;
    unpack(has, from);
    if (has) unpack(value.emplace(), from);
  } else if constexpr (detail::IsExample<T>::value) {
    unpack(value.data, from);
    if constexpr (requires { value.target; }) unpack(value.target, from);
  } else if constexpr (HasFields<T>) {
    std::apply([&](auto&... item) { (unpack(item, from), ...); }, value.fields());
  } else {
    std::apply([&](auto&... item) { (unpack(item, from), ...); }, value);
  }
}

}  // namespace trireme::train
