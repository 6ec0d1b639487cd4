// Conversions and sums: every 16-bit pattern and 1.3 million fp32 words against torch, ml_dtypes
// and numpy (data/halfs).
#include "trireme/kernels/convert.hpp"

#include "support/safetensors.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/accumulate.hpp"

#include "kernels/half_bits.hpp"
#include "kernels/kokkos.hpp"
#include "kernels/sha256.hpp"
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>

namespace trireme::kernels {
namespace {

using nlohmann::json;

const std::filesystem::path kData = std::filesystem::path(TRIREME_TEST_DATA) / "kernels/data/halfs";

bool is_nan_bf16(Half h) { return (h & 0x7fffU) > 0x7f80U; }
bool is_nan_fp16(Half h) { return (h & 0x7fffU) > 0x7c00U; }

template <class T>
std::string hash(const std::vector<T>& values) {
  return support::Sha256::hex(std::as_bytes(std::span(values)));
}

std::vector<Half> all_patterns() {
  std::vector<Half> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<Half>(i);
  return patterns;
}

// The words (i << 16) | low for all i: every sign and exponent with sixteen different mantissas'
// halves.
std::vector<float> words_with(std::uint32_t low) {
  std::vector<float> words(65536);
  for (std::uint32_t i = 0; i < words.size(); ++i) words[i] = std::bit_cast<float>(i << 16 | low);
  return words;
}

std::uint32_t hex(const json& text) {
  return static_cast<std::uint32_t>(std::stoul(text.get<std::string>(), nullptr, 16));
}

TEST(Sha256, knows_the_published_examples) {
  EXPECT_EQ(hash(std::vector<char>{}),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash(std::vector<char>{'a', 'b', 'c'}),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Narrow, agrees_with_torch_on_every_exponent_and_tie) {
  const json all = support::read_json(kData / "narrow_sha256.json");
  ASSERT_EQ(all["cases"].size(), 20U);
  for (const json& golden : all["cases"]) {
    SCOPED_TRACE(golden["low"]);
    const std::vector<float> words = words_with(hex(golden["low"]));
    std::vector<Half> bf16(words.size());
    std::vector<Half> fp16(words.size());
    narrow_bf16(words, bf16);
    narrow_fp16(words, fp16);
    std::ranges::replace_if(bf16, is_nan_bf16, Half{0x7fc0});
    std::ranges::replace_if(fp16, is_nan_fp16, Half{0x7e00});
    EXPECT_EQ(hash(bf16), golden["bf16"]);
    EXPECT_EQ(hash(fp16), golden["fp16"]);
  }
}

TEST(Narrow, agrees_with_torch_on_the_samples) {
  const json all = support::read_json(kData / "samples.json");
  ASSERT_EQ(all["cases"].size(), 2000U);
  for (const json& row : all["cases"]) {
    const float value = std::bit_cast<float>(hex(row[0]));
    Half bf16 = 0;
    Half fp16 = 0;
    narrow_bf16(std::span(&value, 1), std::span(&bf16, 1));
    narrow_fp16(std::span(&value, 1), std::span(&fp16, 1));
    EXPECT_EQ(is_nan_bf16(bf16) ? 0x7fc0U : bf16, hex(row[1])) << row[0];
    EXPECT_EQ(is_nan_fp16(fp16) ? 0x7e00U : fp16, hex(row[2])) << row[0];
  }
}

TEST(Narrow, keeps_every_nan_a_quiet_nan) {
  for (const std::uint32_t bits :
       {0x7f800001U, 0x7fbfffffU, 0x7fc00000U, 0xff800001U, 0xffffffffU}) {
    const float value = std::bit_cast<float>(bits);
    Half half = 0;
    narrow_bf16(std::span(&value, 1), std::span(&half, 1));
    EXPECT_TRUE(is_nan_bf16(half) && (half & 0x40U) != 0);
    narrow_fp16(std::span(&value, 1), std::span(&half, 1));
    EXPECT_TRUE(is_nan_fp16(half) && (half & 0x200U) != 0);
  }
}

TEST(Widen, agrees_with_torch_on_every_pattern) {
  const std::vector<Half> patterns = all_patterns();
  const json all = support::read_json(kData / "widen_sha256.json");
  ASSERT_EQ(all["cases"].size(), 2U);
  for (const json& golden : all["cases"]) {
    std::vector<float> wide(patterns.size());
    (golden["from"] == "bf16" ? widen_bf16 : widen_fp16)(patterns, wide);
    for (float& value : wide) {
      if (std::isnan(value)) value = std::numeric_limits<float>::quiet_NaN();
    }
    EXPECT_EQ(hash(wide), golden["fp32"]) << golden["from"];
  }
}

TEST(Convert, there_and_back_is_the_same_pattern) {
  const std::vector<Half> patterns = all_patterns();
  std::vector<float> wide(patterns.size());
  std::vector<Half> back(patterns.size());
  widen_bf16(patterns, wide);
  narrow_bf16(wide, back);
  for (std::size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i], is_nan_bf16(patterns[i]) ? patterns[i] | 0x40U : patterns[i]);
  }
  widen_fp16(patterns, wide);
  narrow_fp16(wide, back);
  for (std::size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i], is_nan_fp16(patterns[i]) ? patterns[i] | 0x200U : patterns[i]);
  }
}

