// A stand-in for the driver and for CUPTI's range profiler: launches that call back, and a profiler
// that counts one kernel between Start and Stop. As the real one it refuses calls out of order,
// a metric and then all after it, and a second profiler (STANDIN_BUSY=1). A kernel's counters are its place among
// the metrics, times the launches so far.
#include "standin_ranges.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <cupti.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>

struct CUpti_Profiler_Host_Object {
  std::vector<std::string> metrics;
  bool spoilt = false;  // by a metric that it refused
};
struct CUpti_RangeProfiler_Object {
  enum { kDisabled, kEnabled, kConfigured, kStarted, kStopped, kDecoded } state = kDisabled;
  int kernels = 0;
};

namespace {

CUpti_CallbackFunc g_called = nullptr;
void* g_user = nullptr;
bool g_enabled[1024] = {};
CUpti_Profiler_Host_Object g_host;
CUpti_RangeProfiler_Object g_ranges;
int g_launches = 0;
const CUcontext kContext = reinterpret_cast<CUcontext>(0x7);

CUptiResult Move(CUpti_RangeProfiler_Object* object, int from, int to) {
  if (object != &g_ranges || object->state != from) return CUPTI_ERROR_INVALID_OPERATION;
  object->state = static_cast<decltype(object->state)>(to);
  return CUPTI_SUCCESS;
}

}  // namespace

void StandinLaunch(const char* name, unsigned grid, unsigned block) {
  cuLaunchKernel_params params{};
  params.f = reinterpret_cast<CUfunction>(0x9);
  params.gridDimX = grid;
  params.blockDimX = block;
  params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
  params.sharedMemBytes = 512;
  CUpti_CallbackData data{};
  data.functionParams = &params;
  data.symbolName = name;
  data.context = kContext;
  const CUpti_CallbackId id = CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel;
  data.callbackSite = CUPTI_API_ENTER;
  if (g_called != nullptr && g_enabled[id]) g_called(g_user, CUPTI_CB_DOMAIN_DRIVER_API, id, &data);
  ++g_launches;
  if (g_ranges.state == CUpti_RangeProfiler_Object::kStarted) ++g_ranges.kernels;
  data.callbackSite = CUPTI_API_EXIT;
  if (g_called != nullptr && g_enabled[id]) g_called(g_user, CUPTI_CB_DOMAIN_DRIVER_API, id, &data);
}

