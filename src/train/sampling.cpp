#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace trireme::train {

namespace {

std::vector<double> penalized(std::span<const float> scores, double penalty,
                              std::span<const std::int64_t> text) {
  std::vector<double> out(scores.begin(), scores.end());
  if (penalty == 1) return out;
  std::vector<bool> seen(scores.size());
  for (const std::int64_t token : text) seen[static_cast<std::size_t>(token)] = true;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (seen[i]) out[i] = out[i] > 0 ? out[i] / penalty : out[i] * penalty;
  }
  return out;
}

// The likeliest `count` tokens in order; of equals the first.
std::vector<std::size_t> likeliest(const std::vector<double>& scores, std::size_t count) {
  std::vector<std::size_t> tokens(scores.size());
  std::iota(tokens.begin(), tokens.end(), std::size_t{0});
  std::partial_sort(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count),
                    tokens.end(), [&](std::size_t a, std::size_t b) {
                      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
                    });
  tokens.resize(count);
  return tokens;
}

// How many of the weights, which descend, the two thresholds leave; at least one.
std::size_t kept(const std::vector<double>& weights, const Sampling& sampling) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double before = 0;
  std::size_t count = 0;
  for (const double weight : weights) {
    if (count > 0 && (before >= sampling.top_p * sum || weight < sampling.min_p * weights[0]))
      break;
    before += weight;
    ++count;
  }
  return count;
}

}  // namespace

std::int64_t draw(std::span<const float> scores, const Sampling& sampling,
                  std::span<const std::int64_t> text, double uniform) {
  const std::vector<double> all = penalized(scores, sampling.repetition_penalty, text);
  if (sampling.temperature == 0) return std::max_element(all.begin(), all.end()) - all.begin();
  const std::size_t most = sampling.top_k == 0
                               ? all.size()
                               : std::min(static_cast<std::size_t>(sampling.top_k), all.size());
  const std::vector<std::size_t> tokens = likeliest(all, most);
  std::vector<double> weights;
  for (const std::size_t token : tokens)
    weights.push_back(std::exp((all[token] - all[tokens[0]]) / sampling.temperature));
  weights.resize(kept(weights, sampling));
  double left = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  std::size_t at = 0;
  while (at + 1 < weights.size() && left >= weights[at]) left -= weights[at++];
  return static_cast<std::int64_t>(tokens[at]);
}

}  // namespace trireme::train
