// How good a checkpoint is: loss, perplexity and bits per byte of texts, and multiple choice by
// likelihood. Every rank holds the model whole, in fp32; the work is dealt, and sums are added in
// one order, so the numbers are the same to the bit on any number of ranks.
#pragma once

#include "trireme/comm/communicator.hpp"
#include "trireme/data/documents.hpp"

#include <cstdint>
#include <filesystem>
#include <vector>

namespace trireme::train {

struct TextScore {
  std::uint64_t documents = 0;
  std::uint64_t bytes = 0;
  std::int64_t tokens = 0;  // every token of a document but its first, each once
  double nats = 0;          // the sum of -log p over them

  double loss() const { return nats / static_cast<double>(tokens); }
  double perplexity() const;
  double bits_per_byte() const;
};

struct TextQuestion {
  std::filesystem::path checkpoint;  // anything that ckpt::resolve takes
  std::vector<data::TextSource> sources;
  // Tokens between the beginnings of two windows of the model's context; 0: as many as the context,
  // so that windows do not overlap. Smaller ones give each token more text to go on from.
  std::int64_t stride = 0;
};

// @collective. Throws Config for texts without two tokens and strides beyond the context.
TextScore evaluate_text(comm::Communicator& world, const TextQuestion& question);

struct ChoiceScore {
  std::uint64_t questions = 0;
  std::uint64_t right = 0;           // the likeliest choice is the answer
  std::uint64_t right_per_byte = 0;  // by likelihood per byte of the choice
};

// @collective. Each line of the file is {"prompt": .., "choices": [..], "answer": 0}: what follows
// the prompt is scored. Throws Corrupt, with path and line, for others, Config for choices longer than the context.
ChoiceScore evaluate_choices(comm::Communicator& world, const std::filesystem::path& checkpoint,
                             const std::filesystem::path& file);

}  // namespace trireme::train
