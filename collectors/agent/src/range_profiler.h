// Counters of single kernels by CUPTI's range profiler: a launch is replayed until each counter has
// been read, so the program around it runs much slower. One context at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cuda.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>

namespace spanlite {

struct RangeApi {
  decltype(&cuptiProfilerInitialize) Initialize = nullptr;
  decltype(&cuptiDeviceGetChipName) ChipName = nullptr;
  decltype(&cuptiProfilerGetCounterAvailability) Availability = nullptr;
  decltype(&cuptiProfilerHostInitialize) HostInitialize = nullptr;
  decltype(&cuptiProfilerHostDeinitialize) HostDeinitialize = nullptr;
  decltype(&cuptiProfilerHostConfigAddMetrics) AddMetrics = nullptr;
  decltype(&cuptiProfilerHostGetConfigImageSize) ConfigSize = nullptr;
  decltype(&cuptiProfilerHostGetConfigImage) ConfigImage = nullptr;
  decltype(&cuptiProfilerHostGetNumOfPasses) Passes = nullptr;
  decltype(&cuptiProfilerHostEvaluateToGpuValues) Evaluate = nullptr;
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
  void Close();

  std::vector<const char*> metrics;
  size_t passes = 0;
  std::string failed;
  int code = 0;

 private:
  bool Good(CUptiResult result, const char* what);
  bool OpenHost(uint32_t device);
  bool NewHost();
  bool Add(const std::vector<const char*>& names);
  bool Configure();
  bool Enable();
  bool Evaluate(std::vector<double>* values);

  RangeApi api_;
  CUcontext context_ = nullptr;
  const char* chip_ = nullptr;
  std::vector<uint8_t> availability_, config_, data_;
  CUpti_Profiler_Host_Object* host_ = nullptr;
  CUpti_RangeProfiler_Object* object_ = nullptr;
};

}  // namespace spanlite
