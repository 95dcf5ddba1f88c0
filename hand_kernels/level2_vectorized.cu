// Level 2, vectorized: several outputs a thread, 16 bytes a load, and loads that do not wait for one another.
//
// A thread computes four neighbouring outputs. One read of A now serves four of them, and what it reads are 16 bytes
// at a time (8 of a 16-bit type): four k of A, four columns of B. An instruction that moves 16 bytes a lane costs one
// issue slot where four would have cost four, and asks for 512 bytes a warp.
//
// What is asked for at once is what counts: bytes under way are bandwidth times latency. The five loads of four k stand
// together, none behind a condition, so that all are under way before the first product. Were the question whether all
// four columns exist asked at each load, each would be waited for before the next is asked for: it is asked once, and
// the threads at D's edge, where columns are missing, take the loop for what K leaves over.
//
// Arithmetic intensity. Four FMAs, 8 FLOP, take one element of A and four of B, 20 bytes: 0.4 FLOP a byte against 0.25.
// B is still read once for every row of D; for more the bytes have to wait for level 3.
//
// Why the layout of B matters. B is row-major: the four elements B[k][c .. c + 3] are neighbours, and belong to four
// outputs. Were B column-major, neighbours would be four k of one column, and a thread would best compute along K;
// lanes would then be a whole column apart. Each layout wants its own kernel, and where rows are not 16-byte aligned
// (B_ALIGN: the address and the pitch), neither can load so: this kernel then falls back to single elements.
//
// In the profiler: global load instructions down to less than a third of level 1's, sectors per request up to 16 for B
// (a full 512 bytes) at no waste, L1 busier than before, "long scoreboard" still the stall that leads.
#include "common.cuh"

constexpr int RUN = 4;  // columns of a thread, and steps along K at a time

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(const Arguments args) {
    const Tile tile = tile_of_block(args);
    const int row = tile.row + threadIdx.y, column = tile.column + RUN * threadIdx.x;
    if (row >= args.m || column >= args.n) return;

    const Element* a = args.a + row * args.lda;
    const Element* b = args.b + column;
    float sums[RUN] = {};
    int k = 0;
    if (column + RUN <= args.n) {
#pragma unroll UNROLL
        for (; k + RUN <= args.k; k += RUN) {
            float x[RUN], y[RUN][RUN];
            load_run<A_ALIGN>(a + k, RUN, x);
#pragma unroll
            for (int i = 0; i < RUN; ++i) load_run<B_ALIGN>(b + (k + i) * args.ldb, RUN, y[i]);
#pragma unroll
            for (int i = 0; i < RUN; ++i)
#pragma unroll
                for (int j = 0; j < RUN; ++j) sums[j] += x[i] * y[i][j];
        }
    }
    for (; k < args.k; ++k) {
        const float x = to_fp32(a[k]);
#pragma unroll
        for (int j = 0; j < RUN; ++j)
            if (column + j < args.n) sums[j] += x * to_fp32(b[k * args.ldb + j]);
    }
    write(args, Epilogue(args.epilogue), row, column, sums);
}
