#include "counter_host.h"

namespace spanlite {

bool CounterHost::Load(void* cupti) {
  return Bind(cupti, "cuptiProfilerInitialize", &initialize_) &&
         Bind(cupti, "cuptiDeviceGetChipName", &chip_name_) &&
         Bind(cupti, "cuptiProfilerHostInitialize", &open_) &&
         Bind(cupti, "cuptiProfilerHostDeinitialize", &close_) &&
         Bind(cupti, "cuptiProfilerHostConfigAddMetrics", &add_) &&
         Bind(cupti, "cuptiProfilerHostGetConfigImageSize", &config_size_) &&
         Bind(cupti, "cuptiProfilerHostGetConfigImage", &config_image_) &&
         Bind(cupti, "cuptiProfilerHostGetNumOfPasses", &passes_) &&
         Bind(cupti, "cuptiProfilerHostEvaluateToGpuValues", &evaluate_);
}

bool CounterHost::Good(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return true;
  failed = what;
  if (result == CUPTI_ERROR_HARDWARE_BUSY)
    failed = "another profiler or sampler (ncu, spanlite counters, collect --pm-sampling) has the counters";
  if (result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)
    failed = "no right to the counters: needs CAP_SYS_ADMIN, or the driver's option "
             "NVreg_RestrictProfilingToAdminUsers=0";
  code = result;
  return false;
}

bool CounterHost::Initialize() {
  SPANLITE_PARAMS(CUpti_Profiler_Initialize_Params, begin);
  return Good(initialize_(&begin), "cuptiProfilerInitialize");
}

bool CounterHost::FindChip(uint32_t device) {
  SPANLITE_PARAMS(CUpti_Device_GetChipName_Params, chip);
  chip.deviceIndex = device;
  if (!Good(chip_name_(&chip), "cuptiDeviceGetChipName")) return false;
  chip_ = chip.pChipName;
  return true;
}

bool CounterHost::Open(CUpti_ProfilerType type) {
  Close();
  SPANLITE_PARAMS(CUpti_Profiler_Host_Initialize_Params, host);
  host.profilerType = type;
  host.pChipName = chip_;
  host.pCounterAvailabilityImage = availability.data();
  if (!Good(open_(&host), "cuptiProfilerHostInitialize")) return false;
  host_ = host.pHostObject;
  return true;
}

bool CounterHost::Add(const std::vector<const char*>& names, const char* otherwise) {
  SPANLITE_PARAMS(CUpti_Profiler_Host_ConfigAddMetrics_Params, add);
  add.pHostObject = host_;
  add.ppMetricNames = const_cast<const char**>(names.data());
  add.numMetrics = names.size();
  return Good(add_(&add), otherwise);
}

bool CounterHost::Configure(std::vector<uint8_t>* config, size_t* passes) {
  SPANLITE_PARAMS(CUpti_Profiler_Host_GetConfigImageSize_Params, size);
  size.pHostObject = host_;
  if (!Good(config_size_(&size), "size of the configuration")) return false;
  config->resize(size.configImageSize);
  SPANLITE_PARAMS(CUpti_Profiler_Host_GetConfigImage_Params, image);
  image.pHostObject = host_;
  image.configImageSize = config->size();
  image.pConfigImage = config->data();
  if (!Good(config_image_(&image), "configuration")) return false;
  SPANLITE_PARAMS(CUpti_Profiler_Host_GetNumOfPasses_Params, count);
  count.configImageSize = config->size();
  count.pConfigImage = config->data();
  if (!Good(passes_(&count), "number of passes")) return false;
  *passes = count.numOfPasses;
  return true;
}

CUptiResult CounterHost::Evaluate(const std::vector<const char*>& metrics,
                                  std::vector<uint8_t>& data, size_t index, double* values) {
  SPANLITE_PARAMS(CUpti_Profiler_Host_EvaluateToGpuValues_Params, what);
  what.pHostObject = host_;
  what.pCounterDataImage = data.data();
  what.counterDataImageSize = data.size();
  what.rangeIndex = index;
  what.ppMetricNames = const_cast<const char**>(metrics.data());
  what.numMetrics = metrics.size();
  what.pMetricValues = values;
  return evaluate_(&what);
}

void CounterHost::Close() {
  if (host_ == nullptr) return;
  SPANLITE_PARAMS(CUpti_Profiler_Host_Deinitialize_Params, end);
  end.pHostObject = host_;
  close_(&end);
  host_ = nullptr;
}

}  // namespace spanlite
