// Host collectives over MPI for small, control-sized messages: agreement, checkpoint plans, losses.
// Gradients and weights never travel here (comm/node_group.hpp, comm/transfers.hpp). Every wait has a
// deadline; a rank that is dead or late is named. Nothing here uses an MPI reduction operator.
#pragma once

#include "trireme/base/error.hpp"
#include "trireme/base/units.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

using ByteVector = std::vector<std::byte>;

// A message of Communicator::exchange: `peer` is the receiver when sent and the sender when
// received.
struct Message {
  Rank peer;
  ByteVector bytes;
};

// Neither copied nor assigned: `split` and `duplicate` spell out what costs a collective.
class Communicator {
 public:
  struct Impl;
  explicit Communicator(std::unique_ptr<Impl> impl);
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  ~Communicator();

  Rank rank() const;
  int size() const;
  bool is_root() const { return rank().value == 0; }

  // The longest that any wait below may take before it throws Timeout.
  std::chrono::duration<double> timeout() const;
  void set_timeout(std::chrono::duration<double> timeout);

  // @collective. `what` is a short label for messages ("checkpoint begin").
  void barrier(std::string_view what);
  // @collective. Returns root's bytes on every rank; `bytes` is ignored elsewhere.
  ByteVector broadcast(ByteVector bytes, std::string_view what, Rank root = Rank(0));
  // @collective. Returns every rank's bytes, by rank; lengths may differ.
  std::vector<ByteVector> all_gather(std::span<const std::byte> mine, std::string_view what);
  // @collective. Sends each message to its peer and returns what the others sent here, by sender;
  // lengths may differ, ranks with nothing still call it.
  std::vector<Message> exchange(std::vector<Message> out, std::string_view what);
  // @collective. Runs `action` on this rank; when it failed on any rank, every rank throws the
  // lowest failing rank's error (with its rank and host filled in). So one rank's exception never
  // leaves others in the next collective.
  void agree(std::string_view what, const std::function<void()>& action);

  // @collective. Returns a new communicator for the ranks with the same `color`, ordered by `key`.
  Communicator split(int color, int key, std::string_view what);

  // Returns a pointer to the MPI_Comm, for libraries that need one (parallel HDF5).
  const void* native() const;

 private:
  friend class DeviceGroup;
  friend class Transfers;
  std::unique_ptr<Impl> impl_;
};

// Typed helpers over all_gather for trivially copyable values.
template <class T>
std::vector<T> all_gather_values(Communicator& comm, const T& mine, std::string_view what) {
  std::vector<T> values;
  for (const ByteVector& bytes : comm.all_gather(std::as_bytes(std::span(&mine, 1)), what)) {
    values.push_back(*reinterpret_cast<const T*>(bytes.data()));
  }
  return values;
}

}  // namespace trireme::comm
