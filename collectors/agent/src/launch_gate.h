// Keeps calls apart that can wait for each other for ever while CUPTI records (SPANLITE_AGENT_GATE).
//
// In `cuGraphLaunch` CUPTI calls the driver with a mutex of the stream's held, and waits for a lock
// that a thread in `cuStreamWaitEvent` holds while it waits for that mutex (docs/agent.md). Behind the
// gate one such call at a time is inside the driver.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "cupti_api.h"

namespace spanlite {

// There is one of these a process.
class LaunchGate {
 public:
  // Keeps those calls apart from now on, in windows and between them: CUPTI has work to do at the
  // first launch after either. False where another client is told of calls already, of whom CUPTI has
  // one. There is no way back but a detach: to end it in the midst of calls crashed.
  bool Subscribe(const CuptiApi& cupti);
  // CUPTI has been detached, and the subscription is gone with it.
  void Forget() { subscriber_ = nullptr; }

 private:
  static void CUPTIAPI OnCall(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                              const void* data);
  void Enter();
  void Leave();

  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::mutex mutex_;
  std::condition_variable left_;
  uint32_t inside_ = 0;  // the turn of the call that is inside; 0: none
  uint32_t turns_ = 0;
  bool said_ = false;
};

}  // namespace spanlite
