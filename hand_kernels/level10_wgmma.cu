// Level 10, wgmma: Hopper's way. Copies and products are each one instruction, and warps have one job each.
//
// Through level 9 every warp copies, loads fragments and multiplies, and mma.sync reaches two thirds of an H100's peak
// at best. Hopper takes all of that from the warps:
//   TMA       one thread asks for a whole box of a matrix. A unit of the SM computes the addresses, swizzles, fills up
//             with zeros beyond the edges and counts the bytes at an mbarrier
//   wgmma     four warps multiply 64 x 256 x 16 in one instruction, that reads A and B from shared memory by itself and
//             runs on while the warps do something else: no fragments, no ldmatrix. Only sums are in registers
//   clusters  two blocks on neighbouring SMs take the tiles above one another. Both need the same B: each copies half
//             of it into the shared memory of both (multicast)
//
//   cluster   256 x 256 of D, 2 blocks; as many clusters as the GPU has room for, each takes tile after tile
//   block     128 x 256, 384 threads
//   warps     a warpgroup (4 warps) of which one thread produces, and two that consume, 64 x 256 of D each
//   step      64 of K: 16 KB of A and 32 KB of B; 4 stages of them
//
// Warp specialisation. The producer runs ahead, also into the next tile while the consumers still write the last one.
// It needs few registers and gives the others away (setmaxnreg); 128 sums a thread and an epilogue need many.
// Two mbarriers for each stage carry all that they have to say to each other:
//   full      the producer has announced 48 KB, and they have come: 16 KB of A, and B's halves from either block
//   empty     four warpgroups, the consumers of both blocks, have read the stage: a block may copy into both again
// Consumers keep one step's products under way, and give a stage back when the next one's have been issued.
//
// Arithmetic intensity. wgmma reads 64 x 16 of A and 16 x 256 of B for 2 * 64 * 256 * 16 FLOP, from shared memory
// 2 * 64 * 256 / (2 * (64 + 256)) = 51 FLOP a byte, where the peak of 4096 FLOP and 128 bytes a clock asks for 32;
// groups of 128 x 128, two products of 64 x 128 each, would have 43. From L2 a cluster has
// 2 * 256 * 256 / (2 * (256 + 256)) = 128 FLOP a byte, half as much again as level 8's 85: a step is 1024 clocks of an
// SM's tensor cores, and its block asks for 32 KB, 32 bytes a clock.
//
// In the profiler: no LDS, no LDGSTS, no bank conflicts; HGMMA, and UTMALDG from one thread. The tensor pipe near the
// peak that power allows (a large GEMM of random numbers is clocked down), and little else to see: consumers wait at
// wgmma's own wait, the producer at empty stages. Waves count clusters: 1024 tiles of 256 x 256 at N = 8192, on 66
// clusters: 15.5.
#include "common.cuh"
#include "layouts.cuh"
#include "products.cuh"
#include "ptx_hopper.cuh"

constexpr int WARPGROUP = 128, CONSUMERS = THREADS / WARPGROUP - 1, WGMMA_M = 64, WGMMA_N = 256, WGMMA_K = 16;
constexpr int ROW = WGMMA_ROW / int(sizeof(Element));            // elements of a row in shared memory
constexpr int BOXES = TILE_N / ROW, OWN_BOXES = BOXES / CLUSTER;  // of B: a step's, and those that one block copies
static_assert(TILE_M == CONSUMERS * WGMMA_M && TILE_N == WGMMA_N && TILE_K == ROW, "a wgmma for each consumer and k");
static_assert(BOXES % CLUSTER == 0, "blocks of a cluster share B out");

struct Stage {
    Element a[TILE_M * ROW];
    Element b[BOXES][TILE_K * ROW];
};

struct Shared {
    Stage stages[STAGES];
    Barrier full[STAGES], empty[STAGES];
};

struct TensorMaps {
    TensorMap a, b;  // boxes of TILE_M x ROW and TILE_K x ROW
};

// Which stage is next, for producer and consumers alike, and the parity of its full barrier's phase.
struct Turn {
    int stage = 0;
    unsigned parity = 0;

    INLINE void next() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// The tiles of a cluster, one after the other, and of each the block's own: blocks of a cluster lie one below the next.
struct Walk {
    unsigned number = blockIdx.x / CLUSTER;

