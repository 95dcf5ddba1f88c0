// Level 4, bank-conflict-free: read shared memory 16 bytes at a time, and pay nothing for having written it so.
//
// Level 3 is bound by shared memory. Here a thread computes eight outputs of a column, so that a k costs it one word of
// B and eight of A: two 16-byte reads if A's eight rows are neighbours, that is, if A's tile lies transposed. But A
// comes with k along its rows, and a warp that transposes as it writes puts words a whole pitch apart: into the same
// bank, where the hardware writes them one after the other. `layouts.cuh` has the arithmetic and the two cures:
//   swizzle (level4)         permute the places within each k: no memory, no constraint on who copies what;
//   padding (level4-padded)  make rows longer: simple, costs memory, and parts only two of the eight words here, so
//                            that the copying has to be dealt out to suit.
// level4-conflicting has neither. A broadcast is not a conflict: all lanes of a warp read A's words together.
//
// Arithmetic intensity. Tiles of 64 x 64: 64 / 4 = 16 FLOP a byte from global memory. From shared memory, 8 FMAs take 9
// words in 3 reads, where level 3 takes 5 words, in 5 reads or two, for 4.
//
// In the profiler: shared-memory bank conflicts of stores, 7 for each in level4-conflicting and 0 in the others; the
// same global bytes in all; time differs by what the writes' share was. If level 3 to 4 is a tie on your GPU, look at
// the instruction mix: shared-memory reads per FMA have fallen, and something else leads.
#include "common.cuh"
#include "layouts.cuh"

using ATile = TransposedTile<TILE_M, TILE_K, PADDING, SWIZZLED>;

constexpr int ROWS = 8;                          // outputs of a thread, neighbours in a column
constexpr int B_PIECES_PER_ROW = TILE_N / 4;
static_assert(ATile::PIECES == THREADS && TILE_K * B_PIECES_PER_ROW == THREADS, "a thread copies one piece of each");
static_assert(TILE_N * (TILE_M / ROWS) == THREADS, "a thread for each column and each 8 rows");

extern "C" __global__ void __launch_bounds__(THREADS, 2) KERNEL(const Arguments args) {
    __shared__ __align__(16) float a_tile[ATile::WORDS];
    __shared__ __align__(16) float b_tile[TILE_K * TILE_N];

    const Tile tile = tile_of_block(args);
    const int x = threadIdx.x, first = ROWS * threadIdx.y;
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
    const int a_row = ATile::row_of(thread), a_k = ATile::k_of(thread);
    const int b_k = thread / B_PIECES_PER_ROW, b_column = thread % B_PIECES_PER_ROW * 4;
    const bool a_exists = tile.row + a_row < args.m;
    const Element* a = args.a + (tile.row + a_row) * args.lda + a_k;
    const Element* b = args.b + b_k * args.ldb + tile.column + b_column;

    float sums[ROWS] = {};
    for (int k = 0; k < args.k; k += TILE_K) {
        float piece[4] = {};
        if (a_exists) load_run<A_ALIGN>(a + k, args.k - k - a_k, piece);
#pragma unroll
        for (int i = 0; i < 4; ++i) a_tile[ATile::place(a_row, a_k + i)] = piece[i];

        float run[4] = {};
        if (k + b_k < args.k) load_run<B_ALIGN>(b + k * args.ldb, args.n - tile.column - b_column, run);
        *reinterpret_cast<float4*>(&b_tile[b_k * TILE_N + b_column]) = make_float4(run[0], run[1], run[2], run[3]);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE_K; ++i) {
            const float y = b_tile[i * TILE_N + x];
#pragma unroll
            for (int r = 0; r < ROWS; r += 4) {
                const float4 rows = *reinterpret_cast<const float4*>(&a_tile[ATile::place(first + r, i)]);
                sums[r] += rows.x * y;
                sums[r + 1] += rows.y * y;
                sums[r + 2] += rows.z * y;
                sums[r + 3] += rows.w * y;
            }
        }
        __syncthreads();
    }

    const Epilogue epilogue(args.epilogue);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const float sum[1] = {sums[r]};
        write(args, epilogue, tile.row + first + r, tile.column + x, sum);
    }
}
