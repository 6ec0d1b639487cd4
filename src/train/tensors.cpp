#include "trireme/train/tensors.hpp"

#include <torch/torch.h>

namespace trireme::train::detail {

at::Tensor stack(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.sizes() == tensors[0].sizes()) continue;
    throw Error(ErrorKind::kConfig, "samples of a batch have tensors of different shapes",
                "pad them in the dataset, or let it return batches of its own");
  }
  return at::stack(tensors);
}

void pack_bytes(const void* data, std::size_t size, comm::ByteVector& out) {
  const auto* const bytes = static_cast<const std::byte*>(data);
  out.insert(out.end(), bytes, bytes + size);
}

void unpack_bytes(void* data, std::size_t size, std::span<const std::byte>& from) {
  ensure(from.size() >= size, "a message holds what it says");
  if (size > 0) std::memcpy(data, from.data(), size);
  from = from.subspan(size);
}

void pack_tensor(const at::Tensor& tensor, comm::ByteVector& out) {
  const bool defined = tensor.defined();
  pack(defined, out);
  if (!defined) return;
  const at::Tensor dense = tensor.detach().contiguous();
  pack(static_cast<int>(dense.scalar_type()), out);
  pack(dense.sizes().vec(), out);
  pack_bytes(dense.const_data_ptr(), dense.nbytes(), out);
}

at::Tensor unpack_tensor(std::span<const std::byte>& from) {
  bool defined = false;
  unpack(defined, from);
  if (!defined) return {};
  int type = 0;
  unpack(type, from);
  std::vector<std::int64_t> sizes;
  unpack(sizes, from);
  at::Tensor tensor = at::empty(sizes, static_cast<at::ScalarType>(type));
  unpack_bytes(tensor.mutable_data_ptr(), tensor.nbytes(), from);
  return tensor;
}

}  // namespace trireme::train::detail
