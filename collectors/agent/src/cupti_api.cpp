#include "cupti_api.h"

#include <atomic>
#include <dlfcn.h>
#include <fstream>

namespace spanlite {
namespace {

std::atomic<bool> g_loaded{false};

const char* const kNames[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};

// The path of a libcupti that is mapped already, under whatever name it was loaded.
std::string MappedCupti() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t slash = line.find('/');
    if (slash != std::string::npos && line.find("/libcupti.so", slash) != std::string::npos)
      return line.substr(slash);
  }
  return "";
}

template <typename Function>
bool Bind(void* library, const char* name, Function* target) {
  *target = reinterpret_cast<Function>(dlsym(library, name));
  return *target != nullptr;
}

}  // namespace

void* OpenCupti(const std::string& preferred_path) {
  if (!preferred_path.empty()) return dlopen(preferred_path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (const std::string mapped = MappedCupti(); !mapped.empty())
    if (void* library = dlopen(mapped.c_str(), RTLD_NOW | RTLD_NOLOAD)) return library;
  for (const char* name : kNames)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  for (const char* name : kNames)
    if (void* library = dlopen((std::string("/usr/local/cuda/extras/CUPTI/lib64/") + name).c_str(),
                               RTLD_NOW | RTLD_LOCAL))
      return library;
  return nullptr;
}

bool CuptiApi::Load(const std::string& preferred_path, std::string* error) {
  void* library = OpenCupti(preferred_path);
  if (library == nullptr) {
    const char* why = dlerror();
    *error = std::string("no libcupti: ") + (why != nullptr ? why : "not found");
    return false;
  }
  const bool complete =
      Bind(library, "cuptiGetVersion", &GetVersion) &
      Bind(library, "cuptiActivityRegisterCallbacks", &ActivityRegisterCallbacks) &
      Bind(library, "cuptiActivityEnable", &ActivityEnable) &
      Bind(library, "cuptiActivityDisable", &ActivityDisable) &
      Bind(library, "cuptiActivityFlushAll", &ActivityFlushAll) &
      Bind(library, "cuptiActivityGetNextRecord", &ActivityGetNextRecord) &
      Bind(library, "cuptiActivityGetNumDroppedRecords", &ActivityGetNumDroppedRecords) &
      Bind(library, "cuptiGetTimestamp", &GetTimestamp);
  Bind(library, "cuptiActivityEnableRuntimeApi", &ActivityEnableRuntimeApi);
  Bind(library, "cuptiActivityEnableDriverApi", &ActivityEnableDriverApi);
  Bind(library, "cuptiSetThreadIdType", &SetThreadIdType);
  Bind(library, "cuptiActivitySetAttribute", &ActivitySetAttribute);
  Bind(library, "cuptiFinalize", &Finalize);
  Bind(library, "cuptiSubscribe", &Subscribe);
  Bind(library, "cuptiEnableCallback", &EnableCallback);
  Bind(library, "cuptiActivityEnableHWTrace", &ActivityEnableHWTrace);
  if (!complete || GetVersion(&version) != CUPTI_SUCCESS) {
    *error = "this libcupti lacks activity functions";
    return false;
  }
  g_loaded.store(true);
  return true;
}

bool CuptiApi::Loaded() { return g_loaded.load(); }

bool DriverApi::Load() {
  // Only ever the library the process uses: loading the driver anew makes no sense.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return false;
  Bind(library, "cuStreamIsCapturing", &StreamIsCapturing);
  return Bind(library, "cuCtxSynchronize", &CtxSynchronize) &
         Bind(library, "cuCtxGetCurrent", &CtxGetCurrent);
}

bool DriverApi::Initialised() {
  CUcontext context = nullptr;
  return Load() && CtxGetCurrent(&context) != CUDA_ERROR_NOT_INITIALIZED;
}

}  // namespace spanlite
