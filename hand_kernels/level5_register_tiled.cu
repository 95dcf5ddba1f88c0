// Level 5, register-tiled: 8 x 8 outputs a thread, and the next step on its way while this one is computed.
//
// Registers are the one memory that keeps up with the FMA units. A thread takes 8 elements of A and 8 of B into
// registers and makes 64 products of them: 16 words for 64 FMAs, where level 4 takes 9 for 8.
//
//   block    128 x 128 of D, 256 threads, 8 warps as 4 x 2
//   warp     32 x 64, its lanes as 4 x 8
//   thread   rows 4 apart, columns in runs of 16 bytes: neighbouring lanes read neighbouring chunks
//
// Along K a step is 64 bytes of a row. A's tile stays as it is in global memory: a thread reads a chunk, several k of
// one row, so that nothing has to be transposed and cp.async can copy it. Tiles keep the elements' own type; 16-bit
// ones are widened in registers.
//
// Double buffering. cp.async copies from global to shared memory without a detour through registers and without
// waiting:
//   wait for step t; barrier; start copying step t + 1; compute step t
// One barrier is enough: it says both that step t is there for all, and that all are done with step t - 1, whose place
// step t + 1 takes. The copy has the whole of the computation, some thousand clocks, to arrive.
//
// Arithmetic intensity. From global memory 128 / 4 = 32 FLOP a byte, beyond the ridge of an H100 (20). From shared
// memory 2 * 64 FLOP for 64 bytes, 2 FLOP a byte: an SM does 128 FMAs a clock and reads 128 bytes, so here too the
// ridge is near, and 8 x 8 is the least tile that can work. A larger one wants more registers than two blocks have.
//
// In the profiler: the FMA pipe leads; no bank conflicts in reads; few stalls for barriers; registers, up to 128 a
// thread, set the occupancy, at 16 warps an SM.
#include "common.cuh"
#include "layouts.cuh"

constexpr int PER = PER_CHUNK<Element>;                    // elements of a chunk: 4 of fp32, 8 of 16 bits
constexpr int A_PER = A_BYTES / int(sizeof(Element));       // k that a thread has of A's rows at a time
constexpr int LANES_M = 4, LANES_N = 8;
constexpr int WARP_M = THREAD_M * LANES_M, WARP_N = THREAD_N * LANES_N;
constexpr int WARPS_N = TILE_N / WARP_N;
constexpr int RUNS = THREAD_N / PER;                       // chunks of B for a thread and k
constexpr int A_CHUNKS = 4, B_CHUNKS = TILE_N / PER;       // of a row of each tile
static_assert(TILE_K == A_CHUNKS * PER, "a row of A's tile is 64 bytes");
static_assert(TILE_M / WARP_M * WARPS_N * 32 == THREADS && RUNS * PER == THREAD_N, "warps cover the tile");

struct Stage {
    Chunk a[TILE_M * A_CHUNKS];
    Chunk b[TILE_K * B_CHUNKS];
};

// A thread's share of copying: the same rows and chunks of every step's tiles. What lies outside of A and B becomes 0.
struct Copier {
    static constexpr int A_ROWS = THREADS / A_CHUNKS, B_ROWS = THREADS / B_CHUNKS;  // rows that one pass copies
    const Arguments& args;
    const int a_row, a_chunk, b_row, b_chunk;
    const int rows, columns;  // of A and B, from this thread's first on
    const Element *a, *b;     // this thread's first elements of the next step
    int depth;                // how much of K is left

    INLINE Copier(const Arguments& args, const Tile& tile)
        : args(args),
          a_row(threadIdx.x / A_CHUNKS),
          a_chunk(threadIdx.x % A_CHUNKS),
          b_row(threadIdx.x / B_CHUNKS),
          b_chunk(threadIdx.x % B_CHUNKS),
          rows(args.m - tile.row - a_row),
          columns(args.n - tile.column - b_chunk * PER),
          a(args.a + (tile.row + a_row) * args.lda + a_chunk * PER),
          b(args.b + b_row * args.ldb + tile.column + b_chunk * PER),
          depth(args.k) {}

    INLINE void start(Stage& stage) {
#pragma unroll
        for (int row = 0; row < TILE_M; row += A_ROWS)
            copy_chunk<A_ALIGN>(&stage.a[SwizzledRows<A_CHUNKS>::place(a_row + row, a_chunk)], a + row * args.lda,
                                row < rows ? depth - a_chunk * PER : 0);
#pragma unroll
        for (int row = 0; row < TILE_K; row += B_ROWS)
            copy_chunk<B_ALIGN>(&stage.b[(b_row + row) * B_CHUNKS + b_chunk], b + row * args.ldb,
                                b_row + row < depth ? columns : 0);
        cp_async_commit();
        a += TILE_K;
        b += TILE_K * args.ldb;
        depth -= TILE_K;
    }
};

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
    const int row = warp / WARPS_N * WARP_M + lane / LANES_N;                // the thread's first row in the tile
    const int chunk = warp % WARPS_N * (WARP_N / PER) + lane % LANES_N;      // its first chunk of columns

    float sums[THREAD_M][RUNS][PER] = {};
    const int steps = (args.k + TILE_K - 1) / TILE_K;
    Copier copier(args, tile);
    if (steps > 0) copier.start(stages[0]);
    for (int step = 0; step < steps; ++step) {
        cp_async_wait<0>();
        __syncthreads();
        if (step + 1 < steps) copier.start(stages[(step + 1) % STAGES]);

        const Stage& stage = stages[step % STAGES];
#pragma unroll UNROLL
        for (int k = 0; k < TILE_K; k += A_PER) {
            Chunk a[THREAD_M];
#pragma unroll
            for (int i = 0; i < THREAD_M; ++i) {
                const Chunk& chunk = stage.a[SwizzledRows<A_CHUNKS>::place(row + i * LANES_M, k / PER)];
                a[i] = chunk_at<A_BYTES>(&chunk.words[k % PER * sizeof(Element) / 4]);
            }
#pragma unroll
            for (int j = 0; j < A_PER; ++j) {
                Chunk b[RUNS];
#pragma unroll
                for (int r = 0; r < RUNS; ++r) b[r] = stage.b[(k + j) * B_CHUNKS + chunk + r * LANES_N];
                multiply(a, b, j, sums);
            }
        }
    }

    const Epilogue epilogue(args.epilogue);
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
        for (int r = 0; r < RUNS; ++r)
            write(args, epilogue, tile.row + row + i * LANES_M, tile.column + (chunk + r * LANES_N) * PER, sums[i][r]);
}
