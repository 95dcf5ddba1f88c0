// CUDA on the host, as far as the ladder goes: a thread of the block is a fiber, which runs until it meets a barrier
// (`block.cpp`). Kernels compile as plain C++, their results can be checked without a GPU, and ThreadSanitizer finds
// races between the barriers. As under NVRTC nothing has to be included: headers take longer than most kernels.
#pragma once
#define __CUDACC_RTC__
extern "C" {
float fabsf(float) noexcept;
float sqrtf(float) noexcept;
float expf(float) noexcept;
float exp2f(float) noexcept;
float logf(float) noexcept;
float tanhf(float) noexcept;
float erff(float) noexcept;
float copysignf(float, float) noexcept;
float fminf(float, float) noexcept;
float fmaxf(float, float) noexcept;
float fmaf(float, float, float) noexcept;
void* memcpy(void*, const void*, unsigned long) noexcept;
void* memset(void*, int, unsigned long) noexcept;
}
using uintptr_t = unsigned long;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float __uint_as_float(unsigned x) {
    float y;
    memcpy(&y, &x, sizeof y);
    return y;
}
inline unsigned __float_as_uint(float x) {
    unsigned y;
    memcpy(&y, &x, sizeof y);
    return y;
}
inline int min(int x, int y) { return x < y ? x : y; }
inline int max(int x, int y) { return x < y ? y : x; }

struct Index {
    unsigned x, y, z;
};
extern Index threadIdx, blockIdx, blockDim;  // of the thread that runs

void __syncthreads();
void __syncwarp();
int __syncthreads_or(int predicate);
unsigned lane_of_thread();

// What every lane of the warp gives, 32 x `bytes`, at most 64 each: for instructions that lanes carry out together.
// Valid until the warp's next but one.
const void* of_the_warp(const void* own, unsigned bytes);

// What a lane has of a 16 x 8 product's factors, k of 16, by its registers; and its part of the product added to `d`.
struct Factors {
    float a[4][2], b[2][2];
};
void multiply_in_the_warp(float (&d)[4], const Factors& own);

// Memory that a launch asks for; each block finds there what the one before left.
char* dynamic_shared();

// cp.async's copies, made as late as the program allows: when their group is waited for.
struct Copy {
    void* target;
    const void* source;
    int bytes, valid;
};
void copy_later(const Copy& copy);
void commit_copies();
void wait_for_copies(unsigned pending);

// Runs the blocks of a grid one after the other. False where threads wait for others that never come.
bool launch(void (*kernel)(const void* arguments), const void* arguments, unsigned blocks, unsigned x, unsigned y);