// Where the machine has conversion instructions, the kernels use them; the integer form is for the
// others.
TEST(Convert, integer_form_of_fp16_gives_the_same_bits_as_the_kernel) {
  for (const std::uint32_t low : {0x0000U, 0x0fffU, 0x1000U, 0x1001U, 0x3000U, 0x8000U, 0xffffU}) {
    const std::vector<float> words = words_with(low);
    std::vector<Half> kernel(words.size());
    narrow_fp16(words, kernel);
    for (std::size_t i = 0; i < words.size(); ++i) {
      ASSERT_EQ(detail::narrow_fp16(words[i]), kernel[i]) << std::hex << i << " " << low;
    }
  }
  const std::vector<Half> patterns = all_patterns();
  std::vector<float> kernel(patterns.size());
  widen_fp16(patterns, kernel);
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    ASSERT_EQ(detail::bits_of(detail::widen_fp16(patterns[i])), detail::bits_of(kernel[i])) << i;
  }
}

TEST(Convert, every_length_converts_each_element_alone) {
  for (const std::int64_t size : kSizes) {
    SCOPED_TRACE(size);
    const std::vector<float> in = numbers(size, 11, 70000.0F);
    std::vector<Half> out(in.size() + 1, Half{0xabcd});
    narrow_bf16(in, std::span(out).first(in.size()));
    for (std::size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], detail::narrow_bf16(in[i]));
    narrow_fp16(in, std::span(out).first(in.size()));
    for (std::size_t i = 0; i < in.size(); ++i) ASSERT_EQ(out[i], detail::narrow_fp16(in[i]));
    EXPECT_EQ(out.back(), 0xabcd);
  }
}

TEST(Convert, refuses_ranges_of_different_length) {
  std::vector<float> wide(3);
  std::vector<Half> narrow(2);
  EXPECT_THROW(narrow_bf16(wide, narrow), Error);
  EXPECT_THROW(widen_fp16(narrow, wide), Error);
}

TEST(Accumulate, adds_element_by_element_for_every_length) {
  for (const std::int64_t size : kSizes) {
    SCOPED_TRACE(size);
    const std::vector<float> a = numbers(size, 1);
    const std::vector<float> b = numbers(size, 2);
    std::vector<float> expected(a.size());
    std::ranges::transform(a, b, expected.begin(), std::plus<>());
    std::vector<float> into = a;
    add(into, b);
    EXPECT_EQ(into, expected);
    std::vector<float> out(a.size());
    sum(a, b, out);
    EXPECT_EQ(out, expected);
  }
}

TEST(Accumulate, sum_may_write_over_either_operand) {
  const std::vector<float> a = numbers(8193, 1);
  const std::vector<float> b = numbers(8193, 2);
  std::vector<float> expected(a.size());
  sum(a, b, expected);
  std::vector<float> over_a = a;
  sum(over_a, b, over_a);
  EXPECT_EQ(over_a, expected);
  std::vector<float> over_b = b;
  sum(a, over_b, over_b);
  EXPECT_EQ(over_b, expected);
}

TEST(Accumulate, bf16_is_added_as_the_float_it_stands_for) {
  for (const std::int64_t size : kSizes) {
    std::vector<float> into = numbers(size, 3);
    std::vector<float> expected = into;
    std::vector<Half> narrow(into.size());
    std::vector<float> wide(into.size());
    narrow_bf16(numbers(size, 4), narrow);
    widen_bf16(narrow, wide);
    add(expected, wide);
    add_bf16(into, narrow);
    EXPECT_EQ(into, expected);
  }
}

TEST(AddFp16, adds_what_widening_gives) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{511}, std::size_t{8193}}) {
    std::vector<Half> narrow(size);
    for (std::size_t i = 0; i < size; ++i) narrow[i] = static_cast<Half>(i * 37 % 0x7c00);
    std::vector<float> into(size, 0.25F);
    std::vector<float> expected(size);
    widen_fp16(narrow, expected);
    for (float& value : expected) value += 0.25F;
    add_fp16(into, narrow);
    EXPECT_EQ(into, expected);
  }
}

}  // namespace
}  // namespace trireme::kernels
