#include "pm_sampler.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <memory>
#include <string>
#include <vector>

#include <cuda.h>
#include <cupti_pmsampling.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_target.h>

#include "cupti_api.h"

namespace {

// The hardware writes here until we read: at 1 kHz and a read each half second far too much.
constexpr size_t kHardwareBufferBytes = 64u << 20;

template <typename Function>
bool Bind(void* library, const char* name, Function* target) {
  *target = reinterpret_cast<Function>(dlsym(library, name));
  return *target != nullptr;
}

struct PmApi {
  decltype(&cuptiProfilerInitialize) Initialize = nullptr;
  decltype(&cuptiDeviceGetChipName) ChipName = nullptr;
  decltype(&cuptiPmSamplingGetCounterAvailability) Availability = nullptr;
  decltype(&cuptiProfilerHostInitialize) HostInitialize = nullptr;
  decltype(&cuptiProfilerHostDeinitialize) HostDeinitialize = nullptr;
  decltype(&cuptiProfilerHostConfigAddMetrics) AddMetrics = nullptr;
  decltype(&cuptiProfilerHostGetConfigImageSize) ConfigSize = nullptr;
  decltype(&cuptiProfilerHostGetConfigImage) ConfigImage = nullptr;
  decltype(&cuptiProfilerHostGetNumOfPasses) Passes = nullptr;
  decltype(&cuptiProfilerHostEvaluateToGpuValues) Evaluate = nullptr;
  decltype(&cuptiPmSamplingEnable) Enable = nullptr;
  decltype(&cuptiPmSamplingDisable) Disable = nullptr;
  decltype(&cuptiPmSamplingSetConfig) SetConfig = nullptr;
  decltype(&cuptiPmSamplingStart) Start = nullptr;
  decltype(&cuptiPmSamplingStop) Stop = nullptr;
  decltype(&cuptiPmSamplingDecodeData) Decode = nullptr;
  decltype(&cuptiPmSamplingGetCounterDataSize) DataSize = nullptr;
  decltype(&cuptiPmSamplingCounterDataImageInitialize) DataInitialize = nullptr;
  decltype(&cuptiPmSamplingGetCounterDataInfo) DataInfo = nullptr;
  decltype(&cuptiPmSamplingCounterDataGetSampleInfo) SampleInfo = nullptr;

  bool Load(void* library) {
    return Bind(library, "cuptiProfilerInitialize", &Initialize) &&
           Bind(library, "cuptiDeviceGetChipName", &ChipName) &&
           Bind(library, "cuptiPmSamplingGetCounterAvailability", &Availability) &&
           Bind(library, "cuptiProfilerHostInitialize", &HostInitialize) &&
           Bind(library, "cuptiProfilerHostDeinitialize", &HostDeinitialize) &&
           Bind(library, "cuptiProfilerHostConfigAddMetrics", &AddMetrics) &&
           Bind(library, "cuptiProfilerHostGetConfigImageSize", &ConfigSize) &&
           Bind(library, "cuptiProfilerHostGetConfigImage", &ConfigImage) &&
           Bind(library, "cuptiProfilerHostGetNumOfPasses", &Passes) &&
           Bind(library, "cuptiProfilerHostEvaluateToGpuValues", &Evaluate) &&
           Bind(library, "cuptiPmSamplingEnable", &Enable) &&
           Bind(library, "cuptiPmSamplingDisable", &Disable) &&
           Bind(library, "cuptiPmSamplingSetConfig", &SetConfig) &&
           Bind(library, "cuptiPmSamplingStart", &Start) &&
           Bind(library, "cuptiPmSamplingStop", &Stop) &&
           Bind(library, "cuptiPmSamplingDecodeData", &Decode) &&
           Bind(library, "cuptiPmSamplingGetCounterDataSize", &DataSize) &&
           Bind(library, "cuptiPmSamplingCounterDataImageInitialize", &DataInitialize) &&
           Bind(library, "cuptiPmSamplingGetCounterDataInfo", &DataInfo) &&
           Bind(library, "cuptiPmSamplingCounterDataGetSampleInfo", &SampleInfo);
  }
};

// Parameters whose size says which version of them we know.
#define SPANLITE_PARAMS(type, name) \
  type name{};                      \
  name.structSize = type##_STRUCT_SIZE

class Sampler {
 public:
  ~Sampler() {
    if (started_) {
      SPANLITE_PARAMS(CUpti_PmSampling_Stop_Params, stop);
      stop.pPmSamplingObject = object_;
      api_.Stop(&stop);
    }
    if (object_ != nullptr) {
      SPANLITE_PARAMS(CUpti_PmSampling_Disable_Params, disable);
      disable.pPmSamplingObject = object_;
      api_.Disable(&disable);
    }
    if (host_ != nullptr) {
      SPANLITE_PARAMS(CUpti_Profiler_Host_Deinitialize_Params, end);
      end.pHostObject = host_;
      api_.HostDeinitialize(&end);
    }
  }

