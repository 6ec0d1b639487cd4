#include "parallel/state_store.hpp"

#include "trireme/base/error.hpp"

#include <cstring>

namespace trireme::parallel {

StateStore::StateStore(const Layout& layout, Rank me, int num_moments, at::ScalarType moments)
    : layout_(layout), me_(me), num_moments_(num_moments), type_(moments) {
  ensure(num_moments >= 0 && num_moments <= kMaxMoments,
         "an optimizer keeps at most three moments");
}

std::vector<Range> StateStore::parts(std::size_t unit) const {
  std::vector<Range> result;
  const int first = layout_.first_position(unit, me_);
  for (int position = first; position < first + layout_.mesh().num_groups(); ++position) {
    const Range part = layout_.part(unit, position);
    if (part.size() > 0) result.push_back(part);
  }
  return result;
}

HostState::HostState(const Layout& layout, Rank me, int num_moments, at::ScalarType moments)
    : StateStore(layout, me, num_moments, moments) {
  std::int64_t all = 0;
  std::int64_t trained = 0;
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    master_at_.push_back(all);
    moments_at_.push_back(trained);
    all += held(u).size();
    if (layout.unit(u).trains) trained += held(u).size();
  }
  const auto bytes = [this](std::int64_t elements, int array) {
    return Bytes(elements * static_cast<std::int64_t>(element_size(array)));
  };
  master_ = memory::HostBuffer(bytes(all, 0), "master weights");
  for (int m = 0; m < num_moments; ++m)
    moments_.emplace_back(bytes(trained, 1 + m), "optimizer moments");
}

std::byte* HostState::array_at(std::size_t unit, Range range, int array) const {
  const std::int64_t begin = array == 0 ? master_at_[unit] : moments_at_[unit];
  const std::int64_t element = begin + range.begin - held(unit).begin;
  const memory::HostBuffer& buffer =
      array == 0 ? master_ : moments_[static_cast<std::size_t>(array - 1)];
  return buffer.bytes().data() + static_cast<std::size_t>(element) * element_size(array);
}

StateChunk HostState::at(std::size_t unit, Range range) const {
  StateChunk chunk{unit, range, {}, {}};
  chunk.master = {reinterpret_cast<float*>(array_at(unit, range, 0)),
                  static_cast<std::size_t>(range.size())};
  for (int m = 0; m < num_moments_ && layout_.unit(unit).trains; ++m)
    chunk.moments[static_cast<std::size_t>(m)] = array_at(unit, range, 1 + m);
  return chunk;
}

void HostState::for_each(const Visit& visit, Access /*access*/) {
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    for (const Range& part : parts(u)) visit(at(u, part));
  }
}

void HostState::read(std::size_t unit, Range range, int array, std::span<std::byte> out) {
  std::memcpy(out.data(), array_at(unit, range, array), out.size());
}

void HostState::write(std::size_t unit, Range range, int array, std::span<const std::byte> in) {
  std::memcpy(array_at(unit, range, array), in.data(), in.size());
}

Bytes HostState::master_bytes() const {
  return Bytes(static_cast<std::int64_t>(master_.bytes().size()));
}

Bytes HostState::moment_bytes() const {
  Bytes total;
  for (const memory::HostBuffer& moment : moments_)
    total.value += static_cast<std::int64_t>(moment.bytes().size());
  return total;
}

std::unique_ptr<StateStore> make_state_store(const Layout& layout, Rank me, int num_moments,
                                             at::ScalarType moments, const DiskOptions& disk) {
  if (disk.folder.empty()) return std::make_unique<HostState>(layout, me, num_moments, moments);
  return std::make_unique<DiskState>(layout, me, num_moments, moments, disk);
}

}  // namespace trireme::parallel
