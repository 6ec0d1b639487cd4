// Encodes every line of a text on one core, again for each line on standard input, and prints
// "seconds ids checksum" each time: what compare.py runs in turn with Hugging Face tokenizers.
#include "trireme/data/tokenizer.hpp"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: tokenizer_bench TOKENIZER TEXT < ROUNDS\n", stderr);
    return 2;
  }
  const auto tokenizer = trireme::data::load_tokenizer(argv[1]);
  std::vector<std::string> lines;
  std::ifstream file(argv[2]);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::vector<std::vector<std::uint32_t>> ids(lines.size());
  for (std::string round; std::getline(std::cin, round);) {
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < lines.size(); ++i) ids[i] = tokenizer->encode(lines[i], true);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::uint64_t count = 0;
    std::uint64_t checksum = 0;
    for (const auto& line : ids) {
      for (const std::uint32_t id : line) checksum = (checksum * 31 + id + 1) % 1000003;
      count += line.size();
    }
    std::printf("%.6f %llu %llu\n", took.count(), static_cast<unsigned long long>(count),
                static_cast<unsigned long long>(checksum));
    std::fflush(stdout);
  }
  return 0;
}
