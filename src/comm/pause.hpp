// How to wait for a flag: spin while it is likely to come at once, then give the core away. Private
// to the room.
#pragma once

#include <immintrin.h>
#include <sched.h>

#include <ctime>

namespace trireme::comm {

class Pause {
 public:
  void operator()() {
    ++rounds_;
    if (rounds_ < kSpins) {
      _mm_pause();
    } else if (rounds_ < kYields) {
      sched_yield();  // with more ranks than cores, the late rank may need this core
    } else {
      const timespec nap{0, 50'000};
      nanosleep(&nap, nullptr);
    }
  }
  void reset() { rounds_ = 0; }
  // True now and then: the time to look at clocks and at the health of others.
  bool time_to_check() const { return rounds_ >= kSpins && (rounds_ & 63) == 0; }

 private:
  static constexpr int kSpins = 500;
  static constexpr int kYields = 20'000;
  int rounds_ = 0;
};

}  // namespace trireme::comm
