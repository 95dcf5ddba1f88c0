// Level 3, tiled: what a block needs it reads once, into shared memory.
//
// The block of a 32 x 32 tile of D walks K in steps of 32. In each, its threads fetch 32 x 32 of A and of B, every
// element once, and then multiply out of shared memory, where each element serves 32 outputs. A thread computes four
// outputs of a column, so that an element of B that it holds serves four times.
//
// Two barriers a step: after the tiles are filled, so that nobody reads what is not there yet; and after they are used,
// so that nobody overwrites what another thread still reads. Without the second the kernel is right on most days.
//
// Arithmetic intensity. A step is 2 * 32^3 FLOP for 2 * 32^2 * 4 bytes: B / 4 = 8 FLOP a byte for a tile of B = 32.
// Global loads fall from 2 N^3 elements to 2 N^3 / B: at N = 4096 from 549 GB to 17.2 GB. The ridge, 20 FLOP a byte on
// an H100, would take B = 80; L2 provides much of the rest.
//
// Edges are filled with zeros, which add nothing to a sum: the loop has no special cases, and every thread, also one
// whose outputs lie outside of D, helps to fill the tiles and meets every barrier.
//
// In the profiler: bytes of global loads at L1 equal 2 N^3 / 32 elements; shared memory's pipe leads now, since a FMA
// takes more than one word from it; no bank conflicts: a warp reads one word of A (a broadcast) or 32 neighbours of B.
#include "common.cuh"

constexpr int Y = THREADS / TILE_N;    // rows of threads
constexpr int ROWS = TILE_M / Y;       // outputs of a thread
static_assert(TILE_M == TILE_K && TILE_N == TILE_K, "one loop fills both tiles");

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(const Arguments args) {
    __shared__ __align__(16) float a_tile[TILE_M][TILE_K];
    __shared__ __align__(16) float b_tile[TILE_K][TILE_N];

    const Tile tile = tile_of_block(args);
    const int x = threadIdx.x, y = threadIdx.y;
    float sums[ROWS] = {};
    for (int k = 0; k < args.k; k += TILE_K) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int i = y + r * Y, row = tile.row + i, column = tile.column + x;
            a_tile[i][x] = row < args.m && k + x < args.k ? to_fp32(args.a[row * args.lda + k + x]) : 0.0f;
            b_tile[i][x] = k + i < args.k && column < args.n ? to_fp32(args.b[(k + i) * args.ldb + column]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE_K; ++i) {
            const float b = b_tile[i][x];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) sums[r] += a_tile[y + r * Y][i] * b;
        }
        __syncthreads();
    }

    const Epilogue epilogue(args.epilogue);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const float sum[1] = {sums[r]};
        write(args, epilogue, tile.row + y + r * Y, tile.column + x, sum);
    }
}
