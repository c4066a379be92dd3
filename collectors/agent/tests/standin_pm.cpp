// The stand-in CUPTI's PM sampling: one sampler a device, a sample each interval since the last
// decode, whose values are 10, 20, 30 ... per cent. As the real one it refuses a second sampler,
// unknown metrics, and calls out of order.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <cupti_pmsampling.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_target.h>

#include "clock.h"

struct CUpti_Profiler_Host_Object {
  std::vector<std::string> metrics;
};

struct CUpti_PmSampling_Object {
  uint64_t interval_ns = 0, next_ns = 0;
  uint32_t max_samples = 0;
  bool running = false;
};

namespace {

constexpr uint8_t kImage = 0x5A;

struct Image {  // what the counter data holds
  uint64_t first_ns, interval_ns, count;
};

CUpti_Profiler_Host_Object g_host;
CUpti_PmSampling_Object g_sampler;
bool g_enabled = false;

}  // namespace

extern "C" {

CUptiResult cuptiProfilerInitialize(CUpti_Profiler_Initialize_Params*) { return CUPTI_SUCCESS; }

CUptiResult cuptiDeviceGetChipName(CUpti_Device_GetChipName_Params* params) {
  if (params->deviceIndex != 0) return CUPTI_ERROR_INVALID_DEVICE;
  params->pChipName = "GH100";
  return CUPTI_SUCCESS;
}

CUptiResult cuptiPmSamplingGetCounterAvailability(
    CUpti_PmSampling_GetCounterAvailability_Params* params) {
  params->counterAvailabilityImageSize = 16;
  if (params->pCounterAvailabilityImage != nullptr)
    std::memset(params->pCounterAvailabilityImage, kImage, 16);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerHostInitialize(CUpti_Profiler_Host_Initialize_Params* params) {
  if (params->profilerType != CUPTI_PROFILER_TYPE_PM_SAMPLING ||
      params->pCounterAvailabilityImage[0] != kImage)
    return CUPTI_ERROR_INVALID_PARAMETER;
  g_host.metrics.clear();
  params->pHostObject = &g_host;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerHostDeinitialize(CUpti_Profiler_Host_Deinitialize_Params*) {
  return CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerHostConfigAddMetrics(CUpti_Profiler_Host_ConfigAddMetrics_Params* params) {
  for (size_t i = 0; i < params->numMetrics; ++i) {
    if (std::strstr(params->ppMetricNames[i], "__") == nullptr) return CUPTI_ERROR_INVALID_METRIC_NAME;
    g_host.metrics.push_back(params->ppMetricNames[i]);
  }
  return CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerHostGetConfigImageSize(
    CUpti_Profiler_Host_GetConfigImageSize_Params* params) {
  params->configImageSize = 8 * g_host.metrics.size();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerHostGetConfigImage(CUpti_Profiler_Host_GetConfigImage_Params* params) {
  std::memset(params->pConfigImage, kImage, params->configImageSize);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerHostGetNumOfPasses(CUpti_Profiler_Host_GetNumOfPasses_Params* params) {
  params->numOfPasses = 1 + (params->configImageSize - 8) / 64;  // eight metrics a pass
  return CUPTI_SUCCESS;
}

CUptiResult cuptiPmSamplingEnable(CUpti_PmSampling_Enable_Params* params) {
  if (g_enabled) return CUPTI_ERROR_HARDWARE_BUSY;
  g_enabled = true;
  g_sampler = {};
  params->pPmSamplingObject = &g_sampler;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiPmSamplingDisable(CUpti_PmSampling_Disable_Params*) {
  if (!g_enabled || g_sampler.running) return CUPTI_ERROR_INVALID_OPERATION;
  g_enabled = false;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiPmSamplingSetConfig(CUpti_PmSampling_SetConfig_Params* params) {
  if (params->pConfig[0] != kImage || params->samplingInterval == 0)
    return CUPTI_ERROR_INVALID_PARAMETER;
  params->pPmSamplingObject->interval_ns = params->samplingInterval;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiPmSamplingGetCounterDataSize(CUpti_PmSampling_GetCounterDataSize_Params* params) {
  params->pPmSamplingObject->max_samples = params->maxSamples;
  params->counterDataSize = sizeof(Image);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiPmSamplingCounterDataImageInitialize(
    CUpti_PmSampling_CounterDataImage_Initialize_Params* params) {
  std::memset(params->pCounterData, 0, params->counterDataSize);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiPmSamplingStart(CUpti_PmSampling_Start_Params* params) {
  if (params->pPmSamplingObject->max_samples == 0) return CUPTI_ERROR_INVALID_OPERATION;
  params->pPmSamplingObject->running = true;
  params->pPmSamplingObject->next_ns = spanlite::NowNs();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiPmSamplingStop(CUpti_PmSampling_Stop_Params* params) {
  params->pPmSamplingObject->running = false;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiPmSamplingDecodeData(CUpti_PmSampling_DecodeData_Params* params) {
  CUpti_PmSampling_Object& sampler = *params->pPmSamplingObject;
  Image image{};
  std::memcpy(&image, params->pCounterDataImage, sizeof image);
  if (!sampler.running || image.count != 0) return CUPTI_ERROR_INVALID_OPERATION;
  const uint64_t waiting = (spanlite::NowNs() - sampler.next_ns) / sampler.interval_ns;
  image = {sampler.next_ns, sampler.interval_ns, std::min<uint64_t>(waiting, sampler.max_samples)};
  params->overflow = waiting > sampler.max_samples;
  sampler.next_ns += waiting * sampler.interval_ns;
  std::memcpy(params->pCounterDataImage, &image, sizeof image);
  return CUPTI_SUCCESS;
}

CUptiResult cuptiPmSamplingGetCounterDataInfo(CUpti_PmSampling_GetCounterDataInfo_Params* params) {
  Image image{};
  std::memcpy(&image, params->pCounterDataImage, sizeof image);
  params->numTotalSamples = params->numPopulatedSamples = params->numCompletedSamples = image.count;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiPmSamplingCounterDataGetSampleInfo(
    CUpti_PmSampling_CounterData_GetSampleInfo_Params* params) {
  Image image{};
  std::memcpy(&image, params->pCounterDataImage, sizeof image);
  if (params->sampleIndex >= image.count) return CUPTI_ERROR_INVALID_PARAMETER;
  params->startTimestamp = image.first_ns + params->sampleIndex * image.interval_ns;
  params->endTimestamp = params->startTimestamp + image.interval_ns;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiProfilerHostEvaluateToGpuValues(
    CUpti_Profiler_Host_EvaluateToGpuValues_Params* params) {
  for (size_t i = 0; i < params->numMetrics; ++i)
    params->pMetricValues[i] = 10.0 * static_cast<double>(i + 1);
  return CUPTI_SUCCESS;
}

}  // extern "C"
