// Level 2, vectorized: several outputs a thread, 16 bytes a load.
//
// A thread computes four neighbouring outputs of two rows. One read of A now serves four of them, one of B two, and what
// it reads are 16 bytes at a time (8 of a 16-bit type): four k of A, four columns of B. An instruction that moves 16 bytes
// a lane costs one issue slot where four would have cost four, and asks for 512 bytes a warp, enough of them to cover more
// of the latency. With one row a thread those bytes would bring no more products with them than level 1's.
//
// Arithmetic intensity. Eight FMAs, 16 FLOP, take two elements of A and four of B, 24 bytes: 0.67 FLOP a byte against
// 0.25. B is still read once for every two rows of D; for more the bytes have to wait for level 3.
//
// Why the layout of B matters. B is row-major: the four elements B[k][c .. c + 3] are neighbours, and belong to four
// outputs. Were B column-major, neighbours would be four k of one column, and a thread would best compute along K;
// lanes would then be a whole column apart. Each layout wants its own kernel, and where rows are not 16-byte aligned
// (B_ALIGN: the address and the pitch), neither can load so: this kernel then falls back to single elements.
//
// In the profiler: global load instructions down to about a third of level 1's, sectors per request up to 16 for B (a
// full 512 bytes) at no waste, "long scoreboard" still the stall that leads.
#include "common.cuh"

constexpr int RUN = 4;   // columns of a thread, and steps along K at a time
constexpr int ROWS = 2;  // of a thread

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(const Arguments args) {
    const Tile tile = tile_of_block(args);
    const int row = tile.row + ROWS * threadIdx.y, column = tile.column + RUN * threadIdx.x;
    if (row >= args.m || column >= args.n) return;

    const Element* b = args.b + column;
    const Element* a[ROWS];
    float sums[ROWS][RUN] = {};
#pragma unroll
    for (int r = 0; r < ROWS; ++r) a[r] = args.a + min(row + r, args.m - 1) * args.lda;  // past M: the last row again
    int k = 0;
    for (; k + RUN <= args.k; k += RUN) {
        float x[ROWS][RUN];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) load_run<A_ALIGN>(a[r] + k, RUN, x[r]);
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            float y[RUN] = {};
            load_run<B_ALIGN>(b + (k + i) * args.ldb, args.n - column, y);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int j = 0; j < RUN; ++j) sums[r][j] += x[r][i] * y[j];
        }
    }
    for (; k < args.k; ++k) {  // what K leaves over
#pragma unroll
        for (int j = 0; j < RUN; ++j) {
            const float y = column + j < args.n ? to_fp32(b[k * args.ldb + j]) : 0;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) sums[r][j] += to_fp32(a[r][k]) * y;
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) write(args, Epilogue(args.epilogue), row + r, column, sums[r]);
}
