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

#include "counter_host.h"
#include "cupti_api.h"

namespace {

using spanlite::Bind;

// The hardware writes here until we read: at 1 kHz and a read each half second far too much.
constexpr size_t kHardwareBufferBytes = 64u << 20;

struct PmApi {
  decltype(&cuptiPmSamplingGetCounterAvailability) Availability = nullptr;
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
    return Bind(library, "cuptiPmSamplingGetCounterAvailability", &Availability) &&
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

  const char* failed() const { return host_.failed.c_str(); }
  int code() const { return host_.code; }

 private:
  bool Load(const char* cupti_path) {
    host_.failed = "no libcuda with a device";
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*init)(unsigned) = nullptr;
    if (driver == nullptr || !Bind(driver, "cuInit", &init)) return false;
    // The daemon observes others; it must not be observed.
    unsetenv("CUDA_INJECTION64_PATH");
    if (init(0) != CUDA_SUCCESS) return false;
    host_.failed = "no libcupti with PM sampling";
    void* cupti = spanlite::OpenCupti(cupti_path);
    return cupti != nullptr && host_.Load(cupti) && api_.Load(cupti) && host_.Initialize();
  }

  bool OpenHost(uint32_t device) {
    if (!host_.FindChip(device)) return false;
    SPANLITE_PARAMS(CUpti_PmSampling_GetCounterAvailability_Params, available);
    available.deviceIndex = device;
    if (!host_.Good(api_.Availability(&available), "counter availability")) return false;
    host_.availability.resize(available.counterAvailabilityImageSize);
    available.pCounterAvailabilityImage = host_.availability.data();
    return host_.Good(api_.Availability(&available), "counter availability") &&
           host_.Open(CUPTI_PROFILER_TYPE_PM_SAMPLING);
  }

  bool Configure() {
    size_t passes = 0;
    if (!host_.Add(metrics_, "a metric that this chip does not have") ||
        !host_.Configure(&config_, &passes))
      return false;
    host_.failed = "these metrics need more than one pass; ask for fewer";
    return passes == 1;
  }

  bool Begin(uint32_t device, uint64_t interval_ns) {
    SPANLITE_PARAMS(CUpti_PmSampling_Enable_Params, enable);
    enable.deviceIndex = device;
    if (!host_.Good(api_.Enable(&enable), "cuptiPmSamplingEnable"))
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
    if (!host_.Good(api_.SetConfig(&set), "interval")) return false;
    SPANLITE_PARAMS(CUpti_PmSampling_GetCounterDataSize_Params, size);
    size.pPmSamplingObject = object_;
    size.pMetricNames = metrics_.data();
    size.numMetrics = metrics_.size();
    size.maxSamples = max_samples_;
    if (!host_.Good(api_.DataSize(&size), "size of the samples")) return false;
    data_.resize(size.counterDataSize);
    if (!host_.Good(Empty(), "room for samples")) return false;
    SPANLITE_PARAMS(CUpti_PmSampling_Start_Params, start);
    start.pPmSamplingObject = object_;
    started_ = host_.Good(api_.Start(&start), "cuptiPmSamplingStart");
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
    return host_.Evaluate(metrics_, data_, index, values);
  }

  spanlite::CounterHost host_;
  PmApi api_;
  std::vector<const char*> metrics_;
  uint32_t max_samples_ = 0;
  std::vector<uint8_t> config_, data_;
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
  std::snprintf(error, error_bytes, "%s (%d)", sampler->failed(), sampler->code());
  return nullptr;
}

int64_t spanlite_pm_read(void* sampler, uint64_t* times, double* values, uint32_t* overflow) {
  return static_cast<Sampler*>(sampler)->Read(times, values, overflow);
}

void spanlite_pm_close(void* sampler) { delete static_cast<Sampler*>(sampler); }
