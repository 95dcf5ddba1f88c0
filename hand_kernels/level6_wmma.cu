// Level 6, wmma: the tensor cores, through nvcuda::wmma.
//
// A tensor core multiplies small matrices: a warp gives it 16 x 16 of A and of B and gets 16 x 16 sums, 4096 FMAs, in a
// few clocks. wmma keeps which lane holds which element to itself: fragments are loaded from memory, multiplied and
// stored as wholes. Inputs are fp16 or bf16, sums fp32.
//
//   block    128 x 128 of D, 256 threads, 8 warps as 4 x 2
//   warp     32 x 64: 2 x 4 accumulators of 16 x 16
//   step     32 of K, double-buffered by cp.async as in level 5
//
// Arithmetic intensity. 128 x 128 tiles of 2-byte elements: 2 * 128^2 / (2 * 128 * 2) = 64 FLOP a byte. That was plenty
// for CUDA cores; the tensor cores of an H100 do 989 TFLOP/s, whose ridge is at 295. L2 has to make up the difference.
//
// Rows in shared memory are 16 bytes longer than the tile's. Without that a fragment's rows, 64 bytes apart, would meet
// in the same banks; and a multiple of 16 bytes keeps every fragment aligned to the 32 bytes that loads of it demand.
//
// Why the sums go through shared memory. An epilogue needs to know an element's row and column, and wmma doesn't say
// which a lane holds. So each warp stores an accumulator to a patch of its own, and lanes read runs of 8 columns from
// it. Lanes write what other lanes read: a __syncwarp() belongs between (warps have not run in lockstep since Volta),
// and one after, before the patch is used again.
//
// In the profiler: the tensor pipe at about half; stalls for shared memory ("short scoreboard", "MIO throttle"): wmma's
// loads are not the ldmatrix that level 7 writes by hand, and a k of 16 waits for its own loads.
#include <mma.h>

#include "common.cuh"

namespace wmma = nvcuda::wmma;

template <typename T>
struct Native;  // CUDA's type of the same bits
template <>
struct Native<fp16> {
    using type = __half;
};
template <>
struct Native<bf16> {
    using type = __nv_bfloat16;
};
using Number = Native<Element>::type;

constexpr int FRAGMENT = 16;
constexpr int WARPS_N = 2, WARP_M = 32, WARP_N = 64;
constexpr int TILES_M = WARP_M / FRAGMENT, TILES_N = WARP_N / FRAGMENT;
constexpr int PER = PER_CHUNK<Element>;
constexpr int A_PITCH = TILE_K + PER, B_PITCH = TILE_N + PER;  // in elements
constexpr int RUN = 8, PATCH_PITCH = FRAGMENT + 4;             // of the epilogue
static_assert(TILE_M / WARP_M * WARPS_N * 32 == THREADS && WARPS_N * WARP_N == TILE_N, "warps cover the tile");

struct alignas(32) Stage {
    Element a[TILE_M * A_PITCH];
    Element b[TILE_K * B_PITCH];
};

union Shared {
    Stage stages[STAGES];
    float patches[THREADS / 32][FRAGMENT * PATCH_PITCH];  // after the last step
};

// Start copying a step's tiles; what lies outside of A and B becomes 0.
INLINE void copy_step(const Arguments& args, const Tile& tile, int k, Stage& stage) {
    constexpr int A_CHUNKS = TILE_K / PER, B_CHUNKS = TILE_N / PER;
#pragma unroll
    for (int pass = 0; pass < TILE_M * A_CHUNKS / THREADS; ++pass) {
        const int i = pass * THREADS + threadIdx.x;
        const int row = i / A_CHUNKS, first = i % A_CHUNKS * PER;
        const int valid = tile.row + row < args.m ? args.k - k - first : 0;
        copy_chunk<A_ALIGN>(&stage.a[row * A_PITCH + first], args.a + (tile.row + row) * args.lda + k + first, valid);
    }
#pragma unroll
    for (int pass = 0; pass < TILE_K * B_CHUNKS / THREADS; ++pass) {
        const int i = pass * THREADS + threadIdx.x;
        const int row = i / B_CHUNKS, first = i % B_CHUNKS * PER;
        const int valid = k + row < args.k ? args.n - tile.column - first : 0;
        const Element* source = args.b + (k + row) * args.ldb + tile.column + first;
        copy_chunk<B_ALIGN>(&stage.b[row * B_PITCH + first], source, valid);
    }
    cp_async_commit();
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(const Arguments args) {
    __shared__ Shared shared;

    const Tile tile = tile_of_block(args);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / WARPS_N * WARP_M, column = warp % WARPS_N * WARP_N;  // the warp's, in the tile

    wmma::fragment<wmma::accumulator, FRAGMENT, FRAGMENT, FRAGMENT, float> sums[TILES_M][TILES_N];
#pragma unroll
    for (int i = 0; i < TILES_M; ++i)
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) wmma::fill_fragment(sums[i][j], 0.0f);

    const int steps = (args.k + TILE_K - 1) / TILE_K;
    if (steps > 0) copy_step(args, tile, 0, shared.stages[0]);
    for (int step = 0; step < steps; ++step) {
        cp_async_wait<0>();
        __syncthreads();
        if (step + 1 < steps) copy_step(args, tile, (step + 1) * TILE_K, shared.stages[(step + 1) % STAGES]);

        const Number* a_tile = reinterpret_cast<const Number*>(shared.stages[step % STAGES].a);
        const Number* b_tile = reinterpret_cast<const Number*>(shared.stages[step % STAGES].b);
#pragma unroll
        for (int k = 0; k < TILE_K; k += FRAGMENT) {
            wmma::fragment<wmma::matrix_a, FRAGMENT, FRAGMENT, FRAGMENT, Number, wmma::row_major> a[TILES_M];
            wmma::fragment<wmma::matrix_b, FRAGMENT, FRAGMENT, FRAGMENT, Number, wmma::row_major> b[TILES_N];
#pragma unroll
            for (int i = 0; i < TILES_M; ++i)
                wmma::load_matrix_sync(a[i], a_tile + (row + i * FRAGMENT) * A_PITCH + k, A_PITCH);
#pragma unroll
            for (int j = 0; j < TILES_N; ++j)
                wmma::load_matrix_sync(b[j], b_tile + k * B_PITCH + column + j * FRAGMENT, B_PITCH);
#pragma unroll
            for (int i = 0; i < TILES_M; ++i)
#pragma unroll
                for (int j = 0; j < TILES_N; ++j) wmma::mma_sync(sums[i][j], a[i], b[j], sums[i][j]);
        }
    }

    __syncthreads();  // patches lie where the last step's tiles were
    const Epilogue epilogue(args.epilogue);
    float* patch = shared.patches[warp];
    const int patch_row = lane / 2, patch_column = lane % 2 * RUN;
#pragma unroll
    for (int i = 0; i < TILES_M; ++i)
#pragma unroll
        for (int j = 0; j < TILES_N; ++j) {
            wmma::store_matrix_sync(patch, sums[i][j], PATCH_PITCH, wmma::mem_row_major);
            __syncwarp();
            float run[RUN];
#pragma unroll
            for (int r = 0; r < RUN; ++r) run[r] = patch[patch_row * PATCH_PITCH + patch_column + r];
            __syncwarp();
            write(args, epilogue, tile.row + row + i * FRAGMENT + patch_row,
                  tile.column + column + j * FRAGMENT + patch_column, run);
        }
}
