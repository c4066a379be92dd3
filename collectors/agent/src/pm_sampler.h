// Counters of a whole device at a fixed rate (CUPTI PM sampling), for the daemon, through ctypes.
// One sampler a device on the host: a second one is refused. Not thread-safe, but for several
// devices from several threads.
#pragma once

#include <cstdint>

#define SPANLITE_EXPORT extern "C" __attribute__((visibility("default")))

// Begins to sample `count` metrics each `interval_ns`. `cupti_path`: the libcupti to use, or empty.
// Null with a text in `error` (of `error_bytes`) where that cannot be.
SPANLITE_EXPORT void* spanlite_pm_open(const char* cupti_path, uint32_t device,
                                       const char* const* metrics, uint32_t count,
                                       uint64_t interval_ns, uint32_t max_samples, char* error,
                                       uint32_t error_bytes);
// Takes out what has been sampled: times[2 * i] and [2 * i + 1] are start and end in ns, values
// [count * i ...] the metrics. Room for `max_samples` of each. Returns how many, or a negative
// CUPTI error; `overflow` is 1 where the hardware had no room for all.
SPANLITE_EXPORT int64_t spanlite_pm_read(void* sampler, uint64_t* times, double* values,
                                         uint32_t* overflow);
SPANLITE_EXPORT void spanlite_pm_close(void* sampler);