  // False with `failed` (what) and `code` (CUPTI's answer, 0: none) where it cannot be.
  bool Open(const char* cupti_path, uint32_t device, std::vector<const char*> metrics,
            uint64_t interval_ns, uint32_t max_samples) {
    metrics_ = std::move(metrics);
    max_samples_ = max_samples;
    return Load(cupti_path) && OpenHost(device) && Configure() && Begin(device, interval_ns);
  }

  int64_t Read(uint64_t* times, double* values, uint32_t* overflow) {
    SPANLITE_PARAMS(CUpti_PmSampling_DecodeData_Params, decode);
    decode.pPmSamplingObject = object_;
    decode.pCounterDataImage = data_.data();
    decode.counterDataImageSize = data_.size();
    if (CUptiResult result = api_.Decode(&decode); result != CUPTI_SUCCESS) return -result;
    *overflow = decode.overflow;
    SPANLITE_PARAMS(CUpti_PmSampling_GetCounterDataInfo_Params, info);
    info.pCounterDataImage = data_.data();
    info.counterDataImageSize = data_.size();
    if (CUptiResult result = api_.DataInfo(&info); result != CUPTI_SUCCESS) return -result;
    const size_t count = info.numCompletedSamples < max_samples_ ? info.numCompletedSamples
                                                                 : max_samples_;
    for (size_t i = 0; i < count; ++i)
      if (CUptiResult result = One(i, times + 2 * i, values + metrics_.size() * i);
          result != CUPTI_SUCCESS)
        return -result;
    if (CUptiResult result = Empty(); result != CUPTI_SUCCESS) return -result;
    return static_cast<int64_t>(count);
  }

  std::string failed;
  int code = 0;

 private:
  bool Good(CUptiResult result, const char* what) {
    if (result == CUPTI_SUCCESS) return true;
    failed = what;
    if (result == CUPTI_ERROR_HARDWARE_BUSY)
      failed = "another profiler or sampler (ncu, spanlite counters, another collect) has the counters";
    if (result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)
      failed = "no right to the counters: needs CAP_SYS_ADMIN, or the driver's option "
               "NVreg_RestrictProfilingToAdminUsers=0";
    code = result;
    return false;
  }

  bool Load(const char* cupti_path) {
    failed = "no libcuda with a device";
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*init)(unsigned) = nullptr;
    if (driver == nullptr || !Bind(driver, "cuInit", &init)) return false;
    // The daemon observes others; it must not be observed.
    unsetenv("CUDA_INJECTION64_PATH");
    if (init(0) != CUDA_SUCCESS) return false;
    failed = "no libcupti with PM sampling";
    void* cupti = spanlite::OpenCupti(cupti_path);
    if (cupti == nullptr || !api_.Load(cupti)) return false;
    SPANLITE_PARAMS(CUpti_Profiler_Initialize_Params, begin);
    return Good(api_.Initialize(&begin), "cuptiProfilerInitialize");
  }

  bool OpenHost(uint32_t device) {
    SPANLITE_PARAMS(CUpti_Device_GetChipName_Params, chip);
    chip.deviceIndex = device;
    if (!Good(api_.ChipName(&chip), "cuptiDeviceGetChipName")) return false;
    SPANLITE_PARAMS(CUpti_PmSampling_GetCounterAvailability_Params, available);
    available.deviceIndex = device;
    if (!Good(api_.Availability(&available), "counter availability")) return false;
    availability_.resize(available.counterAvailabilityImageSize);
    available.pCounterAvailabilityImage = availability_.data();
    if (!Good(api_.Availability(&available), "counter availability")) return false;
    SPANLITE_PARAMS(CUpti_Profiler_Host_Initialize_Params, host);
    host.profilerType = CUPTI_PROFILER_TYPE_PM_SAMPLING;
    host.pChipName = chip.pChipName;
    host.pCounterAvailabilityImage = availability_.data();
    if (!Good(api_.HostInitialize(&host), "cuptiProfilerHostInitialize")) return false;
    host_ = host.pHostObject;
    return true;
  }

