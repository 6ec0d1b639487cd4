// A list of texts cut into parts, and threads that work on them.
#pragma once

#include "trireme/data/tokenize.hpp"

namespace trireme::data::detail {

struct TextPart {
  TextSource source;
  std::uint64_t bytes = 0;  // of input
};

// JSON lines that are not packed are cut every `part_bytes`; other files are one part each. Throws
// Config, with the path, for what cannot be opened.
std::vector<TextPart> parts_of(const std::vector<TextSource>& sources, std::uint64_t part_bytes);

// Runs `work(part, thread)` for this share of the parts on its threads; the first error is thrown once all
// threads have stopped.
void work_on(std::size_t parts, const Share& share,
             const std::function<void(std::size_t part, unsigned thread)>& work);

}  // namespace trireme::data::detail
