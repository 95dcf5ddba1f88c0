// Level 8, tuned: level 7 as a template, and its numbers chosen.
//
// What there is to choose: the block's tile, the warp's, the depth of a step, how many stages.
//
//   configuration            tile         warp     warps  stages  shared memory  blocks an SM
//   level8                   256x128x64   64x64    8      3       144 KB         1
//   level8-256x128x32        256x128x32   64x64    8      4       96 KB          1
//   level8-128x256x32        128x256x32   64x64    8      4       96 KB          1
//   level8-128x128x32        128x128x32   64x64    4      4       64 KB          2
//
// Larger is better for traffic, and registers set the end: a warp of 64 x 64 holds 128 sums a lane, two depths'
// fragments are 64 registers more, and 255 is what a lane can have. Eight such warps take an SM's registers, all
// 65,536.
//
// Arithmetic intensity. From shared memory 2 * 64 * 64 / (2 * (64 + 64)) = 32 FLOP a byte for warps of 64 x 64, against
// 21 of level 7's 32 x 64: what an SM's 128 bytes a clock and 4096 FLOP a clock ask for. From global memory a block of
// 256 x 128 has 2 * 256 * 128 / (2 * (256 + 128)) = 85 FLOP a byte, against 64 of 128 x 128.
//
// With half of level 7's warps or less on an SM, fewer others can run while one waits. So waits have to go
// (`multistage.cuh`): fragments are loaded one depth ahead, into the other of two sets of registers, copies are spread
// over a step's depths, and there is little else in the loop. A deeper step (64) has half the barriers, and costs
// stages.
//
// In the profiler: compare the configurations' share of the tensor pipe with their stalls. "Barrier" leads where steps
// are shallow, "long scoreboard" where stages are few, "math pipe throttle" where all is well; waves of blocks (512
// tiles of 256 x 128 at N = 4096, on 132 SMs: 3.9) say how much of the last one idles.
#include "multistage.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) KERNEL(const Arguments args) {
    Stage* stages = reinterpret_cast<Stage*>(dynamic_shared_memory());
    const Tile tile = tile_of_block(args);
    const Warp warp;
    const Copier copier(args, tile);
    Sums sums = {};
    multistage<true>(copier, stages, warp, (args.k + TILE_K - 1) / TILE_K, sums);
    write(args, tile, warp, sums);
}
