// Level 1, naive: one thread computes one output.
//
// The thread of row r and column c walks K and adds up A[r][k] * B[k][c]. That is the whole kernel; it is the one that
// every other is checked against.
//
// Arithmetic intensity. A step along K is one FMA, 2 FLOP, for two loads of 4 bytes: 2 / 8 = 0.25 FLOP a byte. At M = N
// = K = 4096 the threads load 2 * 4096^3 * 4 bytes = 549 GB, of matrices that hold 0.2 GB. An H100 needs 66.9 TFLOP/s /
// 3.35 TB/s = 20 FLOP a byte to be busy: a kernel at 0.25 lives off its caches, and waits for them.
//
// How lanes map to outputs decides what a warp's load costs. With threadIdx.x along columns, the 32 lanes of a warp
// read
//   A[r][k]            one address: a broadcast, one sector of 32 bytes;
//   B[k][c .. c + 31]  128 neighbouring bytes: four whole sectors.
// (Texts that call the naive kernel's reads of B uncoalesced have x along rows in mind.) With x along rows, the variant
// `level1-uncoalesced`, lanes read A[r .. r + 31][k]: 32 rows, 32 sectors, 4 bytes of each used; and they write D so
// too.
//
// In the profiler: sectors per request of the global loads, 2.5 on average here (1 and 4) and 16.5 (32 and 1) in the
// variant; L1's throughput near its limit while the FMA pipe idles.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(const Arguments args) {
    const Tile tile = tile_of_block(args);
#ifdef X_ALONG_ROWS
    const int row = tile.row + threadIdx.x, column = tile.column + threadIdx.y;
#else
    const int row = tile.row + threadIdx.y, column = tile.column + threadIdx.x;
#endif
    if (row >= args.m || column >= args.n) return;

    const Element* a = args.a + row * args.lda;
    const Element* b = args.b + column;
    float sum[1] = {0.0f};
    for (int k = 0; k < args.k; ++k) sum[0] += to_fp32(a[k]) * to_fp32(b[k * args.ldb]);

    write(args, Epilogue(args.epilogue), row, column, sum);
}
