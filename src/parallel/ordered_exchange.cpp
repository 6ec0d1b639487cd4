#include "parallel/ordered_exchange.hpp"

#include "trireme/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace trireme::parallel {

void throw_other_order(const Layout& layout, std::string_view who, std::size_t theirs,
                       std::size_t mine) {
  const std::string other = theirs < layout.units().size() ? layout.unit(theirs).name : "(none)";
  throw Error(
      ErrorKind::kConfig,
      fmt::format("ranks use the model's units in another order: {} takes '{}' where this "
                  "rank takes '{}'",
                  who, other, layout.unit(mine).name),
      "sharded strategies need every rank to use the model's blocks in the same order; use ddp");
}

void OrderedExchange::begin(std::size_t unit, int tag, std::vector<Outgoing> out,
                            std::vector<Incoming> in, std::function<void()> then) {
  unit_ = unit;
  tag_ = tag;
  then_ = std::move(then);
  const Rank me = comm_.rank();
  own_ = {};
  into_ = {};
  for (const Outgoing& message : out) {
    if (message.to == me) own_ = message.bytes;
  }
  for (const Incoming& message : in) {
    if (message.from == me) into_ = message.bytes;
  }
  ensure(own_.size() == into_.size(), "what a rank keeps has one size");
  std::erase_if(out, [me](const Outgoing& message) { return message.to == me; });
  std::erase_if(in, [me](const Incoming& message) { return message.from == me; });
  in_ = std::move(in);
  theirs_.assign(in_.size(), 0);
  heads_.emplace(comm_);
  data_.emplace(comm_);
  for (const Outgoing& message : out) {
    heads_->send(message.to, tag, std::as_bytes(std::span(&unit_, 1)));
    data_->send(message.to, tag, message.bytes);
  }
  for (std::size_t i = 0; i < in_.size(); ++i)
    heads_->receive(in_[i].from, tag, std::as_writable_bytes(std::span(&theirs_[i], 1)));
}

void OrderedExchange::receive_data() {
  heads_.reset();
  for (std::size_t i = 0; i < in_.size(); ++i) {
    if (theirs_[i] != unit_) {
      throw_other_order(layout_, fmt::format("rank {}", in_[i].from.value), theirs_[i], unit_);
    }
    data_->receive(in_[i].from, tag_, in_[i].bytes);
  }
  std::ranges::copy(own_, into_.begin());
}

void OrderedExchange::end() {
  data_.reset();
  if (then_) std::exchange(then_, {})();
}

bool OrderedExchange::done() {
  if (waiting_) return false;
  if (heads_) {
    if (!heads_->done()) return false;
    receive_data();
  }
  if (data_) {
    if (!data_->done()) return false;
    end();
  }
  return true;
}

void OrderedExchange::wait(std::string_view what, const std::function<void()>& idle) {
  waiting_ = true;
  if (heads_) {
    heads_->wait(what, idle);
    receive_data();
  }
  if (data_) {
    data_->wait(what, idle);
    end();
  }
  waiting_ = false;
}

}  // namespace trireme::parallel