extern "C" {

CUresult cuCtxGetDevice(CUdevice* device) { return *device = 0, CUDA_SUCCESS; }

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  *value = which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT ? 132
           : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction) {
  *value = which == CU_FUNC_ATTRIBUTE_NUM_REGS ? 40 : 2048;
  return CUDA_SUCCESS;
}

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle*, CUpti_CallbackFunc called, void* user) {
  g_called = called;
  g_user = user;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle, CUpti_CallbackDomain,
                                CUpti_CallbackId id) {
  g_enabled[id] = enable != 0;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerInitialize(CUpti_Profiler_Initialize_Params*) { return CUPTI_SUCCESS; }

CUptiResult cuptiDeviceGetChipName(CUpti_Device_GetChipName_Params* params) {
  return params->pChipName = "GH100", CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerGetCounterAvailability(
    CUpti_Profiler_GetCounterAvailability_Params* params) {
  if (std::getenv("STANDIN_BUSY") != nullptr) return CUPTI_ERROR_HARDWARE_BUSY;
  params->counterAvailabilityImageSize = 8;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerHostInitialize(CUpti_Profiler_Host_Initialize_Params* params) {
  if (params->profilerType != CUPTI_PROFILER_TYPE_RANGE_PROFILER)
    return CUPTI_ERROR_INVALID_PARAMETER;
  g_host = {};
  return params->pHostObject = &g_host, CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerHostDeinitialize(CUpti_Profiler_Host_Deinitialize_Params*) {
  return CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerHostConfigAddMetrics(CUpti_Profiler_Host_ConfigAddMetrics_Params* params) {
  for (size_t i = 0; i < params->numMetrics; ++i) {
    g_host.spoilt |= std::strstr(params->ppMetricNames[i], "global_atom") != nullptr;
    if (g_host.spoilt) return CUPTI_ERROR_INVALID_METRIC_NAME;
    g_host.metrics.push_back(params->ppMetricNames[i]);
  }
  return CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerHostGetConfigImageSize(
    CUpti_Profiler_Host_GetConfigImageSize_Params* params) {
  return params->configImageSize = 8, CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerHostGetConfigImage(CUpti_Profiler_Host_GetConfigImage_Params*) {
  return CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerHostGetNumOfPasses(CUpti_Profiler_Host_GetNumOfPasses_Params* params) {
  return params->numOfPasses = 3, CUPTI_SUCCESS;
}

CUptiResult cuptiRangeProfilerEnable(CUpti_RangeProfiler_Enable_Params* params) {
  if (params->ctx != kContext) return CUPTI_ERROR_INVALID_CONTEXT;
  g_ranges.kernels = 0;
  params->pRangeProfilerObject = &g_ranges;
  return Move(&g_ranges, CUpti_RangeProfiler_Object::kDisabled,
              CUpti_RangeProfiler_Object::kEnabled);
}

CUptiResult cuptiRangeProfilerGetCounterDataSize(
    CUpti_RangeProfiler_GetCounterDataSize_Params* params) {
  return params->counterDataSize = 16, CUPTI_SUCCESS;
}

CUptiResult cuptiRangeProfilerCounterDataImageInitialize(
    CUpti_RangeProfiler_CounterDataImage_Initialize_Params*) {
  return CUPTI_SUCCESS;
}

CUptiResult cuptiRangeProfilerSetConfig(CUpti_RangeProfiler_SetConfig_Params* params) {
  if (params->range != CUPTI_AutoRange || params->replayMode != CUPTI_KernelReplay)
    return CUPTI_ERROR_INVALID_PARAMETER;
  return Move(params->pRangeProfilerObject, CUpti_RangeProfiler_Object::kEnabled,
              CUpti_RangeProfiler_Object::kConfigured);
}

CUptiResult cuptiRangeProfilerStart(CUpti_RangeProfiler_Start_Params* params) {
  return Move(params->pRangeProfilerObject, CUpti_RangeProfiler_Object::kConfigured,
              CUpti_RangeProfiler_Object::kStarted);
}

CUptiResult cuptiRangeProfilerStop(CUpti_RangeProfiler_Stop_Params* params) {
  return Move(params->pRangeProfilerObject, CUpti_RangeProfiler_Object::kStarted,
              CUpti_RangeProfiler_Object::kStopped);
}

CUptiResult cuptiRangeProfilerDecodeData(CUpti_RangeProfiler_DecodeData_Params* params) {
  return Move(params->pRangeProfilerObject, CUpti_RangeProfiler_Object::kStopped,
              CUpti_RangeProfiler_Object::kDecoded);
}

CUptiResult cuptiRangeProfilerGetCounterDataInfo(
    CUpti_RangeProfiler_GetCounterDataInfo_Params* params) {
  return params->numTotalRanges = g_ranges.kernels, CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerHostEvaluateToGpuValues(
    CUpti_Profiler_Host_EvaluateToGpuValues_Params* params) {
  if (g_ranges.state != CUpti_RangeProfiler_Object::kDecoded || g_ranges.kernels != 1)
    return CUPTI_ERROR_INVALID_OPERATION;
  for (size_t i = 0; i < params->numMetrics; ++i)
    params->pMetricValues[i] = static_cast<double>(i + 1) * g_launches;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiRangeProfilerDisable(CUpti_RangeProfiler_Disable_Params*) {
  g_ranges.state = CUpti_RangeProfiler_Object::kDisabled;
  return CUPTI_SUCCESS;
}

}  // extern "C"
