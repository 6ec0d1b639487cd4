// What the ranks of one node hold of a checkpoint, as the datasets of a file of their own.
#pragma once

#include "trireme/ckpt/checkpoint.hpp"

#include "ckpt/manifest.hpp"

#include <span>
#include <vector>

namespace trireme::ckpt {

// A node's runs of consecutive elements; `stored` counts them. A run that is a whole tensor is a
// dataset of its name and shape; any other is a flat one, "/model/w/1024-2047", named after its
// first and last element.
struct NodeContent {
  std::vector<TensorSpec> tensors;
  std::vector<ConstExtent> extents;  // this rank's, as elements of `tensors`
  std::vector<Part> parts;           // of all of the node's, in order of `tensors`
};

// @collective on the node. Tensors without elements, which no rank has, are the first node's. Throws
// Internal when two ranks of the node give the same element.
NodeContent node_content(comm::Communicator& node, const std::vector<TensorSpec>& tensors,
                         std::span<const ConstExtent> extents, bool is_first);

// "state-0003.h5"
std::string node_file_name(int node);

}  // namespace trireme::ckpt
