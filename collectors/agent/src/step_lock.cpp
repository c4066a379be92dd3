#include "step_lock.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <unistd.h>

namespace spanlite {
namespace {

// A thread that ends tells nobody, so its end is looked for this often.
constexpr auto kLookEvery = std::chrono::milliseconds(2);

}  // namespace

bool ThreadLives(uint32_t thread_id) {
  return access(("/proc/self/task/" + std::to_string(thread_id)).c_str(), F_OK) == 0;
}

void StepLock::LockAtBoundary(uint32_t thread_id) {
  if (mutex_.try_lock()) return;  // as a rule: nobody can be holding this thread
  {
    std::lock_guard<std::mutex> lock(waiting_mutex_);
    waiting_.insert(thread_id);
  }
  arrived_.notify_all();
  mutex_.lock();
  // Until this is done nobody else has `mutex_`, so nobody takes this thread for a held one.
  std::lock_guard<std::mutex> lock(waiting_mutex_);
  waiting_.erase(thread_id);
}

bool StepLock::AllHeld(const std::vector<uint32_t>& threads) const {
  return std::all_of(threads.begin(), threads.end(), [this](uint32_t thread_id) {
    return waiting_.count(thread_id) != 0 || !ThreadLives(thread_id);
  });
}

bool StepLock::Hold(const std::vector<uint32_t>& threads, uint64_t patience_ns) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(patience_ns);
  std::unique_lock<std::mutex> lock(waiting_mutex_);
  while (!AllHeld(threads)) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= until) return false;
    arrived_.wait_until(lock, std::min(until, now + kLookEvery));
  }
  return true;
}

}  // namespace spanlite
