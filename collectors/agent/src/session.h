// When CUPTI records: windows of whole steps, opened and closed where it is safe.
//
// At rest no CUPTI call is made. A window opens at a step's begin, on the application's thread.
// It closes at a step's end: at once, with CUPTI detached, where that is proved safe
// (attachment.h); else a moment later from the agent's own thread, so that the application never
// waits and the last step's work, still running, is recorded to its end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "attachment.h"
#include "budget.h"
#include "config.h"
#include "detach_allowance.h"
#include "open_windows.h"
#include "ring.h"
#include "step_lock.h"
#include "steps.h"
#include "string_table.h"

namespace spanlite {

// Whether a window opens without a person's asking: by schedule, or as something happened.
inline bool ByItself(WindowReason reason) {
  return reason != WindowReason::kDemand && reason != WindowReason::kContinuous &&
         reason != WindowReason::kLearn;
}

class Session : public StepObserver {
 public:
  // `why_ranges_only`: where CUPTI must not be touched, the reason; else empty.
  Session(const Config& config, Ring* ring, Strings* strings, const std::string& why_ranges_only);

  // What the daemon finds in a ring, and may change from then on.
  static void SetDefaults(const Config& config, Header* header);
  // CUDA initialises, so that no context and no graph exists yet.
  void CudaBegins();
  void StepBegins(uint32_t thread_id) override;
  void StepEnds(uint32_t thread_id, uint32_t name, uint64_t start_ns, uint64_t end_ns) override;
  // Last words of the process: get back what CUPTI still holds, without detaching.
  void Shutdown();

 private:
  using Moment = Attachment::Moment;

  struct Plan {
    WindowReason reason;
    uint32_t steps;        // 0: no limit
    uint64_t duration_ns;  // 0: no limit
  };

  void Work();  // the agent's own thread
  void Tick(uint64_t now_ns);
  void TickLocked(uint64_t now_ns, bool by_clock, bool* soon);
  void WriteClock();
  Level WantedLevel() const;
  bool WantsWindow(uint64_t now_ns, Plan* plan);
  bool Allowed(const Plan& plan, uint32_t thread_id);
  void Open(const Plan& plan, Moment moment, uint32_t thread_id);
  void Start(const Plan& plan);
  bool Hold(const std::vector<uint32_t>& threads);
  // What a stretch of time cost, with that of the threads held meanwhile.
  uint64_t CostSince(uint64_t began_ns) const;
  // The window has what it wanted; closes now, or soon from our own thread.
  void Finish(uint32_t thread_id);
  void FinishSoon();
  // The budget takes in what the window cost.
  void Settle();
  void Close();
  void Report();
  void Rotate();
  bool Full(uint64_t now_ns) const;
  bool Unwanted() const;
  bool ToBeRenewed();
  bool DueByItself(uint64_t now_ns);
  bool IsOpen() const { return window_.window != 0; }
  bool CountStep(StepRecord* record);
  void End(uint32_t thread_id);
  void SwitchOff(const std::string& reason);
  void NoKernels(const std::string& reason);

  const Config& config_;
  Ring* ring_;
  OpenWindows windows_;
  Attachment attachment_;
  DriverApi driver_;                 // of the agent's own thread
  uint64_t cuda_since_ns_ = 0;       // steady; that thread's too. 0: CUDA has not been begun

  StepLock mutex_;  // guards all below; never held in a CUPTI callback
  Budget budget_;
  DetachAllowance allowance_;
  bool off_ = false;
  WindowRecord window_{};  // window 0: none is open
  Plan plan_{};
  uint32_t window_thread_ = 0;  // who opened it, at a step's begin; 0: nobody's step
  uint64_t opened_ns_ = 0;      // steady
  uint64_t fixed_ns_ = 0;       // what opening took
  uint64_t close_at_ns_ = 0;    // steady; 0: still wanted
  uint64_t flush_until_ns_ = 0;
  uint32_t last_request_ = 0;
  bool slo_broken_ = false;
  bool said_many_ = false;
  bool said_rare_ = false;
  uint64_t step_number_ = 0;
  uint64_t steps_at_last_close_ = 0;
  uint64_t last_duration_ns_ = 0;
  uint32_t last_window_ = 0;  // the last that closed, and when
  uint64_t last_close_ns_ = 0;
  uint32_t next_window_ = 1;

  std::mutex wake_mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  bool hurry_ = false;
  std::thread worker_;
};

}  // namespace spanlite
