// Reads numbered items ahead of who takes them, in threads or, without any, when they are asked for.
// Items come out in order; an error comes out where its item would have.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace trireme::train {

template <class Item>
class Ahead {
 public:
  using Read = std::function<Item(std::int64_t)>;

  // `depth`: items that one thread is ahead; 0: no thread. Items count from `first`.
  Ahead(Read read, std::int64_t first, int depth = 0)
      : depth_(depth), to_read_(first), to_give_(first) {
    readers_.push_back(std::move(read));
    start();
  }
  // A thread for each reader; `depth`: items that all are ahead together.
  Ahead(std::vector<Read> readers, std::int64_t first, int depth)
      : readers_(std::move(readers)), depth_(depth), to_read_(first), to_give_(first) {
    start();
  }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;
  ~Ahead() {
    for (std::jthread& thread : threads_) thread.request_stop();
  }

  // Returns the next item, or throws what its reader threw.
  Item next() {
    if (threads_.empty()) return readers_[0](to_give_++);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_.contains(to_give_); });
    auto node = done_.extract(to_give_++);
    changed_.notify_all();
    if (auto* error = std::get_if<std::exception_ptr>(&node.mapped()))
      std::rethrow_exception(*error);
    return std::move(std::get<Item>(node.mapped()));
  }

 private:
  using Result = std::variant<Item, std::exception_ptr>;

  void start() {
    if (depth_ == 0) return;
    for (Read& read : readers_) {
      threads_.emplace_back([this, &read](const std::stop_token& stop) { work(read, stop); });
    }
  }

  void work(const Read& read, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return to_read_ < to_give_ + depth_; })) {
      if (stop.stop_requested()) return;
      const std::int64_t number = to_read_++;
      lock.unlock();
      Result result = attempt(read, number);
      lock.lock();
      done_.emplace(number, std::move(result));
      changed_.notify_all();
    }
  }

  static Result attempt(const Read& read, std::int64_t number) {
    try {
      return read(number);
    } catch (...) {
      return std::current_exception();
    }
  }

  std::vector<Read> readers_;
  int depth_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::int64_t to_read_;
  std::int64_t to_give_;
  std::map<std::int64_t, Result> done_;
  std::vector<std::jthread> threads_;  // last: they use all of the above
};

}  // namespace trireme::train
