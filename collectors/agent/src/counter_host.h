// What CUPTI's PM sampling and its range profiler share: the host object that knows a chip's metrics,
// the configuration made of them, and their values from the counters' raw image.
#pragma once

#include <cstdint>
#include <dlfcn.h>
#include <string>
#include <vector>

#include <cuda.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_target.h>

// Parameters whose size says which version of them we know.
#define SPANLITE_PARAMS(type, name) \
  type name{};                      \
  name.structSize = type##_STRUCT_SIZE

namespace spanlite {

template <typename Function>
bool Bind(void* library, const char* name, Function* target) {
  *target = reinterpret_cast<Function>(dlsym(library, name));
  return *target != nullptr;
}

class CounterHost {
 public:
  ~CounterHost() { Close(); }

  // Binds what is needed; false where this CUPTI lacks some of it.
  bool Load(void* cupti);
  // False with `failed` (what) and `code` (CUPTI's answer, 0: none) where the answer is an error.
  bool Good(CUptiResult result, const char* what);
  bool Initialize();
  bool FindChip(uint32_t device);
  // A host object of that type, in the place of the one before. `availability` is as CUPTI gives it.
  bool Open(CUpti_ProfilerType type);
  bool Add(const std::vector<const char*>& names, const char* otherwise);
  // The image of all metrics added, and how many passes it takes.
  bool Configure(std::vector<uint8_t>* config, size_t* passes);
  CUptiResult Evaluate(const std::vector<const char*>& metrics, std::vector<uint8_t>& data,
                       size_t index, double* values);
  void Close();

  std::vector<uint8_t> availability;
  std::string failed;
  int code = 0;

 private:
  decltype(&cuptiProfilerInitialize) initialize_ = nullptr;
  decltype(&cuptiDeviceGetChipName) chip_name_ = nullptr;
  decltype(&cuptiProfilerHostInitialize) open_ = nullptr;
  decltype(&cuptiProfilerHostDeinitialize) close_ = nullptr;
  decltype(&cuptiProfilerHostConfigAddMetrics) add_ = nullptr;
  decltype(&cuptiProfilerHostGetConfigImageSize) config_size_ = nullptr;
  decltype(&cuptiProfilerHostGetConfigImage) config_image_ = nullptr;
  decltype(&cuptiProfilerHostGetNumOfPasses) passes_ = nullptr;
  decltype(&cuptiProfilerHostEvaluateToGpuValues) evaluate_ = nullptr;
  const char* chip_ = nullptr;
  CUpti_Profiler_Host_Object* host_ = nullptr;
};

}  // namespace spanlite
