// Our own NVTX handler: ranges without CUPTI, and without a GPU.
#pragma once

#include "config.h"
#include "ring.h"
#include "steps.h"
#include "string_table.h"

namespace spanlite {

// Where the NVTX callbacks send what they see. Set once a process, before any callback runs;
// null fields switch the handler off.
struct NvtxSink {
  Ring* ring = nullptr;
  Strings* strings = nullptr;
  StepObserver* steps = nullptr;
  const Config* config = nullptr;
};

void SetNvtxSink(const NvtxSink& sink);

// Starts the agent where this process has none yet: at load, and in a forked child at its first
// range (agent.cpp). Cheap where it runs already.
void StartAgent();

// Stops the agent's own thread, and takes what CUPTI still holds. Any number of times.
void StopAgent();

// After fork the child's ring is another one; ranges that are open belong to the parent.
void ForgetOpenRanges();

}  // namespace spanlite

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    const void* (*get_export_table)(uint32_t));
