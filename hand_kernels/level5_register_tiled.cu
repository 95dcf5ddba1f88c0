// Level 5, register-tiled: 8 x 16 outputs a thread, and the next step on its way while this one is computed.
//
// Registers are the one memory that keeps up with the FMA units. A thread takes 8 elements of A and 16 of B into
// registers and makes 128 products of them: 24 words for 128 FMAs, where level 4 takes 9 for 8.
//
//   block    128 x 128 of D, 128 threads, 4 warps as 2 x 2
//   warp     64 x 64, its lanes as 8 x 4
//   thread   rows 8 apart, columns in runs of 16 bytes: neighbouring lanes read neighbouring chunks
//
// Along K a step is 32 bytes of a row. A's tile stays as it is in global memory: a thread reads half a chunk, several k
// of one row, so that nothing has to be transposed and cp.async can copy it. Tiles keep the elements' own type; 16-bit
// ones are widened in registers.
//
// Double buffering, twice. cp.async copies from global to shared memory without a detour through registers and without
// waiting, and what the next k takes is read from shared memory while this one's products are made:
//   for each k of step t: read the next one's elements, multiply this one's
//   for its last k: wait for step t + 1; barrier; read the elements of its first k; start copying step t + 2; multiply
// One barrier is enough: it says both that step t + 1 is there for all, and that all have read what they need of step
// t, whose place step t + 2 takes. The copy has the whole of a step, some thousand clocks, to arrive.
//
// Arithmetic intensity. From global memory 128 / 4 = 32 FLOP a byte, beyond the ridge of an H100 (20). From shared
// memory 2 * 128 FLOP for 96 bytes, 2.7 FLOP a byte: an SM does 128 FMAs a clock and reads 128 bytes, a ridge of 2, so
// that shared memory is busy three quarters of the time. With 8 x 8 outputs, the variant `level5-square`, it would have
// to be busy all of it. More than 8 x 16 do not fit: their sums alone take 128 of the 255 registers of a thread.
//
// In the profiler: the FMA pipe leads; no bank conflicts in reads; few stalls for barriers; registers set the
// occupancy, at 8 warps an SM.
#include "common.cuh"
#include "layouts.cuh"

constexpr int PER = PER_CHUNK<Element>;                // elements of a chunk: 4 of fp32, 8 of 16 bits
constexpr int A_PER = A_BYTES / int(sizeof(Element));  // k that a thread has of A's rows at a time
constexpr int LANES_M = 8, LANES_N = 4;
constexpr int WARP_M = THREAD_M * LANES_M, WARP_N = THREAD_N * LANES_N;
constexpr int WARPS_N = TILE_N / WARP_N;
constexpr int RUNS = THREAD_N / PER;                             // chunks of B for a thread and k
constexpr int A_CHUNKS = TILE_K / PER, B_CHUNKS = TILE_N / PER;  // of a row of each tile
static_assert(TILE_M / WARP_M * WARPS_N * 32 == THREADS && RUNS * PER == THREAD_N, "warps cover the tile");
static_assert(TILE_K / A_PER % 2 == 0, "elements of this k and of the next take turns, across steps too");

using ATile = SwizzledRows<A_CHUNKS>;  // lanes read the same chunk of eight rows

struct Stage {
    Chunk a[TILE_M * A_CHUNKS];
    Chunk b[TILE_K * B_CHUNKS];
};

// A thread's share of copying: the same rows and chunks of every step's tiles. What lies outside of A and B becomes 0.
struct Copier {
    static constexpr int A_ROWS = THREADS / A_CHUNKS, B_ROWS = THREADS / B_CHUNKS;  // rows that one pass copies
    static_assert(A_ROWS % 8 == 0, "every pass has the same order of chunks");

    const Element *a, *b;      // this thread's first elements of the next step
    long long lda, ldb;
    int a_place, b_place;      // where they go
    int a_first, b_first;      // which k of the step they are
    int rows, columns, depth;  // how much of A's rows, of B's columns and of K there is from there on
    bool inside;               // all of the block's tile is in D

    INLINE Copier(const Arguments& args, const Tile& tile) : lda(args.lda), ldb(args.ldb), depth(args.k) {
        const int a_row = threadIdx.x / A_CHUNKS, a_chunk = threadIdx.x % A_CHUNKS;
        const int b_row = threadIdx.x / B_CHUNKS, b_chunk = threadIdx.x % B_CHUNKS;
        a = args.a + (tile.row + a_row) * lda + a_chunk * PER;
        b = args.b + b_row * ldb + tile.column + b_chunk * PER;
        a_place = ATile::place(a_row, a_chunk);
        b_place = b_row * B_CHUNKS + b_chunk;
        a_first = a_chunk * PER;
        b_first = b_row;
        rows = args.m - tile.row - a_row;
        columns = args.n - tile.column - b_chunk * PER;
        inside = args.m - tile.row >= TILE_M && args.n - tile.column >= TILE_N;
    }