    INLINE bool done(const Arguments& args) const {
        const unsigned rows = (args.m - 1) / (CLUSTER * TILE_M) + 1, columns = (args.n - 1) / TILE_N + 1;
        return number >= rows * columns;
    }
    INLINE Tile tile(const Arguments& args) const {
        const Tile first = tile_of<RASTER, CLUSTER * TILE_M>(args, number);
        return {first.row + static_cast<int>(cluster_rank()) * TILE_M, first.column};
    }
    INLINE void next() { number += gridDim.x / CLUSTER; }
};

INLINE int steps_of(const Arguments& args) { return (args.k + TILE_K - 1) / TILE_K; }

// One thread copies for the whole block: its tile of A, and its boxes of B for the cluster.
INLINE void produce(const Arguments& args, const TensorMaps& maps, Shared& shared) {
    constexpr unsigned short EVERY_BLOCK = (1 << CLUSTER) - 1;
    const int steps = steps_of(args), first_box = cluster_rank() * OWN_BOXES;
    Turn turn;
    for (Walk walk; !walk.done(args); walk.next()) {
        const Tile tile = walk.tile(args);
        for (int step = 0; step < steps; ++step, turn.next()) {
            Stage& stage = shared.stages[turn.stage];
            Barrier& full = shared.full[turn.stage];
            barrier_wait(shared.empty[turn.stage], turn.parity ^ 1);  // of the stage's last use, the first is at once
            barrier_expect(full, sizeof(Stage));                      // its own copies and the other block's
            const int k = step * TILE_K;
            tma_load(stage.a, maps.a, tile.row, k, full);
#pragma unroll
            for (int box = first_box; box < first_box + OWN_BOXES; ++box)
                tma_load(stage.b[box], maps.b, k, tile.column + box * ROW, full, EVERY_BLOCK);
        }
    }
}

using Sums = float[WGMMA_N / 8][4];

template <typename T>
INLINE void wgmma(Sums& sums, unsigned long long a, unsigned long long b, int add);
template <>
INLINE void wgmma<fp16>(Sums& sums, unsigned long long a, unsigned long long b, int add) {
    wgmma_fp16(sums, a, b, add);
}
template <>
INLINE void wgmma<bf16>(Sums& sums, unsigned long long a, unsigned long long b, int add) {
    wgmma_bf16(sums, a, b, add);
}

// A warpgroup's rows of every tile.
INLINE void consume(const Arguments& args, Shared& shared, int consumer) {
    const int steps = steps_of(args), thread = threadIdx.x % WARPGROUP;
    const int first_row = consumer * WGMMA_M;
    const Epilogue epilogue(args.epilogue);
    Sums sums = {};  // and so they stay if there is no K; a tile's first products replace what the last one left
    Turn turn;
    for (Walk walk; !walk.done(args); walk.next()) {
        int reading = 0;  // the stage whose products are under way
        for (int step = 0; step < steps; ++step, turn.next()) {
            barrier_wait(shared.full[turn.stage], turn.parity);
            const unsigned a = shared_address(&shared.stages[turn.stage].a[first_row * ROW]);
            const unsigned b = shared_address(shared.stages[turn.stage].b);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < TILE_K; k += WGMMA_K)
                wgmma<Element>(sums, wgmma_a(a, k), wgmma_b<TILE_K>(b, k), step > 0 || k > 0);
            wgmma_commit();
            // What is left under way is this step; the one before has been read. Thread r tells block r.
            wgmma_wait<1>();
            if (step > 0 && thread < CLUSTER) barrier_arrive(shared.empty[reading], thread);
            reading = turn.stage;
        }
        wgmma_wait<0>();
        if (steps > 0 && thread < CLUSTER) barrier_arrive(shared.empty[reading], thread);
        const Tile tile = walk.tile(args);
        write_products(args, epilogue, tile.row + first_row + thread / 32 * 16, tile.column, sums);
        __syncwarp();  // wgmma takes warps that are together
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    KERNEL(const Arguments args, const __grid_constant__ TensorMaps maps) {
    Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(shared.full[stage], 1);
            barrier_init(shared.empty[stage], CLUSTER * CONSUMERS);
        }
        barrier_init_fence();
    }
    cluster_sync();
    // One of the three groups produces. Registers come in eights: 40 + 2 * 232 are what 3 * 168 were.
    const int warpgroup = threadIdx.x / WARPGROUP;
    if (warpgroup == CONSUMERS) {
        keep_registers<40>();
        if (threadIdx.x % WARPGROUP == 0) produce(args, maps, shared);
    } else {
        take_registers<232>();
        consume(args, shared, warpgroup);
    }
    cluster_sync();  // a block that left would take its shared memory along, where the other one still signals
}
