// Level 9, specialized: whole tiles without a question asked, and K split where there are too few tiles.
//
// Exact shapes. A block whose tile lies wholly inside of D, with a K of whole steps and rows of whole chunks, has
// nothing to check: its copies carry no predicate, no count of valid bytes, no zero fill. All its threads know that
// from its place, so they take one of two main loops together, barriers and all. Padding M and N to the tile would make
// every block such a one, at the price of computing and storing what nobody reads; here only the blocks at the edges
// take the loop that pads with zeros.
//
// Split-K. D of 1024 x 1024 is 32 tiles of 256 x 128: 100 of 132 SMs would have nothing to do. The launch gives each
// tile `splits` blocks instead, each a part of K (`Level.splits`). Their sums are fp32, in a workspace, and added up
// once:
//   each block stores its sums; barrier; one thread takes a ticket (an atomic that releases what was stored)
//   who finds itself the last reads all the parts, in the order of K, adds, and finishes the tile
// Nobody waits for anybody, so nothing can hang. Which block is last differs from run to run; the order of the sum does
// not, and so every run has the same bits. alpha, beta and the epilogue are applied once, to whole sums.
//
// Arithmetic intensity. As level 8: 85 FLOP a byte from global memory. A split tile moves its 256 * 128 * 4 bytes to
// and from L2 once a part, which pays while a part's K is long: 2 * 256 * 128 * K / splits FLOP for 2 * 256 * 128 * 4
// bytes are K / (4 splits) FLOP a byte, hence no parts of less than a few steps.
//
// In the profiler: against level 8 fewer instructions a step, the tensor pipe's share a few points up. With a split:
// waves of blocks near a whole number; and the sectors of the workspace, written and read once each.
#include "multistage.cuh"

// A lane's sums as they are stored: 16 bytes of each lane side by side.
constexpr int VECTORS = WARP_M / MMA_M * (WARP_N / MMA_N);

INLINE void store_part(float* part, const Sums& sums) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const float(&s)[4] = sums[v / (WARP_N / MMA_N)][v % (WARP_N / MMA_N)];
        reinterpret_cast<float4*>(part)[v * THREADS + threadIdx.x] = make_float4(s[0], s[1], s[2], s[3]);
    }
}

INLINE void add_part(const float* part, Sums& sums) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        float(&s)[4] = sums[v / (WARP_N / MMA_N)][v % (WARP_N / MMA_N)];
        const float4 other = reinterpret_cast<const float4*>(part)[v * THREADS + threadIdx.x];
        s[0] += other.x;
        s[1] += other.y;
        s[2] += other.z;
        s[3] += other.w;
    }
}

// What is a block's: a tile, and which part of K. The parts of a tile are neighbours in the grid.
struct Share {
    int number, split;
    Tile tile;

    INLINE Share(const Arguments& args, unsigned block)
        : number(block / args.splits), split(block % args.splits), tile(tile_of(args, number)) {}
};

// The sums of this block's part of K.
INLINE void compute(const Arguments& args, const Share& share, Sums& sums) {
    Stage* stages = reinterpret_cast<Stage*>(dynamic_shared_memory());
    const long long steps = (args.k + TILE_K - 1) / TILE_K;
    const int first = static_cast<int>(steps * share.split / args.splits);
    const int end = static_cast<int>(steps * (share.split + 1) / args.splits);
    const Tile tile = share.tile;
    const Warp warp;
    const Copier copier(args, tile, first * TILE_K);
    const bool inside = tile.row + TILE_M <= args.m && tile.column + TILE_N <= args.n && end * TILE_K <= args.k;
    if (A_ALIGN >= 16 && B_ALIGN >= 16 && inside) {
        multistage<false>(copier, stages, warp, end - first, sums);
    } else {
        multistage<true>(copier, stages, warp, end - first, sums);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) KERNEL(const Arguments args) {
    Sums sums = {};
    compute(args, Share(args, block_index()), sums);

    const Share share(args, block_index());  // asked again: the main loop has no registers left for it
    if (args.splits > 1) {
        constexpr int PART = TILE_M * TILE_N;
        float* parts = args.parts + static_cast<long long>(share.number) * args.splits * PART;
        store_part(parts + share.split * PART, sums);
        __syncthreads();
        const bool last = threadIdx.x == 0 && take_ticket(args.tickets + share.number) == args.splits - 1;
        if (!__syncthreads_or(last)) return;  // all of the block, or none
#pragma unroll
        for (int i = 0; i < WARP_M / MMA_M; ++i)
#pragma unroll
            for (int j = 0; j < WARP_N / MMA_N; ++j)
#pragma unroll
                for (int x = 0; x < 4; ++x) sums[i][j][x] = 0.0f;
#pragma unroll 1
        for (int s = 0; s < args.splits; ++s) add_part(parts + s * PART, sums);
    }
    write(args, share.tile, Warp(), sums);
}
