// Kernels of bench/_fault_worker.py. PAD 0 makes the transposition conflict 32 ways in its reads.
#ifndef PAD
#define PAD 1
#endif

extern "C" __global__ void custom_transpose(const float *in, float *out, int n, int rounds)
{
    __shared__ float tile[32][32 + PAD];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int round = 0; round < rounds; ++round) {
        for (int row = 0; row < 32; row += 8) {
            tile[threadIdx.y + row][threadIdx.x] = in[(size_t)(y + row) * n + x];
        }
        __syncthreads();
        int to_x = blockIdx.y * 32 + threadIdx.x, to_y = blockIdx.x * 32 + threadIdx.y;
        for (int row = 0; row < 32; row += 8) {
            out[(size_t)(to_y + row) * n + to_x] = tile[threadIdx.x][threadIdx.y + row];
        }
        __syncthreads();
    }
}

// Many values that live at once: they fit the registers, unless the compiler is told to use few.
extern "C" __global__ void custom_mix(const float *in, float *out, int n, int rounds)
{
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    float value[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        value[i] = in[(at + i * 97) % n];
    }
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            value[i] = fmaf(value[i], 1.0001f, value[(i * 29 + 7) % 64]);
        }
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        sum += value[i];
    }
    out[at] = sum;
}

// Runs as long as the clock makes it, on as many SMs as it has blocks.
extern "C" __global__ void expert_fma(float *out, int rounds)
{
    float a = threadIdx.x, b = 0.5f;
    for (int round = 0; round < rounds; ++round) {
        a = fmaf(a, b, 1.0f);
        b = fmaf(b, 0.999f, 1e-3f);
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = a + b;
}

// A block for each request and head, over as many tokens as the request has: 512 bytes a token.
// It lasts as long as its longest request.
extern "C" __global__ void decode_attention(const uint4 *cache, unsigned *out, const int *context,
                                            int pool_tokens, int first_request)
{
    int request = blockIdx.x + first_request, lane = threadIdx.x % 32, row = threadIdx.x / 32;
    int tokens = context[request];
    unsigned at = (unsigned)(request * gridDim.y + blockIdx.y) * 7919u * 1024u;
    unsigned sum = 0;
#pragma unroll 4
    for (int token = row; token < tokens; token += 4) {
        uint4 part = cache[(size_t)((at + token) % (unsigned)pool_tokens) * 32 + lane];
        sum += part.x ^ part.y ^ part.z ^ part.w;
    }
    atomicAdd(out + request * gridDim.y + blockIdx.y, sum);
}
