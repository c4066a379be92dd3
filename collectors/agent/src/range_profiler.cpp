#include "range_profiler.h"

#include <dlfcn.h>
#include <utility>

namespace spanlite {
namespace {

template <typename Function>
bool Bind(void* library, const char* name, Function* target) {
  *target = reinterpret_cast<Function>(dlsym(library, name));
  return *target != nullptr;
}

}  // namespace

// Parameters whose size says which version of them we know.
#define SPANLITE_PARAMS(type, name) \
  type name{};                      \
  name.structSize = type##_STRUCT_SIZE

bool RangeApi::Load(void* cupti) {
  return Bind(cupti, "cuptiProfilerInitialize", &Initialize) &&
         Bind(cupti, "cuptiDeviceGetChipName", &ChipName) &&
         Bind(cupti, "cuptiProfilerGetCounterAvailability", &Availability) &&
         Bind(cupti, "cuptiProfilerHostInitialize", &HostInitialize) &&
         Bind(cupti, "cuptiProfilerHostDeinitialize", &HostDeinitialize) &&
         Bind(cupti, "cuptiProfilerHostConfigAddMetrics", &AddMetrics) &&
         Bind(cupti, "cuptiProfilerHostGetConfigImageSize", &ConfigSize) &&
         Bind(cupti, "cuptiProfilerHostGetConfigImage", &ConfigImage) &&
         Bind(cupti, "cuptiProfilerHostGetNumOfPasses", &Passes) &&
         Bind(cupti, "cuptiProfilerHostEvaluateToGpuValues", &Evaluate) &&
         Bind(cupti, "cuptiRangeProfilerEnable", &Enable) &&
         Bind(cupti, "cuptiRangeProfilerDisable", &Disable) &&
         Bind(cupti, "cuptiRangeProfilerSetConfig", &SetConfig) &&
         Bind(cupti, "cuptiRangeProfilerStart", &Start) &&
         Bind(cupti, "cuptiRangeProfilerStop", &Stop) &&
         Bind(cupti, "cuptiRangeProfilerDecodeData", &Decode) &&
         Bind(cupti, "cuptiRangeProfilerGetCounterDataSize", &DataSize) &&
         Bind(cupti, "cuptiRangeProfilerCounterDataImageInitialize", &DataInitialize) &&
         Bind(cupti, "cuptiRangeProfilerGetCounterDataInfo", &DataInfo);
}

bool RangeProfiler::Good(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return true;
  failed = what;
  code = result;
  return false;
}

bool RangeProfiler::Open(void* cupti, CUcontext context, uint32_t device,
                         std::vector<const char*> wanted) {
  metrics = std::move(wanted);
  context_ = context;
  failed = "no libcupti with range profiling";
  if (cupti == nullptr || !api_.Load(cupti)) return false;
  SPANLITE_PARAMS(CUpti_Profiler_Initialize_Params, begin);
  return Good(api_.Initialize(&begin), "cuptiProfilerInitialize") && OpenHost(device) &&
         Configure();
}

bool RangeProfiler::OpenHost(uint32_t device) {
  SPANLITE_PARAMS(CUpti_Device_GetChipName_Params, chip);
  chip.deviceIndex = device;
  if (!Good(api_.ChipName(&chip), "cuptiDeviceGetChipName")) return false;
  chip_ = chip.pChipName;
  SPANLITE_PARAMS(CUpti_Profiler_GetCounterAvailability_Params, available);
  available.ctx = context_;
  if (!Good(api_.Availability(&available), "counter availability (no right to profile?)"))
    return false;
  availability_.resize(available.counterAvailabilityImageSize);
  available.pCounterAvailabilityImage = availability_.data();
  return Good(api_.Availability(&available), "counter availability") && NewHost();
}

bool RangeProfiler::NewHost() {
  Close();
  SPANLITE_PARAMS(CUpti_Profiler_Host_Initialize_Params, host);
  host.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
  host.pChipName = chip_;
  host.pCounterAvailabilityImage = availability_.data();
  if (!Good(api_.HostInitialize(&host), "cuptiProfilerHostInitialize")) return false;
  host_ = host.pHostObject;
  return true;
}

bool RangeProfiler::Add(const std::vector<const char*>& names) {
  SPANLITE_PARAMS(CUpti_Profiler_Host_ConfigAddMetrics_Params, add);
  add.pHostObject = host_;
  add.ppMetricNames = const_cast<const char**>(names.data());
  add.numMetrics = names.size();
  return Good(api_.AddMetrics(&add), "metrics that this chip does not have");
}

bool RangeProfiler::Configure() {
  std::vector<const char*> known;
  for (const char* name : metrics) {
    if (Add({name})) {
      known.push_back(name);
      continue;
    }
    // A host object that has refused a metric refuses all after it (CUPTI 13.0).
    if (!NewHost() || (!known.empty() && !Add(known))) return false;
  }
  metrics = std::move(known);
  if (metrics.empty()) return false;
  SPANLITE_PARAMS(CUpti_Profiler_Host_GetConfigImageSize_Params, size);
  size.pHostObject = host_;
  if (!Good(api_.ConfigSize(&size), "size of the configuration")) return false;
  config_.resize(size.configImageSize);
  SPANLITE_PARAMS(CUpti_Profiler_Host_GetConfigImage_Params, image);
  image.pHostObject = host_;
  image.configImageSize = config_.size();
  image.pConfigImage = config_.data();
  if (!Good(api_.ConfigImage(&image), "configuration")) return false;
  SPANLITE_PARAMS(CUpti_Profiler_Host_GetNumOfPasses_Params, count);
  count.configImageSize = config_.size();
  count.pConfigImage = config_.data();
  if (!Good(api_.Passes(&count), "number of passes")) return false;
  passes = count.numOfPasses;
  return true;
}

bool RangeProfiler::Enable() {
  SPANLITE_PARAMS(CUpti_RangeProfiler_Enable_Params, enable);
  enable.ctx = context_;
  if (!Good(api_.Enable(&enable), "another profiler holds the GPU, or no right to profile"))
    return false;
  object_ = enable.pRangeProfilerObject;
  SPANLITE_PARAMS(CUpti_RangeProfiler_GetCounterDataSize_Params, size);
  size.pRangeProfilerObject = object_;
  size.pMetricNames = metrics.data();
  size.numMetrics = metrics.size();
  size.maxNumOfRanges = 1;
  size.maxNumRangeTreeNodes = 1;
  if (!Good(api_.DataSize(&size), "size of the counters")) return false;
  data_.assign(size.counterDataSize, 0);
  SPANLITE_PARAMS(CUpti_RangeProfiler_CounterDataImage_Initialize_Params, empty);
  empty.pRangeProfilerObject = object_;
  empty.counterDataSize = data_.size();
  empty.pCounterData = data_.data();
  return Good(api_.DataInitialize(&empty), "room for counters");
}

bool RangeProfiler::Begin() {
  if (!Enable()) return false;
  SPANLITE_PARAMS(CUpti_RangeProfiler_SetConfig_Params, set);
  set.pRangeProfilerObject = object_;
  set.configSize = config_.size();
  set.pConfig = config_.data();
  set.counterDataImageSize = data_.size();
  set.pCounterDataImage = data_.data();
  set.range = CUPTI_AutoRange;
  set.replayMode = CUPTI_KernelReplay;
  set.maxRangesPerPass = 1;
  set.numNestingLevels = 1;
  set.minNestingLevel = 1;
  set.passIndex = 0;
  set.targetNestingLevel = 1;
  if (!Good(api_.SetConfig(&set), "configuration of the ranges")) return false;
  SPANLITE_PARAMS(CUpti_RangeProfiler_Start_Params, start);
  start.pRangeProfilerObject = object_;
  return Good(api_.Start(&start), "cuptiRangeProfilerStart");
}

bool RangeProfiler::End(std::vector<double>* values) {
  SPANLITE_PARAMS(CUpti_RangeProfiler_Stop_Params, stop);
  stop.pRangeProfilerObject = object_;
  SPANLITE_PARAMS(CUpti_RangeProfiler_DecodeData_Params, decode);
  decode.pRangeProfilerObject = object_;
  const bool done = Good(api_.Stop(&stop), "cuptiRangeProfilerStop") &&
                    Good(api_.Decode(&decode), "decoding") && Evaluate(values);
  SPANLITE_PARAMS(CUpti_RangeProfiler_Disable_Params, disable);
  disable.pRangeProfilerObject = object_;
  api_.Disable(&disable);
  object_ = nullptr;
  return done;
}

bool RangeProfiler::Evaluate(std::vector<double>* values) {
  SPANLITE_PARAMS(CUpti_RangeProfiler_GetCounterDataInfo_Params, info);
  info.pCounterDataImage = data_.data();
  info.counterDataImageSize = data_.size();
  if (!Good(api_.DataInfo(&info), "counters")) return false;
  failed = "no kernel ran in the range";
  code = 0;
  if (info.numTotalRanges == 0) return false;
  values->assign(metrics.size(), 0);
  SPANLITE_PARAMS(CUpti_Profiler_Host_EvaluateToGpuValues_Params, what);
  what.pHostObject = host_;
  what.pCounterDataImage = data_.data();
  what.counterDataImageSize = data_.size();
  what.rangeIndex = 0;
  what.ppMetricNames = metrics.data();
  what.numMetrics = metrics.size();
  what.pMetricValues = values->data();
  return Good(api_.Evaluate(&what), "evaluation of the counters");
}

void RangeProfiler::Close() {
  if (host_ == nullptr) return;
  SPANLITE_PARAMS(CUpti_Profiler_Host_Deinitialize_Params, end);
  end.pHostObject = host_;
  api_.HostDeinitialize(&end);
  host_ = nullptr;
}

}  // namespace spanlite
