// When CUPTI records: windows of whole steps, opened and closed where it is safe.
//
// At rest no CUPTI call is made. The first window attaches CUPTI; after a window it stays
// attached with its activities off. It detaches only on the application's own thread, at a
// step boundary, after the device is idle, where one thread alone has ever launched work:
// `cuptiFinalize` with work in flight kills the process.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "activity.h"
#include "budget.h"
#include "config.h"
#include "cupti_api.h"
#include "ring.h"
#include "steps.h"
#include "string_table.h"

namespace spanlite {

class Session : public StepObserver {
 public:
  Session(const Config& config, Ring* ring, Strings* strings);
  ~Session() override;

  void StepBegins(uint32_t thread_id) override;
  void StepEnds(uint32_t thread_id, uint32_t name, uint64_t start_ns, uint64_t end_ns) override;

  // Last words of the process: get back what CUPTI still holds, without finalising.
  void Shutdown();
  // The parent's thread and CUPTI state do not exist in a forked child.
  void AbandonAfterFork();

 private:
  enum class Edge { kStep, kTimer };

  void Work();  // the agent's own thread
  void Tick(uint64_t now_ns);
  void WriteClock();
  Level WantedLevel() const;
  bool WantsWindow(uint64_t now_ns, WindowReason* reason, uint32_t* steps);
  void Open(WindowReason reason, uint32_t steps, Edge edge);
  void Close(Edge edge);
  bool Attach();
  bool EnableActivities();
  void DisableActivities();
  void FilterApiCalls();
  void Synchronize();
  void DetachIfProven();
  void SwitchOff(const std::string& reason);

  const Config config_;
  Ring* ring_;
  Strings* strings_;
  CuptiApi cupti_;
  DriverApi driver_;
  std::unique_ptr<Activity> activity_;

  std::mutex mutex_;  // windows open and close under it; never held in a CUPTI callback
  Budget budget_;
  bool off_ = false;
  bool loaded_ = false;
  bool attached_ = false;
  std::vector<CUpti_ActivityKind> enabled_;
  WindowRecord window_{};
  uint64_t window_fixed_ns_ = 0;
  uint32_t window_target_steps_ = 0;
  uint32_t window_thread_ = 0;
  uint32_t last_request_ = 0;
  bool slo_broken_ = false;
  uint64_t step_number_ = 0;
  uint64_t steps_at_last_close_ = 0;
  uint64_t last_step_ns_ = 0;
  std::atomic<uint32_t> open_window_{0};  // number of the open window, 0: none
  uint32_t next_window_ = 1;

  std::mutex wake_mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread worker_;
};

}  // namespace spanlite
