#include "parallel/state_store.hpp"

#include "trireme/base/error.hpp"

namespace trireme::parallel {

StateStore::StateStore(const Layout& layout, Rank me, int num_moments, at::ScalarType moments)
    : layout_(layout), me_(me), type_(moments) {
  ensure(num_moments >= 0 && num_moments <= kMaxMoments,
         "an optimizer keeps at most three moments");
  std::int64_t all = 0;
  std::int64_t trained = 0;
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    master_at_.push_back(all);
    moments_at_.push_back(trained);
    all += held(u).size();
    if (layout.unit(u).trains) trained += held(u).size();
  }
  master_ =
      memory::HostBuffer(Bytes(all * static_cast<std::int64_t>(sizeof(float))), "master weights");
  for (int m = 0; m < num_moments; ++m) {
    moments_.emplace_back(Bytes(trained * static_cast<std::int64_t>(moment_size())),
                          "optimizer moments");
  }
}

StateChunk StateStore::at(std::size_t unit, Range range) const {
  const std::int64_t offset = range.begin - held(unit).begin;
  StateChunk chunk{unit, range, {}, {}};
  chunk.master =
      master_.as<float>(static_cast<std::size_t>(master_at_[unit] + offset) * sizeof(float),
                        static_cast<std::size_t>(range.size()));
  if (!layout_.unit(unit).trains) return chunk;
  const auto bytes = static_cast<std::size_t>(moments_at_[unit] + offset) * moment_size();
  for (std::size_t m = 0; m < moments_.size(); ++m)
    chunk.moments[m] = moments_[m].bytes().data() + bytes;
  return chunk;
}

void StateStore::for_each(const std::function<void(const StateChunk&)>& visit) {
  for (std::size_t u = 0; u < layout_.units().size(); ++u) {
    const int first = layout_.first_position(u, me_);
    for (int position = first; position < first + layout_.mesh().num_groups(); ++position) {
      const Range part = layout_.part(u, position);
      if (part.size() > 0) visit(at(u, part));
    }
  }
}

Bytes StateStore::moment_bytes() const {
  Bytes total;
  for (const memory::HostBuffer& moment : moments_) total.value += size_of(moment).value;
  return total;
}

}  // namespace trireme::parallel
