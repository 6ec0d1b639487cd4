#include "seats.hpp"

#include "trireme/base/error.hpp"

#include <cstring>
#include <string>
#include <string_view>

namespace trireme::train {

namespace {

comm::ByteVector as_bytes(const std::string& text) {
  comm::ByteVector bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::string_view as_text(const comm::ByteVector& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::vector<cluster::Node> gather_seats(Context& context, int threads) {
  comm::Session& session = context.session();
  const comm::Topology& topology = session.topology();
  const auto rank = static_cast<int>(session.world().rank().value);
  const int local_rank = rank - topology.first_rank[static_cast<std::size_t>(topology.node)];
  const cluster::Seat seat = cluster::read_seat(context.environment(), rank, local_rank, threads);
  // A machine is described once, by the first rank on it, in the line below its seat.
  std::string text = cluster::encode(seat);
  if (local_rank == 0) text += '\n' + cluster::encode(cluster::read_machine());

  std::vector<comm::Message> out;
  out.push_back({Rank(0), as_bytes(text)});
  std::vector<cluster::Node> nodes;
  for (const comm::Message& message : session.world().exchange(std::move(out), "placement")) {
    const std::string_view lines = as_text(message.bytes);
    const auto end = lines.find('\n');
    cluster::Seat found = cluster::decode_seat(lines.substr(0, end));
    if (end != std::string_view::npos)
      nodes.push_back({found.host, cluster::decode_machine(lines.substr(end + 1)), {}});
    ensure(!nodes.empty(), "the first rank of a node comes first");
    nodes.back().seats.push_back(std::move(found));
  }
  return nodes;
}

}  // namespace trireme::train
