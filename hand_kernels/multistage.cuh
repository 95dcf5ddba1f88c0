// The main loop of levels 8 and 9: level 7's with everything taken out of it that is not a copy, a load or a product.
#pragma once
#include "mma.cuh"

constexpr int BLOCKS_K = TILE_K / MMA_K;  // products' depths in a step
static_assert(BLOCKS_K % 2 == 0, "fragments of two depths take turns");

// A thread's share of copying: the same chunks of every step's tiles. Its passes are whole periods of the swizzle
// apart, so that one place and one address, and constants added to them, are all there is to compute.
struct Copier {
    static constexpr int A_ROWS = THREADS / A_CHUNKS, B_ROWS = THREADS / B_CHUNKS;  // of one pass
    static constexpr int A_COPIES = TILE_M / A_ROWS, COPIES = A_COPIES + TILE_K / B_ROWS;
    static_assert(A_ROWS % 8 == 0 && B_ROWS % 8 == 0, "every pass has the same order of chunks");

    const Element *a, *b;  // the thread's first elements in the tiles of step 0
    long long lda, ldb;
    int a_place, b_place;       // where the first go
    int rows, columns;          // of A and B, from the thread's first on
    int a_first, b_first, k;    // its first k in a step of each, and how much there is of K

    // Steps are counted from `start` of K on.
    INLINE Copier(const Arguments& args, const Tile& tile, int start = 0)
        : lda(args.lda), ldb(args.ldb), k(args.k - start) {
        const int a_row = threadIdx.x / A_CHUNKS, a_chunk = threadIdx.x % A_CHUNKS;
        const int b_row = threadIdx.x / B_CHUNKS, b_chunk = threadIdx.x % B_CHUNKS;
        a = args.a + (tile.row + a_row) * args.lda + start + a_chunk * PER;
        b = args.b + (start + b_row) * args.ldb + tile.column + b_chunk * PER;
        a_place = ATile::place(a_row, a_chunk);
        b_place = BTile::place(b_row, b_chunk);
        rows = args.m - tile.row - a_row;
        columns = args.n - tile.column - b_chunk * PER;
        a_first = a_chunk * PER;
        b_first = b_row;
    }

    // Start copying number `i` of the thread's chunks of `step`, from addresses of that step. EDGES: the tile
    // may reach over A's rows and B's columns; TAIL: the step may reach over K.
    template <bool EDGES, bool TAIL>
    INLINE void copy(int i, const Element* step_a, const Element* step_b, int step, Stage& stage) const {
        if (i < A_COPIES) {
            const int row = i * A_ROWS;
            const int left = TAIL ? k - step * TILE_K - a_first : PER;
            const bool exists = !EDGES || row < rows;
            copy_chunk<A_ALIGN>(&stage.a[a_place + row * A_CHUNKS], step_a + row * lda, exists ? left : 0);
        } else {
            const int row = (i - A_COPIES) * B_ROWS;
            const bool exists = !TAIL || step * TILE_K + b_first + row < k;
            copy_chunk<B_ALIGN>(&stage.b[b_place + row * B_CHUNKS], step_b + row * ldb,
                                exists ? (EDGES ? columns : PER) : 0);
        }
    }

    // A part of a step's copies, the `part`th of PARTS. Chunks that are copied in pieces take a loop: all their
    // addresses at once would leave no registers for the fragments.
    template <bool EDGES, bool TAIL, int PARTS = 1>
    INLINE void start(int step, Stage& stage, int part = 0) const {
        const Element* step_a = a + step * static_cast<long long>(TILE_K);
        const Element* step_b = b + step * TILE_K * ldb;
        constexpr int UNROLL = A_ALIGN >= 16 && B_ALIGN >= 16 ? COPIES : 1;
#pragma unroll UNROLL
        for (int i = part * COPIES / PARTS; i < (part + 1) * COPIES / PARTS; ++i)
            copy<EDGES, TAIL>(i, step_a, step_b, step, stage);
    }
};

// The sums over the copier's first `steps` steps along K; the last of them may reach over K if EDGES.
//
//   before    the last step and the first STAGES - 2, a group of copies each
//   turn t    for each depth of 16: load the next one's fragments, copy a part of step t + STAGES - 2, multiply this
//             before the last depth: wait for the next turn's group; barrier
//
// That the step which may end past K is copied first, and computed first, keeps its predicates out of the loop.
// Fragments are loaded while others are multiplied, also across the end of a step: the barrier stands before the last
// depth, whose fragments are in registers by then. It says that the next step is there for all, and that all have read
// this one.
template <bool EDGES>
INLINE void multistage(const Copier& copier, Stage* stages, const Warp& warp, int steps, Sums& sums) {
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s == 0) {
            if (steps > 0) copier.start<EDGES, EDGES>(steps - 1, stages[0]);
        } else if (s < steps) {
            copier.start<EDGES, false>(s - 1, stages[s]);
        }
        cp_async_commit();
    }
    cp_async_wait<STAGES - 2>();
    __syncthreads();

    int reading = 0, writing = STAGES - 1;
    Fragments fragments[2];
    if (steps > 0) load(fragments[0], stages[0], warp, 0);
#pragma unroll 1
    for (int turn = 0; turn < steps; ++turn) {
        const int next = turn + STAGES - 1;  // the turn whose step is copied now
#pragma unroll
        for (int block = 0; block < BLOCKS_K; ++block) {
            if (block == BLOCKS_K - 1) {
                cp_async_wait<STAGES - 2>();
                __syncthreads();
                writing = reading;
                reading = reading + 1 == STAGES ? 0 : reading + 1;
            }
            load(fragments[(block + 1) % 2], stages[reading], warp, (block + 1) % BLOCKS_K * MMA_K);
            if (block < BLOCKS_K - 1) {
                if (next < steps) copier.start<EDGES, false, BLOCKS_K - 1>(next - 1, stages[writing], block);
                if (block == BLOCKS_K - 2) cp_async_commit();
            }
            multiply(fragments[block % 2], sums);
        }
    }
}
