// The host clock that CUPTI on Linux uses as well: CLOCK_REALTIME, in ns.
#pragma once

#include <cstdint>
#include <ctime>

namespace spanlite {

inline uint64_t ReadClock(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000ull + static_cast<uint64_t>(now.tv_nsec);
}

inline uint64_t NowNs() { return ReadClock(CLOCK_REALTIME); }

// For lengths of time inside the agent: NTP does not step it.
inline uint64_t SteadyNs() { return ReadClock(CLOCK_MONOTONIC); }

// The same as of the kernel's last tick, some ms ago at most: a third of the cost.
inline uint64_t CoarseSteadyNs() { return ReadClock(CLOCK_MONOTONIC_COARSE); }

}  // namespace spanlite
