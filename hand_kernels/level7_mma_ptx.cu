// Level 7, mma_ptx: the tensor cores by their own instructions, and several steps on their way at once.
//
// wmma keeps to itself which lane holds what, and so its loads can't be told how memory lies, nor its sums what column
// they are. Here ldmatrix loads fragments and mma.sync multiplies them:
//   - a fragment of A (16 x 16) is one ldmatrix instead of a handful of loads, without a conflict: tiles are swizzled,
//     not padded (`SwizzledRows`), so that rows stay powers of two and stages pack;
//   - a lane knows its sums' rows and columns, so they go to D from registers, where four lanes exchange eight columns
//     by shuffles first: whole 16-byte stores, no shared memory, no barrier.
//
//   block    128 x 128 of D, 256 threads, 8 warps as 4 x 2
//   warp     32 x 64: 2 x 8 products of mma.sync m16n8k16
//   step     32 of K, two products deep
//
// Multistage. Double buffering gives a copy the time of one step to arrive, and a step of a tensor core is short: 2 *
// 128 * 128 * 32 FLOP take an H100's SM 256 clocks at its peak of 4096 FLOP a clock, less than DRAM takes
// to answer. With STAGES buffers, STAGES - 1 steps are under way:
//   wait for step t; barrier; start copying step t + STAGES - 1; compute step t
// Each turn commits one group of copies, if an empty one, so that "all but STAGES - 2 groups" always means step t.
//
// Arithmetic intensity. From global memory 64 FLOP a byte, as in level 6. From shared memory a warp reads 32 + 64 rows
// of k for 32 x 64 products: 2 * 32 * 64 / (2 * (32 + 64)) = 21 FLOP a byte. An SM reads 128 bytes a clock: the peak's
// 4096 FLOP would take 32 FLOP a byte, and the part of it that mma.sync reaches somewhat less. Larger warp tiles are
// for level 8.
//
// In the profiler: no bank conflicts at all; the tensor pipe above half; fewer "long scoreboard" stalls than level 6's,
// and "math pipe throttle" among those that lead.
#include "mma.cuh"

// Start copying a step's tiles; what lies outside of A and B becomes 0.
INLINE void copy_step(const Arguments& args, const Tile& tile, int k, Stage& stage) {
#pragma unroll
    for (int pass = 0; pass < TILE_M * A_CHUNKS / THREADS; ++pass) {
        const int i = pass * THREADS + threadIdx.x;
        const int row = i / A_CHUNKS, chunk = i % A_CHUNKS;
        const int valid = tile.row + row < args.m ? args.k - k - chunk * PER : 0;
        const Element* source = args.a + (tile.row + row) * args.lda + k + chunk * PER;
        copy_chunk<A_ALIGN>(&stage.a[ATile::place(row, chunk)], source, valid);
    }
#pragma unroll
    for (int pass = 0; pass < TILE_K * B_CHUNKS / THREADS; ++pass) {
        const int i = pass * THREADS + threadIdx.x;
        const int row = i / B_CHUNKS, chunk = i % B_CHUNKS;
        const int valid = k + row < args.k ? args.n - tile.column - chunk * PER : 0;
        const Element* source = args.b + (k + row) * args.ldb + tile.column + chunk * PER;
        copy_chunk<B_ALIGN>(&stage.b[BTile::place(row, chunk)], source, valid);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) KERNEL(const Arguments args) {
    Stage* stages = reinterpret_cast<Stage*>(dynamic_shared_memory());

    const Tile tile = tile_of_block(args);
    const Warp warp;
    Sums sums = {};
    const int steps = (args.k + TILE_K - 1) / TILE_K;
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) {
        if (step < steps) copy_step(args, tile, step * TILE_K, stages[step]);
        cp_async_commit();
    }
    for (int step = 0; step < steps; ++step) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        const int next = step + STAGES - 1;
        if (next < steps) copy_step(args, tile, next * TILE_K, stages[next % STAGES]);
        cp_async_commit();

        const Stage& stage = stages[step % STAGES];
#pragma unroll
        for (int k = 0; k < TILE_K; k += MMA_K) {
            Fragments fragments;
            load(fragments, stage, warp, k);
            multiply(fragments, sums);
        }
    }
    write(args, tile, warp, sums);
}