  bool Configure() {
    SPANLITE_PARAMS(CUpti_Profiler_Host_ConfigAddMetrics_Params, add);
    add.pHostObject = host_;
    add.ppMetricNames = metrics_.data();
    add.numMetrics = metrics_.size();
    if (!Good(api_.AddMetrics(&add), "a metric that this chip does not have")) return false;
    SPANLITE_PARAMS(CUpti_Profiler_Host_GetConfigImageSize_Params, size);
    size.pHostObject = host_;
    if (!Good(api_.ConfigSize(&size), "size of the configuration")) return false;
    config_.resize(size.configImageSize);
    SPANLITE_PARAMS(CUpti_Profiler_Host_GetConfigImage_Params, image);
    image.pHostObject = host_;
    image.configImageSize = config_.size();
    image.pConfigImage = config_.data();
    if (!Good(api_.ConfigImage(&image), "configuration")) return false;
    SPANLITE_PARAMS(CUpti_Profiler_Host_GetNumOfPasses_Params, passes);
    passes.configImageSize = config_.size();
    passes.pConfigImage = config_.data();
    if (!Good(api_.Passes(&passes), "number of passes")) return false;
    failed = "these metrics need more than one pass; ask for fewer";
    return passes.numOfPasses == 1;
  }

  bool Begin(uint32_t device, uint64_t interval_ns) {
    SPANLITE_PARAMS(CUpti_PmSampling_Enable_Params, enable);
    enable.deviceIndex = device;
    if (!Good(api_.Enable(&enable), "cuptiPmSamplingEnable"))
      return false;
    object_ = enable.pPmSamplingObject;
    SPANLITE_PARAMS(CUpti_PmSampling_SetConfig_Params, set);
    set.pPmSamplingObject = object_;
    set.configSize = config_.size();
    set.pConfig = config_.data();
    set.hardwareBufferSize = kHardwareBufferBytes;
    set.samplingInterval = interval_ns;
    set.triggerMode = CUPTI_PM_SAMPLING_TRIGGER_MODE_GPU_TIME_INTERVAL;
    set.hwBufferAppendMode = CUPTI_PM_SAMPLING_HARDWARE_BUFFER_APPEND_MODE_KEEP_LATEST;
    if (!Good(api_.SetConfig(&set), "interval")) return false;
    SPANLITE_PARAMS(CUpti_PmSampling_GetCounterDataSize_Params, size);
    size.pPmSamplingObject = object_;
    size.pMetricNames = metrics_.data();
    size.numMetrics = metrics_.size();
    size.maxSamples = max_samples_;
    if (!Good(api_.DataSize(&size), "size of the samples")) return false;
    data_.resize(size.counterDataSize);
    if (!Good(Empty(), "room for samples")) return false;
    SPANLITE_PARAMS(CUpti_PmSampling_Start_Params, start);
    start.pPmSamplingObject = object_;
    started_ = Good(api_.Start(&start), "cuptiPmSamplingStart");
    return started_;
  }

  CUptiResult Empty() {
    SPANLITE_PARAMS(CUpti_PmSampling_CounterDataImage_Initialize_Params, empty);
    empty.pPmSamplingObject = object_;
    empty.counterDataSize = data_.size();
    empty.pCounterData = data_.data();
    return api_.DataInitialize(&empty);
  }

  CUptiResult One(size_t index, uint64_t* times, double* values) {
    SPANLITE_PARAMS(CUpti_PmSampling_CounterData_GetSampleInfo_Params, when);
    when.pPmSamplingObject = object_;
    when.pCounterDataImage = data_.data();
    when.counterDataImageSize = data_.size();
    when.sampleIndex = index;
    if (CUptiResult result = api_.SampleInfo(&when); result != CUPTI_SUCCESS) return result;
    times[0] = when.startTimestamp;
    times[1] = when.endTimestamp;
    SPANLITE_PARAMS(CUpti_Profiler_Host_EvaluateToGpuValues_Params, what);
    what.pHostObject = host_;
    what.pCounterDataImage = data_.data();
    what.counterDataImageSize = data_.size();
    what.rangeIndex = index;
    what.ppMetricNames = metrics_.data();
    what.numMetrics = metrics_.size();
    what.pMetricValues = values;
    return api_.Evaluate(&what);
  }

  PmApi api_;
  std::vector<const char*> metrics_;
  uint32_t max_samples_ = 0;
  std::vector<uint8_t> availability_, config_, data_;
  CUpti_Profiler_Host_Object* host_ = nullptr;
  CUpti_PmSampling_Object* object_ = nullptr;
  bool started_ = false;
};

}  // namespace

void* spanlite_pm_open(const char* cupti_path, uint32_t device, const char* const* metrics,
                       uint32_t count, uint64_t interval_ns, uint32_t max_samples, char* error,
                       uint32_t error_bytes) {
  auto sampler = std::make_unique<Sampler>();
  if (sampler->Open(cupti_path, device, {metrics, metrics + count}, interval_ns, max_samples))
    return sampler.release();
  std::snprintf(error, error_bytes, "%s (%d)", sampler->failed.c_str(), sampler->code);
  return nullptr;
}

int64_t spanlite_pm_read(void* sampler, uint64_t* times, double* values, uint32_t* overflow) {
  return static_cast<Sampler*>(sampler)->Read(times, values, overflow);
}

void spanlite_pm_close(void* sampler) { delete static_cast<Sampler*>(sampler); }
