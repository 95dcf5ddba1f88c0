// Every PTX instruction that the ladder uses, wrapped once. The kernels call these functions and contain no assembly:
// they stay readable, and another back end could stand in for this one file.
#pragma once

// ---- Conversions. A 16-bit float travels as its bits. ----------------------------------------------------------------

__device__ __forceinline__ float fp16_to_fp32(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

__device__ __forceinline__ unsigned short fp32_to_fp16(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

// bf16 is the upper half of an fp32.
__device__ __forceinline__ float bf16_to_fp32(unsigned short bits) { return __uint_as_float(unsigned(bits) << 16); }

__device__ __forceinline__ unsigned short fp32_to_bf16(float x) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));  // sm_80: before it, levels refuse bf16
    return bits;
}

// ---- Shared memory ---------------------------------------------------------------------------------------------------

// Instructions on shared memory take 32-bit addresses of their own window, not generic pointers.
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// ---- cp.async (sm_80): from global to shared memory, past the registers, while the thread goes on. -------------------

// Copies BYTES (4, 8 or 16; both addresses aligned to it), of which the first `valid` are read and the rest are zero.
// With valid == 0 the source is not touched. Only 16-byte copies can leave L1 out (.cg).
template <int BYTES>
__device__ __forceinline__ void cp_async(void* target, const void* source, int valid) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async moves 4, 8 or 16 bytes");
    const unsigned address = shared_address(target);
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source), "r"(valid) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(source), "n"(BYTES), "r"(valid)
                     : "memory");
}

// Everything this thread has copied since the last commit becomes one group.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's groups are under way. What other threads copied needs a barrier too.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
