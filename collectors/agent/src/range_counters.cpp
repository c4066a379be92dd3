// Injected into a program (CUDA_INJECTION64_PATH), this counts each launch of the kernels that
// SPANLITE_COUNTERS_KERNEL names and writes a row of SPANLITE_COUNTERS_FILE for it: the columns that
// Nsight Compute's `--csv --page raw` has, so that one reader takes both.
//
//   SPANLITE_COUNTERS_FILE      where the rows go; without it nothing is done
//   SPANLITE_COUNTERS_KERNEL    part of a kernel's name, any case; empty: all
//   SPANLITE_COUNTERS_LAUNCHES  how many launches of each kernel (3)
//   SPANLITE_COUNTERS_METRICS   metrics, commas between; SPANLITE_COUNTERS_CUPTI: path of libcupti
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include <cuda.h>
#include <cupti.h>

#include "cupti_api.h"
#include "range_profiler.h"

#define SPANLITE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using spanlite::RangeProfiler;

struct Launch {
  CUfunction function = nullptr;
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, shared_bytes = 0, cluster = 1;
};

Launch OfKernel(const cuLaunchKernel_params& p) {
  return {p.f, {p.gridDimX, p.gridDimY, p.gridDimZ}, {p.blockDimX, p.blockDimY, p.blockDimZ},
          p.sharedMemBytes, 1};
}

Launch OfEx(const cuLaunchKernelEx_params& p) {
  const CUlaunchConfig& c = *p.config;
  Launch launch{p.f, {c.gridDimX, c.gridDimY, c.gridDimZ}, {c.blockDimX, c.blockDimY, c.blockDimZ},
                c.sharedMemBytes, 1};
  for (unsigned i = 0; i < c.numAttrs; ++i)
    if (c.attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      const auto& dim = c.attrs[i].value.clusterDim;
      launch.cluster = dim.x * dim.y * dim.z;
    }
  return launch;
}

bool IsLaunch(CUpti_CallbackId id, const CUpti_CallbackData& data, Launch* launch) {
  switch (id) {
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz:
      // A cooperative launch has the same parameters up to the last.
      *launch = OfKernel(*static_cast<const cuLaunchKernel_params*>(data.functionParams));
      return true;
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx:
    case CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz:
      *launch = OfEx(*static_cast<const cuLaunchKernelEx_params*>(data.functionParams));
      return true;
    default:
      return false;
  }
}

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string Setting(const char* name, const char* otherwise = "") {
  const char* found = getenv(name);
  return found != nullptr ? found : otherwise;
}

class Counters {
 public:
  bool Begin() {
    pattern_ = Lower(Setting("SPANLITE_COUNTERS_KERNEL"));
    most_ = std::strtoul(Setting("SPANLITE_COUNTERS_LAUNCHES", "3").c_str(), nullptr, 10);
    std::istringstream words(Setting("SPANLITE_COUNTERS_METRICS"));
    for (std::string word; std::getline(words, word, ',');) wanted_.push_back(word);
    driver_ = dlopen("libcuda.so.1", RTLD_NOW);
    cupti_ = spanlite::OpenCupti(Setting("SPANLITE_COUNTERS_CUPTI"));
    if (driver_ == nullptr || cupti_ == nullptr) return Say("no libcupti", 0);
    const auto subscribe = Function<decltype(&cuptiSubscribe)>(cupti_, "cuptiSubscribe");
    const auto enable = Function<decltype(&cuptiEnableCallback)>(cupti_, "cuptiEnableCallback");
    if (subscribe == nullptr || enable == nullptr) return Say("no libcupti with callbacks", 0);
    CUpti_SubscriberHandle handle = nullptr;
    if (CUptiResult result = subscribe(&handle, &Counters::Called, this); result != CUPTI_SUCCESS)
      return Say("another profiler is in the process", result);
    for (CUpti_CallbackId id :
         {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz,
          CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz,
          CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel,
          CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel_ptsz})
      if (CUptiResult result = enable(1, handle, CUPTI_CB_DOMAIN_DRIVER_API, id);
          result != CUPTI_SUCCESS)
        return Say("callbacks of launches", result);
    return true;
  }

 private:
  template <typename Pointer>
  static Pointer Function(void* library, const char* name) {
    return reinterpret_cast<Pointer>(dlsym(library, name));
  }

  static bool Say(const char* what, int code) {
    std::fprintf(stderr, "spanlite: counters: %s (%d)\n", what, code);
    return false;
  }

  static void CUPTIAPI Called(void* self, CUpti_CallbackDomain, CUpti_CallbackId id,
                              const void* data) {
    static_cast<Counters*>(self)->OnCall(id, *static_cast<const CUpti_CallbackData*>(data));
  }

  // All launches pass one by one, so that no other thread's kernel lies in a range.
  void OnCall(CUpti_CallbackId id, const CUpti_CallbackData& data) {
    Launch launch;
    if (!IsLaunch(id, data, &launch)) return;
    if (data.callbackSite == CUPTI_API_ENTER) {
      mutex_.lock();
      counting_ = IsWanted(data) && Ready(data.context) && Started();
      return;
    }
    if (counting_) Finish(data, launch);
    counting_ = false;
    mutex_.unlock();
  }

