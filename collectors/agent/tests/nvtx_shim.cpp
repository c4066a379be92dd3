// NVTX for a Python host through ctypes: the header-only library needs somebody to compile it.
#include <nvtx3/nvToolsExt.h>

extern "C" {
int shim_push(const char* text) { return nvtxRangePushA(text); }
int shim_pop() { return nvtxRangePop(); }
void shim_mark(const char* text) { nvtxMarkA(text); }
}
