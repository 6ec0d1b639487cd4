#include "data/work_parts.hpp"

#include "trireme/base/error.hpp"

#include "data/input_file.hpp"
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

namespace trireme::data::detail {

std::vector<TextPart> parts_of(const std::vector<TextSource>& sources, std::uint64_t part_bytes) {
  std::vector<TextPart> parts;
  for (const TextSource& source : sources) {
    std::uint64_t size = 0;
    try {
      size = InputFile(source.path).size();
    } catch (const Error& error) {
      throw Error(error.kind, fmt::format("{}: {}", source.path.string(), error.message),
                  error.hint);
    }
    if (source.format != "jsonl" || is_packed(source.path)) {
      parts.push_back({source, size});
      continue;
    }
    for (std::uint64_t begin = 0; begin < size; begin += part_bytes) {
      TextPart& part = parts.emplace_back(TextPart{source, std::min(part_bytes, size - begin)});
      part.source.begin = begin;
      part.source.end = begin + part.bytes;
    }
  }
  return parts;
}

void work_on(std::size_t parts, const Share& share,
             const std::function<void(std::size_t part, unsigned thread)>& work) {
  std::atomic<std::uint64_t> next = share.rank;
  std::mutex mutex;
  std::exception_ptr first;
  const auto run = [&](unsigned thread) {
    try {
      for (std::uint64_t part; (part = next.fetch_add(share.ranks)) < parts;)
        work(static_cast<std::size_t>(part), thread);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
      next = parts;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned thread = 1; thread < share.threads; ++thread) threads.emplace_back(run, thread);
    run(0);
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace trireme::data::detail
