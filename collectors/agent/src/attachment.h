// CUPTI in this process: loaded, attached, its activities on or off, detached.
//
// What killed processes on real hardware, and is therefore never done here: `cuptiFinalize` with
// work in flight, or after an attach with work in flight, or after copies were recorded; turning
// graph trace on after a graph was instantiated; switching single calls' records on or off while
// other threads make calls.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "activity.h"
#include "config.h"
#include "cupti_api.h"
#include "launch_gate.h"
#include "open_windows.h"
#include "ring.h"
#include "string_table.h"

namespace spanlite {

// Waits until threads can launch nothing before the session's lock is free again; false where
// that takes too long.
using HoldThreads = std::function<bool(const std::vector<uint32_t>& threads)>;

// The session calls this under its lock, but for `Flush` and `CuptiTime`, which the agent's own
// thread calls at any time.
class Attachment {
 public:
  Attachment(const Config& config, Ring* ring, Strings* strings, OpenWindows* windows,
             HoldThreads hold)
      : config_(config), ring_(ring), strings_(strings), windows_(windows),
        hold_(std::move(hold)) {}

  // When the attach happens, which decides whether it can ever be undone.
  enum class Moment {
    kCudaInit,      // no context exists: nothing is in flight
    kStepBoundary,  // on the application's thread: wait for the device first
    kAnyTime,       // from our own thread: never to be undone
  };

  enum class Enabled {
    kYes,
    kLater,  // attached now it could never detach again, as a thread is not held that will be
    kNo,
  };

  // Attaches where needed and turns the activities on. On failure `error` says why. `wait`: not now
  // is an answer too.
  Enabled Enable(Moment moment, uint32_t thread_id, bool all_calls, bool wait, std::string* error);
  void Disable();
  bool attached() const { return attached_.load(std::memory_order_acquire); }
  // Whether threads that still live, other than this one, have been seen launching.
  bool OthersLaunch(uint32_t thread_id) {
    return activity_ != nullptr && !OtherLaunchers(thread_id).empty();
  }

  // At a window's end: takes what CUPTI holds, and adds its whole steps to the proof.
  void Judge(uint64_t whole_steps);
  // Whether detaching at the end of this step is worth a wait for the device: if so, all other
  // threads that launch are held from now on. `whole_steps`: of the window that ends.
  bool MayDetach(uint32_t thread_id, uint64_t whole_steps);
  // Never, where something but the user's wish forbids it from the start.
  Detach WantedDetach() const;
  // Threads that the last `Enable` or `MayDetach` kept waiting.
  size_t held_threads() const { return held_.size(); }
  // Waits until the current context is idle. False where that is not certain.
  bool Synchronize();
  // Whether CUPTI's room on the device may soon be used up, and a detach would free it: true once
  // for so many kernels.
  bool WantsRenewal();
  // Right after `Synchronize`, `Judge` and `Disable`: detaches if it is proved that nothing is in
  // flight and that all threads that launch are this one or held. Returns whether it did.
  bool DetachIfProven(uint32_t thread_id);

  void Flush(bool forced = false);
  // 0 where CUPTI is not attached.
  uint64_t CuptiTime();

 private:
  bool Load(std::string* error);
  Enabled Attach(Moment moment, uint32_t thread_id, bool wait, std::string* error);
  void BeforeFirstContext();
  void ShareBuffers();
  bool EnableKinds(bool only_launches, bool copies, std::string* error);
  void DisableKinds();
  void KeepLaunchesOnly();
  void KeepLaunchesApart(uint32_t thread_id);
  void SeeWhetherTaken(Moment moment, uint32_t thread_id);
  std::vector<uint32_t> OtherLaunchers(uint32_t thread_id);
  bool OnlyLauncher(uint32_t thread_id) { return OtherLaunchers(thread_id).empty(); }
  bool HoldOthers(uint32_t thread_id, bool met_before = false);
  bool AllHeld(uint32_t thread_id);
  bool IdleAtAttach();
  bool SameThreads() const;
  void SayWhyNot(const char* reason);
  bool CanDetach();

  const Config& config_;
  Ring* ring_;
  Strings* strings_;
  OpenWindows* windows_;
  HoldThreads hold_;
  CuptiApi cupti_;
  DriverApi driver_;
  LaunchGate gate_;
  std::unique_ptr<Activity> activity_;
  std::mutex calls_;  // no flush may run while CUPTI attaches, detaches or switches its activities
  std::atomic<bool> attached_{false};
  bool attached_idle_ = false;
  std::unordered_set<uint32_t> loose_at_attach_;  // threads that were not held then
  std::unordered_set<uint32_t> alive_at_detach_;
  std::vector<uint32_t> held_;
  uint32_t failed_holds_ = 0;  // in a row
  uint32_t skipped_holds_ = 0;  // how many more are not tried
  bool graph_trace_ = false;  // asked for in cuInit, even if refused: buffers are shared by then
  std::vector<CUpti_ActivityKind> enabled_;
  uint64_t records_before_ = 0;  // when the activities went on
  uint64_t renewed_at_ = 0;      // kernels then
  uint64_t proof_steps_ = 0;       // whole steps of windows that brought records, ever
  bool fruitful_ = false;          // whether the last window brought records
  bool waiting_ = false;           // a window has closed since the attach
  uint64_t judged_ns_ = 0;         // when the last one did
  bool shared_ = false;            // since the attach all threads write into one buffer
  bool said_taken_ = false;
  bool said_loose_ = false;
  bool said_no_gate_ = false;
  bool said_why_not_ = false;
  bool finalize_failed_ = false;
  bool copied_ever_ = false;  // copies have been recorded: a detach would end the process
  bool detached_ever_ = false;
};

}  // namespace spanlite
