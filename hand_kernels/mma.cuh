// What levels 7 to 9 have in common: tiles in shared memory, a warp's part of them as fragments, and its sums' way to
// D.
//
// A block's warps share out its tile, WARP_M x WARP_N each. mma.sync multiplies 16 x 16 of A by 16 x 8 of B; which lane
// holds which element of these is fixed (`ptx.cuh`), and ldmatrix loads them so: four 8 x 8 matrices at once.
//   A  16 rows, 16 of k: lanes 0-15 give the rows' first 16 bytes, lanes 16-31 the second
//   B  16 of k, 16 columns, for two products: the same, transposed on the way, since B has k along its rows' order
#pragma once
#include "common.cuh"
#include "layouts.cuh"
#include "products.cuh"

constexpr int PER = PER_CHUNK<Element>;
constexpr int A_CHUNKS = TILE_K / PER, B_CHUNKS = TILE_N / PER;  // of a row of each tile
constexpr int MMA_M = 16, MMA_N = 8, MMA_K = 16;
constexpr int WARPS_M = TILE_M / WARP_M, WARPS_N = TILE_N / WARP_N;
static_assert(WARPS_M * WARPS_N * 32 == THREADS && WARPS_M * WARP_M == TILE_M && WARPS_N * WARP_N == TILE_N,
              "warps cover the tile");

using ATile = SwizzledRows<A_CHUNKS>;
using BTile = SwizzledRows<B_CHUNKS>;

struct Stage {
    Chunk a[TILE_M * A_CHUNKS];
    Chunk b[TILE_K * B_CHUNKS];
};

// Where a warp's part of the tile begins, and where a lane's first loads of it lie in a stage.
//
// From there on it is constants: other rows, a multiple of 8 away, have the same order of chunks, and in a row the
// chunk that is x further, where x meets no carry, lies at the place's exclusive or with x.
struct Warp {
    int row, column, a_place, b_place;

    INLINE Warp()
        : row(threadIdx.x / 32 / WARPS_N * WARP_M), column(threadIdx.x / 32 % WARPS_N * WARP_N) {
        const int lane_row = threadIdx.x % 16, half = threadIdx.x % 32 / 16;
        a_place = ATile::place(row + lane_row, half);
        b_place = BTile::place(lane_row, column / PER + half);
    }
};

// A lane's registers of A and B for MMA_K steps along K, and of the sums.
struct Fragments {
    unsigned a[WARP_M / MMA_M][4];
    unsigned b[WARP_N / 16][4];  // of two neighbouring products each
};
using Sums = float[WARP_M / MMA_M][WARP_N / MMA_N][4];

INLINE void load(Fragments& fragments, const Stage& stage, const Warp& warp, int k) {
    const Chunk* a = &stage.a[warp.a_place ^ k / PER];
#pragma unroll
    for (int i = 0; i < WARP_M / MMA_M; ++i) ldmatrix_x4(fragments.a[i], a + i * MMA_M * A_CHUNKS);
#pragma unroll
    for (int j = 0; j < WARP_N / 16; ++j)
        ldmatrix_x4_transposed(fragments.b[j], &stage.b[(warp.b_place ^ 2 * j) + k * B_CHUNKS]);
}

template <typename T>
INLINE void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);
template <>
INLINE void mma<fp16>(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_fp16(d, a, b0, b1);
}
template <>
INLINE void mma<bf16>(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_bf16(d, a, b0, b1);
}

INLINE void multiply(const Fragments& fragments, Sums& sums) {
#pragma unroll
    for (int i = 0; i < WARP_M / MMA_M; ++i)
#pragma unroll
        for (int j = 0; j < WARP_N / MMA_N; ++j) {
            const unsigned(&b)[4] = fragments.b[j / 2];
            mma<Element>(sums[i][j], fragments.a[i], b[2 * (j % 2)], b[2 * (j % 2) + 1]);
        }
}

// A warp's sums into D. Nothing may wait after it.
INLINE void write(const Arguments& args, const Tile& tile, const Warp& warp, const Sums& sums) {
    const Epilogue epilogue(args.epilogue);
#pragma unroll
    for (int i = 0; i < WARP_M / MMA_M; ++i)
        write_products(args, epilogue, tile.row + warp.row + i * MMA_M, tile.column + warp.column, sums[i]);
}
