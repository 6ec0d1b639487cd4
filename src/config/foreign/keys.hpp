// The keys of foreign files, one record each: its type, what becomes of it here, and why. Readers,
// lists and completion are loops over these tables.
#pragma once

#include "trireme/config/foreign.hpp"

#include <limits>
#include <span>
#include <string_view>

namespace trireme::config::foreign {

enum class Type {
  kBool,
  kInt,
  kNumber,
  kText,
  kWord,   // a text or a number, kept as text
  kTexts,  // a list of texts, or one text with commas
  kGroup,  // keys of its own, in this table
  kAny,    // kept as it stands, whatever is in it
};

enum class Use {
  kUsed,     // part of the meaning
  kIdle,     // no effect here; `note` says why
  kDropped,  // removed from the program itself; `note` may say when
  kRenamed,  // an old name; `note` is the new one
};

struct Key {
  std::string_view path;
  Type type = Type::kText;
  Use use = Use::kUsed;
  std::string_view note = {};
  std::string_view choices = {};  // "a|b", of a text
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above = false;             // min itself is not allowed
  std::string_view suggest = {};  // instead of a value out of range
  bool automatic = false;         // may be "auto"
};

std::span<const Key> accelerate_keys();
std::span<const Key> deepspeed_keys();
std::span<const Key> training_keys();
std::span<const Key> keys_of(ForeignKind kind);

const Key* find_key(std::span<const Key> keys, std::string_view path);

}  // namespace trireme::config::foreign
