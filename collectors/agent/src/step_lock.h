// The session's lock, which also knows who waits for it at a step's boundary. A thread that waits
// there has left its last CUDA call and makes none before the holder lets go: it is held.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace spanlite {

// A Lockable, for who is at no step's boundary (the agent's own thread).
class StepLock {
 public:
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

  // Locks at a step's boundary, on the application's thread `thread_id`.
  void LockAtBoundary(uint32_t thread_id);
  // With the lock held: waits until all of `threads` wait for it at a boundary or have ended.
  // False where they have not within the time; whoever came still waits.
  bool Hold(const std::vector<uint32_t>& threads, uint64_t patience_ns);

 private:
  bool AllHeld(const std::vector<uint32_t>& threads) const;

  std::mutex mutex_;
  std::mutex waiting_mutex_;  // taken with `mutex_` held or not; never the other way round
  std::condition_variable arrived_;
  std::unordered_set<uint32_t> waiting_;
};

// Holds a StepLock for a scope at a step's boundary.
class AtBoundary {
 public:
  AtBoundary(StepLock* lock, uint32_t thread_id) : lock_(lock) { lock_->LockAtBoundary(thread_id); }
  ~AtBoundary() { lock_->unlock(); }
  AtBoundary(const AtBoundary&) = delete;
  AtBoundary& operator=(const AtBoundary&) = delete;

 private:
  StepLock* lock_;
};

// Whether a thread of this process has not ended.
bool ThreadLives(uint32_t thread_id);

}  // namespace spanlite
