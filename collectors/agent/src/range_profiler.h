// Counters of single kernels by CUPTI's range profiler: a launch is replayed until each counter has
// been read, so the program around it runs much slower. One context at a time.
#pragma once

#include <cstdint>
#include <vector>

#include <cuda.h>
#include <cupti_range_profiler.h>

#include "counter_host.h"

namespace spanlite {

struct RangeApi {
  decltype(&cuptiProfilerGetCounterAvailability) Availability = nullptr;
  decltype(&cuptiRangeProfilerEnable) Enable = nullptr;
  decltype(&cuptiRangeProfilerDisable) Disable = nullptr;
  decltype(&cuptiRangeProfilerSetConfig) SetConfig = nullptr;
  decltype(&cuptiRangeProfilerStart) Start = nullptr;
  decltype(&cuptiRangeProfilerStop) Stop = nullptr;
  decltype(&cuptiRangeProfilerDecodeData) Decode = nullptr;
  decltype(&cuptiRangeProfilerGetCounterDataSize) DataSize = nullptr;
  decltype(&cuptiRangeProfilerCounterDataImageInitialize) DataInitialize = nullptr;
  decltype(&cuptiRangeProfilerGetCounterDataInfo) DataInfo = nullptr;

  bool Load(void* cupti);
};

class RangeProfiler {
 public:
  // Metrics that the chip does not have are left out; `metrics` has those that are counted.
  // False, with `failed` and `code` (CUPTI's answer; 0: none), where nothing can be.
  bool Open(void* cupti, CUcontext context, uint32_t device, std::vector<const char*> wanted);
  // Around one launch on the context's thread. End returns false where the counts did not come.
  bool Begin();
  bool End(std::vector<double>* values);

  std::vector<const char*> metrics;
  size_t passes = 0;
  const char* failed() const { return host_.failed.c_str(); }
  int code() const { return host_.code; }

 private:
  bool OpenHost(uint32_t device);
  bool NewHost();
  bool Add(const std::vector<const char*>& names);
  bool Configure();
  bool Enable();
  bool Evaluate(std::vector<double>* values);

  CounterHost host_;
  RangeApi api_;
  CUcontext context_ = nullptr;
  std::vector<uint8_t> config_, data_;
  CUpti_RangeProfiler_Object* object_ = nullptr;
};

}  // namespace spanlite
