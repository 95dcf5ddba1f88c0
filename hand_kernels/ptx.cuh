// Every PTX instruction that the ladder uses, wrapped once; Hopper's own are in `ptx_hopper.cuh`. The kernels call these
// functions and contain no assembly: they stay readable, and another back end could stand in for this one file.
#pragma once

// ---- Conversions. A 16-bit float travels as its bits. -------------------------------------------------------------

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

// ---- Shared memory ------------------------------------------------------------------------------------------------

// Instructions on shared memory take 32-bit addresses of their own window, not generic pointers.
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The shared memory that a launch asks for, beyond what arrays declare. Aligned to 1024 bytes, as wgmma's tiles are.
__device__ __forceinline__ char* dynamic_shared_memory() {
    extern __shared__ __align__(1024) char dynamic_shared[];
    return dynamic_shared;
}

// ---- cp.async (sm_80): from global to shared memory, past the registers, while the thread goes on. ----------------

// Copies BYTES (4, 8 or 16; both addresses aligned to it), of which the first `valid` are read and the rest are zero.
// With valid == 0 the source is not touched. Only 16-byte copies can leave L1 out (.cg).
template <int BYTES>
__device__ __forceinline__ void cp_async(void* target, const void* source, int valid) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async moves 4, 8 or 16 bytes");
    const unsigned address = shared_address(target);
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source), "r"(valid)
                     : "memory");
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

// ---- Between blocks -----------------------------------------------------------------------------------------------

// blockIdx.x, read each time: a compiler that knew the answers to be the same would keep what follows from them.
__device__ __forceinline__ unsigned block_index() {
    unsigned index;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
    return index;
}

// Adds 1 and gives what was there. What this block's threads stored before a barrier in front of this is seen by
// whoever takes a later ticket, and by its block behind a barrier after that.
__device__ __forceinline__ unsigned take_ticket(unsigned* counter) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

// ---- Tensor cores (sm_80). All 32 lanes take part in each of these. -----------------------------------------------
//
// A matrix of 8 x 8 16-bit elements is one register of each lane: lane l holds row l / 4, columns 2 (l % 4) and the
// next.

// Four such matrices from shared memory. Lane l gives the address of row l % 8 of matrix l / 8, 16 bytes, aligned to
// them.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&matrices)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same, each matrix transposed on its way.
__device__ __forceinline__ void ldmatrix_x4_transposed(unsigned (&matrices)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// d += A B, A 16 x 16, B 16 x 8, d 16 x 8 in fp32. A is four 8 x 8 matrices: upper left, lower left, upper right, lower
// right. B is two, upper and lower, each transposed. Lane l has d's row l / 4 in d[0] and d[1], row l / 4 + 8 in d[2]
// and d[3], columns 2 (l % 4) and the next.
__device__ __forceinline__ void mma_fp16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// What lane (own lane) ^ mask gives. All 32 lanes take part.
__device__ __forceinline__ float shuffle_xor(float x, int mask) {
    float y;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(y) : "f"(x), "r"(mask));
    return y;
}
