// The environment variables the agent reads, once, when it is loaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ring_layout.h"

namespace spanlite {

struct Config {
  std::string directory = "/dev/shm/spanlite";  // SPANLITE_AGENT_DIR
  Level level = Level::kWindows;                // SPANLITE_AGENT_LEVEL: off ranges windows continuous
  uint64_t ring_bytes = 64ull << 20;            // SPANLITE_AGENT_RING_BYTES
  uint32_t budget_ppm = 10'000;                 // SPANLITE_AGENT_BUDGET_PCT (1 %)
  uint32_t window_steps = 0;                    // SPANLITE_AGENT_WINDOW_STEPS: 0: as many as pay
  uint64_t window_every_ns = 5'000'000'000;     // SPANLITE_AGENT_WINDOW_SECONDS: at least this apart
  uint64_t step_slo_ns = 0;                     // SPANLITE_AGENT_STEP_SLO_MS
  Detach detach = Detach::kWhenProven;          // SPANLITE_AGENT_DETACH: never proven held
  double detach_mib_a_day = 64;                 // SPANLITE_AGENT_DETACH_MIB_PER_DAY: 0: no limit
  uint64_t renew_kernels = 10'000'000;          // SPANLITE_AGENT_RENEW_KERNELS: then attached anew
  uint64_t hold_ns = 20'000'000;                // SPANLITE_AGENT_HOLD_MS: wait for other threads
  bool gate = true;                             // SPANLITE_AGENT_GATE: launch_gate.h
  bool shared_buffers = true;                   // SPANLITE_AGENT_SHARED_BUFFERS: by all threads
  uint64_t learn_ns = 30'000'000'000;           // SPANLITE_AGENT_LEARN_SECONDS: 0 to leave it out
  uint32_t learn_steps = 20;                    // SPANLITE_AGENT_LEARN_STEPS
  bool api_calls = false;                       // SPANLITE_AGENT_API_CALLS: 1 records every call
  // SPANLITE_AGENT_ACTIVITIES: beside kernels and launches; sync overhead external copies
  bool sync = true, overhead = false, external = false, copies = false;
  bool graph_trace = false;                     // SPANLITE_AGENT_GRAPH_TRACE: one record a graph
  bool hw_trace = false;                        // SPANLITE_AGENT_HW_TRACE: ask for HES
  uint64_t buffer_bytes = 1ull << 20;           // SPANLITE_AGENT_BUFFER_BYTES: one CUPTI buffer
  uint32_t max_buffers = 64;                    // SPANLITE_AGENT_MAX_BUFFERS
  // SPANLITE_AGENT_STEP_RANGES: prefixes of the NVTX ranges that are engine steps.
  std::vector<std::string> step_ranges = {"step:", "step ", "step/", "ProfilerStep#", "execute_model"};
  std::string cupti_library;                    // SPANLITE_AGENT_CUPTI: path, for unusual installs

  // Never fails: a value that cannot be read is reported once on stderr and its default kept.
  static Config FromEnvironment();
};

}  // namespace spanlite
