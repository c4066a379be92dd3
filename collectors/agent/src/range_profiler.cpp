#include "range_profiler.h"

#include <utility>

namespace spanlite {

bool RangeApi::Load(void* cupti) {
  return Bind(cupti, "cuptiProfilerGetCounterAvailability", &Availability) &&
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

bool RangeProfiler::Open(void* cupti, CUcontext context, uint32_t device,
                         std::vector<const char*> wanted) {
  metrics = std::move(wanted);
  context_ = context;
  host_.failed = "no libcupti with range profiling";
  return cupti != nullptr && host_.Load(cupti) && api_.Load(cupti) && host_.Initialize() &&
         OpenHost(device) && Configure();
}

bool RangeProfiler::OpenHost(uint32_t device) {
  if (!host_.FindChip(device)) return false;
  SPANLITE_PARAMS(CUpti_Profiler_GetCounterAvailability_Params, available);
  available.ctx = context_;
  if (!host_.Good(api_.Availability(&available), "counter availability")) return false;
  host_.availability.resize(available.counterAvailabilityImageSize);
  available.pCounterAvailabilityImage = host_.availability.data();
  return host_.Good(api_.Availability(&available), "counter availability") && NewHost();
}

bool RangeProfiler::NewHost() { return host_.Open(CUPTI_PROFILER_TYPE_RANGE_PROFILER); }

bool RangeProfiler::Add(const std::vector<const char*>& names) {
  return host_.Add(names, "metrics that this chip does not have");
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
  return !metrics.empty() && host_.Configure(&config_, &passes);
}

bool RangeProfiler::Enable() {
  SPANLITE_PARAMS(CUpti_RangeProfiler_Enable_Params, enable);
  enable.ctx = context_;
  if (!host_.Good(api_.Enable(&enable), "another profiler holds the GPU, or no right to profile"))
    return false;
  object_ = enable.pRangeProfilerObject;
  SPANLITE_PARAMS(CUpti_RangeProfiler_GetCounterDataSize_Params, size);
  size.pRangeProfilerObject = object_;
  size.pMetricNames = metrics.data();
  size.numMetrics = metrics.size();
  size.maxNumOfRanges = 1;
  size.maxNumRangeTreeNodes = 1;
  if (!host_.Good(api_.DataSize(&size), "size of the counters")) return false;
  data_.assign(size.counterDataSize, 0);
  SPANLITE_PARAMS(CUpti_RangeProfiler_CounterDataImage_Initialize_Params, empty);
  empty.pRangeProfilerObject = object_;
  empty.counterDataSize = data_.size();
  empty.pCounterData = data_.data();
  return host_.Good(api_.DataInitialize(&empty), "room for counters");
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
  if (!host_.Good(api_.SetConfig(&set), "configuration of the ranges")) return false;
  SPANLITE_PARAMS(CUpti_RangeProfiler_Start_Params, start);
  start.pRangeProfilerObject = object_;
  return host_.Good(api_.Start(&start), "cuptiRangeProfilerStart");
}

bool RangeProfiler::End(std::vector<double>* values) {
  SPANLITE_PARAMS(CUpti_RangeProfiler_Stop_Params, stop);
  stop.pRangeProfilerObject = object_;
  SPANLITE_PARAMS(CUpti_RangeProfiler_DecodeData_Params, decode);
  decode.pRangeProfilerObject = object_;
  const bool done = host_.Good(api_.Stop(&stop), "cuptiRangeProfilerStop") &&
                    host_.Good(api_.Decode(&decode), "decoding") && Evaluate(values);
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
  if (!host_.Good(api_.DataInfo(&info), "counters")) return false;
  host_.failed = "no kernel ran in the range";
  host_.code = 0;
  if (info.numTotalRanges == 0) return false;
  values->assign(metrics.size(), 0);
  return host_.Good(host_.Evaluate(metrics, data_, 0, values->data()), "evaluation of the counters");
}

}  // namespace spanlite
