// A Communicator of one process that needs no MPI. Linked before the room `comm`, it takes the
// place of the real one, so that tests of a single writer start in no time and may fork.
#include "lone_communicator.hpp"

#include <cstdlib>

namespace trireme::comm {

struct Communicator::Impl {};

Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

Rank Communicator::rank() const { return Rank(0); }
int Communicator::size() const { return 1; }
void Communicator::barrier(std::string_view) {}
ByteVector Communicator::broadcast(ByteVector bytes, std::string_view, Rank) { return bytes; }
std::vector<ByteVector> Communicator::all_gather(std::span<const std::byte> mine,
                                                 std::string_view) {
  return {ByteVector(mine.begin(), mine.end())};
}
std::vector<Message> Communicator::exchange(std::vector<Message> out, std::string_view) {
  return out;
}
void Communicator::agree(std::string_view, const std::function<void()>& action) {
  try {
    action();
  } catch (Error& error) {
    error.rank = 0;
    throw;
  }
}

Communicator Communicator::split(int, int, std::string_view) {
  return Communicator(std::make_unique<Impl>());
}
// Without MPI there is nothing to give: who asks has no place in these tests.
const void* Communicator::native() const { std::abort(); }

}  // namespace trireme::comm

namespace trireme::testing {

comm::Communicator lone_communicator() {
  return comm::Communicator(std::make_unique<comm::Communicator::Impl>());
}

}  // namespace trireme::testing
