// CUDA on the host, as far as the ladder goes: a thread of the block is a thread, a barrier a barrier (`block.cpp`).
// Kernels compile as plain C++, their results can be checked without a GPU, and ThreadSanitizer finds races between the
// barriers. Nothing of the standard library is included: there are many kernels to compile.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

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
extern thread_local Index threadIdx, blockIdx;
extern Index blockDim;

void __syncthreads();
void __syncwarp();
int __syncthreads_or(int predicate);
unsigned lane_of_thread();

// What every lane of the warp gives, 32 x `bytes`, at most 64 each: for instructions that lanes carry out together.
// Valid until the warp's next but one.
const void* of_the_warp(const void* own, unsigned bytes);

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

// Runs the blocks of a grid one after the other.
void launch(void (*kernel)(const void* arguments), const void* arguments, unsigned blocks, unsigned x, unsigned y);