    // WHOLE: there is all of the step's tiles, and nothing to compare.
    template <bool WHOLE>
    INLINE void copy(Stage& stage) const {
#pragma unroll
        for (int row = 0; row < TILE_M; row += A_ROWS) {
            const int valid = row < rows ? depth - a_first : 0;
            copy_chunk<A_ALIGN>(&stage.a[a_place + row * A_CHUNKS], a + row * lda, WHOLE ? PER : valid);
        }
#pragma unroll
        for (int row = 0; row < TILE_K; row += B_ROWS) {
            const int valid = b_first + row < depth ? columns : 0;
            copy_chunk<B_ALIGN>(&stage.b[b_place + row * B_CHUNKS], b + row * ldb, WHOLE ? PER : valid);
        }
    }

    // Start copying the next step, if there is one, as a group.
    INLINE void start(Stage& stage) {
        if (inside && depth >= TILE_K)
            copy<true>(stage);
        else if (depth > 0)
            copy<false>(stage);
        cp_async_commit();
        a += TILE_K;
        b += TILE_K * ldb;
        depth -= TILE_K;
    }
};

// A_PER of K of the thread's rows, from `k` on.
INLINE void load_a(Chunk (&a)[THREAD_M], const Stage& stage, int row, int k) {
    const unsigned* words = &stage.a[ATile::place(row, k / PER)].words[k % PER * sizeof(Element) / 4];
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) a[i] = chunk_at<A_BYTES>(words + i * LANES_M * A_CHUNKS * 4);
}

// The thread's columns of row `k` of B.
INLINE void load_b(Chunk (&b)[RUNS], const Stage& stage, int chunk, int k) {
#pragma unroll
    for (int r = 0; r < RUNS; ++r) b[r] = stage.b[k * B_CHUNKS + chunk + r * LANES_N];
}

// The outer product of A's element `k` of each row and a row of B.
INLINE void multiply(const Chunk (&a)[THREAD_M], const Chunk (&b)[RUNS], int k, float (&sums)[THREAD_M][RUNS][PER]) {
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const float x = element<Element>(a[i], k);
#pragma unroll
        for (int r = 0; r < RUNS; ++r)
#pragma unroll
            for (int j = 0; j < PER; ++j) sums[i][r][j] += x * element<Element>(b[r], j);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) KERNEL(const Arguments args) {
    __shared__ Stage stages[STAGES];

    const Tile tile = tile_of_block(args);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / WARPS_N * WARP_M + lane / LANES_N;            // the thread's first row in the tile
    const int chunk = warp % WARPS_N * (WARP_N / PER) + lane % LANES_N;  // its first chunk of columns

    Copier copier(args, tile);
#pragma unroll
    for (int s = 0; s < STAGES; ++s) copier.start(stages[s]);
    cp_async_wait<STAGES - 1>();
    __syncthreads();

    float sums[THREAD_M][RUNS][PER] = {};
    Chunk a[2][THREAD_M], b[2][RUNS];
    load_a(a[0], stages[0], row, 0);
    load_b(b[0], stages[0], chunk, 0);
    const int steps = (args.k + TILE_K - 1) / TILE_K;
    int reading = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        Stage& stage = stages[reading];
        reading = reading + 1 == STAGES ? 0 : reading + 1;
#pragma unroll
        for (int k = 0; k < TILE_K; ++k) {
            const bool last = k == TILE_K - 1;
            if (last) {
                cp_async_wait<STAGES - 2>();
                __syncthreads();
            }
            const int next = last ? 0 : k + 1;
            const Stage& from = last ? stages[reading] : stage;
            if (next % A_PER == 0) load_a(a[next / A_PER % 2], from, row, next);
            load_b(b[next % 2], from, chunk, next);
            if (last) copier.start(stage);
            multiply(a[k / A_PER % 2], b[k % 2], k % A_PER, sums);
        }
    }

    const Epilogue epilogue(args.epilogue);
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
        for (int r = 0; r < RUNS; ++r)
            write(args, epilogue, tile.row + row + i * LANES_M, tile.column + (chunk + r * LANES_N) * PER, sums[i][r]);
}
