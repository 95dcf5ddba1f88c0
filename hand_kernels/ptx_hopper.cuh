// Hopper's own PTX (sm_90a), each instruction wrapped once as in `ptx.cuh`: clusters, mbarriers, TMA and wgmma.
#pragma once
#include "ptx.cuh"

// ---- Clusters: blocks on neighbouring SMs, which reach each other's shared memory ---------------------------------

// This block's number in its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// A barrier of all threads of all blocks of the cluster. The threads of a warp may come one by one.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// ---- Registers: a warpgroup's 128 threads give them back, or take what others gave. All 128 take part. ------------

template <int COUNT>
__device__ __forceinline__ void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- mbarriers: 64 bits of shared memory that count arrivals, and bytes that are yet to come ----------------------
//
// A phase ends when as many threads have arrived as the barrier was made for, and all the bytes that were announced are
// there; then the next one begins. Phases have parities, 0 for the first.

using Barrier = unsigned long long;

__device__ __forceinline__ void barrier_init(Barrier& barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

// What this thread has initialised is so for the copy engine and, behind a `cluster_sync`, for the whole cluster.
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Announces `bytes` and arrives.
__device__ __forceinline__ void barrier_expect(Barrier& barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
                 : "memory");
}

// Arrives at the barrier which lies in the shared memory of block `rank` where `barrier` lies in this one's.
__device__ __forceinline__ void barrier_arrive(Barrier& barrier, unsigned rank) {
    asm volatile("{\n\t"
                 ".reg .b32 there;\n\t"
                 "mapa.shared::cluster.u32 there, %0, %1;\n\t"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t"
                 "}" ::"r"(shared_address(&barrier)),
                 "r"(rank)
                 : "memory");
}

// Waits for the end of the phase of parity `parity`, unless the one after it is the present one already. Of a fresh
// barrier the phase of parity 1 counts as over.
__device__ __forceinline__ void barrier_wait(Barrier& barrier, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{\n\t"
                     ".reg .pred over;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, over;\n\t"
                     "}"
                     : "=r"(done)
                     : "r"(shared_address(&barrier)), "r"(parity)
                     : "memory");
    } while (!done);
}

// ---- TMA: one thread asks, a unit of the SM copies a box of a matrix and counts its bytes at an mbarrier ----------

// What the driver's cuTensorMapEncodeTiled makes of a matrix: address, sizes, pitch, box, swizzle.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

__device__ __forceinline__ void prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The box whose first element is (row, column); what of it lies outside the matrix arrives as zeros, and is counted.
__device__ __forceinline__ void tma_load(void* target, const TensorMap& map, int row, int column, Barrier& barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
                 "[%4];" ::"r"(shared_address(target)),
                 "l"(&map), "r"(column), "r"(row), "r"(shared_address(&barrier))
                 : "memory");
}

// The same, to the same place in each block of the cluster whose bit is set in `blocks`, counted at that one's barrier.
__device__ __forceinline__ void tma_load(void* target, const TensorMap& map, int row, int column, Barrier& barrier,
                                         unsigned short blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(target)),
                 "l"(&map), "r"(column), "r"(row), "r"(shared_address(&barrier)), "h"(blocks)
                 : "memory");
}

// ---- wgmma: tensor cores that read shared memory themselves. All 128 threads of a warpgroup take part. ------------

// The registers of sums may be read and written by the products that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Everything this warpgroup has multiplied since the last commit becomes one group.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING of this warpgroup's groups are under way.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// d = A B (+ d if `add`): A 64 x 16 with k contiguous, B 16 x 256 with columns contiguous, by their descriptors
// (`layouts.cuh`). Warp w of the group has rows 16 w to 16 w + 15, and d[j] is its 16 x 8 sums of columns 8 j on, dealt
// out to lanes as by mma.sync. d is there after `wgmma_wait`; until then no one may touch it.
#define SUMS4(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define SUMS16(j) SUMS4(j), SUMS4(j + 1), SUMS4(j + 2), SUMS4(j + 3)
#define SUMS64(j) SUMS16(j), SUMS16(j + 4), SUMS16(j + 8), SUMS16(j + 12)
// Immediates: A and B as they are, not negated; A not transposed, B transposed (columns contiguous).
#define WGMMA_64x256x16(NAME, TYPE)                                                                                   \
    __device__ __forceinline__ void NAME(float (&d)[32][4], unsigned long long a, unsigned long long b, int add) {    \
        asm volatile("{\n\t"                                                                                          \
                     ".reg .pred add;\n\t"                                                                            \
                     "setp.ne.b32 add, %130, 0;\n\t"                                                                  \
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {"                                \
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                         \
                     "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "               \
                     "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "               \
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "               \
                     "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "               \
                     "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "               \
                     "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "   \
                     "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "     \
                     "%127}, %128, %129, add, 1, 1, 0, 1;\n\t"                                                        \
                     "}"                                                                                              \
                     : SUMS64(0), SUMS64(16)                                                                          \
                     : "l"(a), "l"(b), "r"(add));                                                                     \
    }
WGMMA_64x256x16(wgmma_fp16, "f16")
WGMMA_64x256x16(wgmma_bf16, "bf16")
#undef WGMMA_64x256x16
#undef SUMS64
#undef SUMS16
#undef SUMS4
