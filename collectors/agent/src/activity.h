// CUPTI's activity buffers: a bounded pool, and their records copied into the ring.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "cupti_api.h"
#include "open_windows.h"
#include "ring.h"
#include "string_table.h"

namespace spanlite {

// CUPTI calls back without a user pointer, so there is one of these a process.
class Activity {
 public:
  Activity(const CuptiApi* cupti, Ring* ring, Strings* strings, OpenWindows* windows,
           uint64_t buffer_bytes, uint32_t max_buffers);

  // Registers the callbacks; also needed again after another client has taken them over.
  CUptiResult Register();
  // Whether records of calls that launch nothing go into the ring too.
  void KeepAllCalls(bool all) { all_calls_.store(all, std::memory_order_relaxed); }
  // Whether those of calls that wait do. Before the first window.
  void KeepWaits(bool waits) { waits_ = waits; }
  // The threads that have been seen launching work.
  std::vector<uint32_t> LaunchThreads();
  // From now on without those that have ended, which it gives; one whose records come later is back.
  std::vector<uint32_t> ForgetEnded();
  // The one context that all work so far ran in; 0: none yet, or more than one.
  uint32_t OnlyContext() const;
  // Records of work and of launches received, ever.
  uint64_t Records() const { return records_.load(std::memory_order_relaxed); }
  uint64_t Kernels() const { return kernels_.load(std::memory_order_relaxed); }

 private:
  static void CUPTIAPI BufferRequested(uint8_t** buffer, size_t* size, size_t* max_records);
  static void CUPTIAPI BufferCompleted(CUcontext context, uint32_t stream, uint8_t* buffer,
                                       size_t size, size_t valid_size);
  uint8_t* TakeBuffer();
  void GiveBuffer(uint8_t* buffer);
  uint32_t WindowOf(uint64_t start_ns) const;
  void SeeContext(uint32_t context);
  void Drain(CUcontext context, uint32_t stream, uint8_t* buffer, size_t valid_size);
  void Convert(const CUpti_Activity* record);
  void Kernel(const CUpti_Activity* record);
  template <typename In>
  MemoryRecord Memory(const In& in, uint32_t kind, uint32_t peer_device);
  void Memcpy(const CUpti_Activity* record);
  void MemcpyPeer(const CUpti_Activity* record);
  void Memset(const CUpti_Activity* record);
  void Sync(const CUpti_Activity* record);
  void Api(const CUpti_Activity* record, uint32_t domain);
  void Graph(const CUpti_Activity* record);
  void Overhead(const CUpti_Activity* record);
  void External(const CUpti_Activity* record);

  const CuptiApi* cupti_;
  Ring* ring_;
  Strings* strings_;
  OpenWindows* windows_;
  const uint64_t buffer_bytes_;
  const uint32_t max_buffers_;
  std::atomic<uint64_t> records_{0}, kernels_{0};
  std::atomic<uint32_t> context_{0};
  std::atomic<bool> all_calls_{false};
  bool waits_ = false;

  std::mutex pool_mutex_;
  std::vector<uint8_t*> free_;
  uint32_t allocated_ = 0;
  // CUPTI has been refused a buffer since it last said how many records it dropped.
  std::atomic<bool> refused_{false};

  std::mutex threads_mutex_;
  std::unordered_set<uint32_t> launch_threads_;
  uint64_t launch_threads_ever_ = 0;
  std::atomic<uint32_t> last_launch_thread_{0};
};

}  // namespace spanlite
