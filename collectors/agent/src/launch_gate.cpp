#include "launch_gate.h"

#include <chrono>
#include <cstdio>

namespace spanlite {
namespace {

// The first launch of a graph in a window takes many milliseconds, and is the one that must be alone:
// with a patience of 1 ms there were more hangs than without a gate. But a launch that waits for room
// in the device's queue may wait for what the next call would launch, so there is an end.
constexpr auto kPatience = std::chrono::seconds(1);

constexpr CUpti_CallbackId kCalls[] = {
    CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch,
    CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent,
    CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent_ptsz,
};

thread_local uint32_t t_turn = 0;  // of this thread's call, while it is inside

}  // namespace

bool LaunchGate::Subscribe(const CuptiApi& cupti) {
  if (subscriber_ != nullptr) return true;
  if (cupti.Subscribe == nullptr || cupti.EnableCallback == nullptr) return false;
  CUpti_SubscriberHandle subscriber = nullptr;
  const auto callback = reinterpret_cast<CUpti_CallbackFunc>(&OnCall);
  if (cupti.Subscribe(&subscriber, callback, this) != CUPTI_SUCCESS) return false;
  for (CUpti_CallbackId id : kCalls)
    cupti.EnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
  subscriber_ = subscriber;
  return true;
}

void LaunchGate::OnCall(void* self, CUpti_CallbackDomain, CUpti_CallbackId, const void* data) {
  auto* gate = static_cast<LaunchGate*>(self);
  const auto site = static_cast<const CUpti_CallbackData*>(data)->callbackSite;
  if (site == CUPTI_API_EXIT) gate->Leave();
  else gate->Enter();
}

void LaunchGate::Enter() {
  if (t_turn != 0) return;  // a call within a call
  std::unique_lock<std::mutex> lock(mutex_);
  const bool alone = left_.wait_for(lock, kPatience, [this] { return inside_ == 0; });
  if (++turns_ == 0) ++turns_;
  t_turn = inside_ = turns_;
  if (alone || said_) return;
  said_ = true;
  std::fprintf(stderr, "spanlite agent: a graph launch or a wait for an event took over a second, so "
                       "the next one went in beside it.\n");
}

void LaunchGate::Leave() {
  if (t_turn == 0) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (inside_ == t_turn) inside_ = 0;
  }
  t_turn = 0;
  left_.notify_one();
}

}  // namespace spanlite
