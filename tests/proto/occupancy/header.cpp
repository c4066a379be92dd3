// Asks NVIDIA's own cuda_occupancy.h. Reads rows of 12 int32 from stdin, writes rows of 8.
#include <cstdio>
#include <cuda_occupancy.h>

enum { MAJOR, MINOR, WARPS, SHARED_SM, RESERVED, THREADS, REGISTERS, STATIC, DYNAMIC, CARVEOUT, BARRIERS, OPT_IN, FIELDS };

int main() {
  int in[FIELDS];
  while (fread(in, sizeof in, 1, stdin) == 1) {
    cudaOccDeviceProp device;
    device.computeMajor = in[MAJOR];
    device.computeMinor = in[MINOR];
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = in[WARPS] * 32;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.sharedMemPerBlock = 48 * 1024;
    device.sharedMemPerMultiprocessor = in[SHARED_SM];
    device.numSms = 1;
    device.sharedMemPerBlockOptin = in[SHARED_SM] - in[RESERVED];
    device.reservedSharedMemPerBlock = in[RESERVED];
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1024;
    kernel.numRegs = in[REGISTERS];
    kernel.sharedSizeBytes = in[STATIC];
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = in[OPT_IN];
    kernel.numBlockBarriers = in[BARRIERS];
    cudaOccDeviceState state;
    state.carveoutConfig = in[CARVEOUT];
    cudaOccResult result;
    int status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, in[THREADS], in[DYNAMIC]);
    int out[] = {status,
                 result.activeBlocksPerMultiprocessor,
                 static_cast<int>(result.limitingFactors),
                 result.blockLimitWarps,
                 result.blockLimitRegs,
                 result.blockLimitSharedMem,
                 result.blockLimitBlocks,
                 result.blockLimitBarriers};
    fwrite(out, sizeof out, 1, stdout);
  }
}