  bool IsWanted(const CUpti_CallbackData& data) {
    if (broken_ || data.symbolName == nullptr) return false;
    if (Lower(data.symbolName).find(pattern_) == std::string::npos) return false;
    return seen_[data.symbolName]++ < most_;
  }

  bool Ready(CUcontext context) {
    if (context_ != nullptr) return context == context_;
    const auto device_of = Function<decltype(&cuCtxGetDevice)>(driver_, "cuCtxGetDevice");
    CUdevice device = 0;
    if (device_of == nullptr || device_of(&device) != CUDA_SUCCESS) return false;
    context_ = context;
    Attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &sms_);
    Attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major_);
    Attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor_);
    std::vector<const char*> names;
    for (const std::string& name : wanted_) names.push_back(name.c_str());
    if (!profiler_.Open(cupti_, context, static_cast<uint32_t>(device), names)) return Break();
    if (profiler_.metrics.size() < wanted_.size())
      std::fprintf(stderr, "spanlite: counters: %zu of %zu metrics, in %zu passes\n",
                   profiler_.metrics.size(), wanted_.size(), profiler_.passes);
    return WriteHead();
  }

  void Attribute(CUdevice device, CUdevice_attribute which, int* value) {
    const auto get =
        Function<decltype(&cuDeviceGetAttribute)>(driver_, "cuDeviceGetAttribute");
    if (get != nullptr) get(value, which, device);
  }

  bool Break() {
    broken_ = true;
    return Say(profiler_.failed(), profiler_.code());
  }

  bool Started() { return profiler_.Begin() || Break(); }

  bool WriteHead() {
    file_ = std::fopen(Setting("SPANLITE_COUNTERS_FILE").c_str(), "w");
    if (file_ == nullptr) {
      broken_ = true;
      return Say("SPANLITE_COUNTERS_FILE cannot be written", 0);
    }
    std::fprintf(file_, "\"ID\",\"Kernel Name\",\"Block Size\",\"Grid Size\",\"CC\","
                        "\"launch__registers_per_thread\",\"launch__shared_mem_per_block_static\","
                        "\"launch__shared_mem_per_block_dynamic\",\"launch__cluster_size\","
                        "\"launch__sm_count\"");
    for (const char* name : profiler_.metrics) std::fprintf(file_, ",\"%s\"", name);
    std::fprintf(file_, "\n\"\",\"\",\"\",\"\",\"\",\"register/thread\",\"byte/block\","
                        "\"byte/block\",\"\",\"SM\"");
    for (const char* name : profiler_.metrics) std::fprintf(file_, ",\"%s\"", UnitOf(name));
    std::fprintf(file_, "\n");
    std::fflush(file_);
    return true;
  }

  static const char* UnitOf(const std::string& name) {
    if (name.find("time_duration") != std::string::npos) return "ns";
    if (name.find("pct") != std::string::npos) return "%";
    return name.find("bytes") != std::string::npos ? "byte" : "";
  }

  int FunctionAttribute(CUfunction function, CUfunction_attribute which) {
    const auto get = Function<decltype(&cuFuncGetAttribute)>(driver_, "cuFuncGetAttribute");
    int value = 0;
    return get != nullptr && get(&value, which, function) == CUDA_SUCCESS ? value : 0;
  }

  void Finish(const CUpti_CallbackData& data, const Launch& launch) {
    std::vector<double> values;
    if (!profiler_.End(&values)) {
      Break();
      return;
    }
    std::string name;
    for (const char* c = data.symbolName; *c != 0; ++c) name += *c == '"' ? "\"\"" : std::string(1, *c);
    std::fprintf(file_, "\"%zu\",\"%s\",\"(%u, %u, %u)\",\"(%u, %u, %u)\",\"%d.%d\"", rows_++,
                 name.c_str(), launch.block[0], launch.block[1], launch.block[2], launch.grid[0],
                 launch.grid[1], launch.grid[2], major_, minor_);
    std::fprintf(file_, ",\"%d\",\"%d\",\"%u\",\"%u\",\"%d\"",
                 FunctionAttribute(launch.function, CU_FUNC_ATTRIBUTE_NUM_REGS),
                 FunctionAttribute(launch.function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
                 launch.shared_bytes, launch.cluster, sms_);
    for (double value : values) std::fprintf(file_, ",\"%.17g\"", value);
    std::fprintf(file_, "\n");
    std::fflush(file_);
  }

  std::mutex mutex_;
  std::string pattern_;
  std::vector<std::string> wanted_;
  unsigned long most_ = 3;
  std::map<std::string, unsigned long> seen_;
  void *driver_ = nullptr, *cupti_ = nullptr;
  CUcontext context_ = nullptr;
  RangeProfiler profiler_;
  FILE* file_ = nullptr;
  bool counting_ = false, broken_ = false;
  int sms_ = 0, major_ = 0, minor_ = 0;
  size_t rows_ = 0;
};

}  // namespace

// CUDA calls it once, in cuInit.
SPANLITE_EXPORT int InitializeInjection() {
  // Never freed: callbacks come until the process ends.
  if (!Setting("SPANLITE_COUNTERS_FILE").empty()) (new Counters)->Begin();
  return 1;
}
