// CUPTI's activity buffers: a bounded pool, and their records copied into the ring.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "cupti_api.h"
#include "ring.h"
#include "string_table.h"

namespace spanlite {

// CUPTI calls back without a user pointer, so there is one of these a process.
class Activity {
 public:
  Activity(const CuptiApi* cupti, Ring* ring, Strings* strings, uint64_t buffer_bytes,
           uint32_t max_buffers);

  // Registers the callbacks; also needed again after another client has taken them over.
  CUptiResult Register();
  // Written into each record from now on; 0 outside windows.
  void SetWindow(uint32_t window) { window_.store(window, std::memory_order_relaxed); }
  // Distinct threads seen launching since the start.
  size_t LaunchThreads();

 private:
  static void CUPTIAPI BufferRequested(uint8_t** buffer, size_t* size, size_t* max_records);
  static void CUPTIAPI BufferCompleted(CUcontext context, uint32_t stream, uint8_t* buffer,
                                       size_t size, size_t valid_size);
  uint8_t* TakeBuffer();
  void GiveBuffer(uint8_t* buffer);
  void Drain(CUcontext context, uint32_t stream, uint8_t* buffer, size_t valid_size);
  void Convert(const CUpti_Activity* record);
  void Kernel(const CUpti_Activity* record);
  void Memcpy(const CUpti_Activity* record);
  void MemcpyPeer(const CUpti_Activity* record);
  void Memset(const CUpti_Activity* record);
  void Sync(const CUpti_Activity* record);
  void Api(const CUpti_Activity* record, uint32_t domain);
  void Graph(const CUpti_Activity* record);
  void Overhead(const CUpti_Activity* record);

  const CuptiApi* cupti_;
  Ring* ring_;
  Strings* strings_;
  const uint64_t buffer_bytes_;
  const uint32_t max_buffers_;
  std::atomic<uint32_t> window_{0};

  std::mutex pool_mutex_;
  std::vector<uint8_t*> free_;
  uint32_t allocated_ = 0;

  std::mutex threads_mutex_;
  std::unordered_set<uint32_t> launch_threads_;
  std::atomic<uint32_t> last_launch_thread_{0};
};

// Bits of RecordHead::flags: what is odd about a record's times.
constexpr uint16_t kZeroTimestamp = 1;
constexpr uint16_t kInvertedTimes = 2;

}  // namespace spanlite
