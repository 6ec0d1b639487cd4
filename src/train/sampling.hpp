// The next token, drawn from a model's scores. Pure arithmetic; private to the room.
#pragma once

#include "trireme/train/generate.hpp"

#include <span>

namespace trireme::train {

// Returns the token that `uniform` in [0, 1) picks. `text` is what the repetition penalty looks at.
// Filters apply in the order of transformers: penalty, temperature, top-k, top-p, min-p.
std::int64_t draw(std::span<const float> scores, const Sampling& sampling,
                  std::span<const std::int64_t> text, double uniform);

}  // namespace trireme::train
