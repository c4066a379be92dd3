// CUPTI and the driver, bound to what the process itself has loaded.
#pragma once

#include <cstdint>
#include <string>

#include <cupti.h>

namespace spanlite {

// A second copy of CUPTI in a process breaks both, so the one that is mapped is preferred
// (torch brings its own), then the loader's, then the toolkit's usual places. Nothing here
// links against CUPTI: a missing function only switches off what needs it.
struct CuptiApi {
  decltype(&cuptiGetVersion) GetVersion = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) ActivityRegisterCallbacks = nullptr;
  decltype(&cuptiActivityEnable) ActivityEnable = nullptr;
  decltype(&cuptiActivityDisable) ActivityDisable = nullptr;
  decltype(&cuptiActivityFlushAll) ActivityFlushAll = nullptr;
  decltype(&cuptiActivityGetNextRecord) ActivityGetNextRecord = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) ActivityGetNumDroppedRecords = nullptr;
  decltype(&cuptiActivityEnableRuntimeApi) ActivityEnableRuntimeApi = nullptr;  // may be null
  decltype(&cuptiActivityEnableDriverApi) ActivityEnableDriverApi = nullptr;    // may be null
  decltype(&cuptiGetTimestamp) GetTimestamp = nullptr;
  decltype(&cuptiSetThreadIdType) SetThreadIdType = nullptr;  // may be null
  decltype(&cuptiActivitySetAttribute) ActivitySetAttribute = nullptr;    // may be null
  decltype(&cuptiFinalize) Finalize = nullptr;                // may be null: never detach
  decltype(&cuptiSubscribe) Subscribe = nullptr;              // may be null
  decltype(&cuptiEnableCallback) EnableCallback = nullptr;    // may be null
  decltype(&cuptiActivityEnableHWTrace) ActivityEnableHWTrace = nullptr;  // may be null
  uint32_t version = 0;

  // Binds once. On failure `error` says why and nothing may be called.
  bool Load(const std::string& preferred_path, std::string* error);
  // Whether any has been bound in this process, or in the one it was forked from.
  static bool Loaded();
};

// The libcupti to bind to: null where there is none.
void* OpenCupti(const std::string& preferred_path);

// The driver call that waits for a context's work; null without libcuda.
struct DriverApi {
  CUresult (*CtxSynchronize)() = nullptr;
  CUresult (*CtxGetCurrent)(CUcontext*) = nullptr;
  CUresult (*StreamIsCapturing)(CUstream, CUstreamCaptureStatus*) = nullptr;

  bool Load();
  // Whether the process has called cuInit. May wait for one that is under way.
  bool Initialised();
};

}  // namespace spanlite
