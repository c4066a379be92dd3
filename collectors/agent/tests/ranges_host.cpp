// Launches kernels under an injected library, as CUDA would load it: four of `gemm`, two of `other`
// from a second thread meanwhile, one of a template.
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <thread>

#include "standin_ranges.h"

int main() {
  void* injected = dlopen(std::getenv("CUDA_INJECTION64_PATH"), RTLD_NOW);
  if (injected == nullptr) return std::puts(dlerror()), 1;
  reinterpret_cast<int (*)()>(dlsym(injected, "InitializeInjection"))();
  std::thread beside([] {
    for (int i = 0; i < 2; ++i) StandinLaunch("other", 1, 32);
  });
  beside.join();
  for (int i = 0; i < 4; ++i) StandinLaunch("my_GEMM_kernel", 264, 256);
  StandinLaunch("gemm<int, \"a\">", 132, 128);
  return std::puts("launched 7"), 0;
}
