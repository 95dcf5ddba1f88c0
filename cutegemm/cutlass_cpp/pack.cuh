// A copy of an operand as TMA and wgmma take it: rows of K, contiguous along K and aligned to 16 bytes. TF32 operands are
// rounded on the way, to the nearest.
#pragma once

struct Packing {
    const Element* source;
    Element* target;
    long long row_stride, k_stride;  // of the source, in elements
    long long pitch;                 // of the target's rows
    int rows, k;
};

constexpr int PACK_TILE = 64;                       // rows, and elements of K, of a block
constexpr int PACK_LINES = 256 / PACK_TILE;         // that its threads load or store side by side
constexpr int PACK_TURNS = PACK_TILE / PACK_LINES;

INLINE fp32 packed(fp32 x) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}
template <typename T>
INLINE T packed(T x) {
    return x;
}

extern "C" __global__ void __launch_bounds__(256) CUTEGEMM_NAME(_pack)(const Packing given) {
    __shared__ Element tile[PACK_TILE][PACK_TILE + 1];
    const int across = (given.k + PACK_TILE - 1) / PACK_TILE;
    const int first_row = blockIdx.x / across * PACK_TILE, first_k = blockIdx.x % across * PACK_TILE;
    const int lane = threadIdx.x % PACK_TILE, line = threadIdx.x / PACK_TILE;
    // Neighbouring threads load neighbours: of a row, or where rows are neighbours, of a column, which is turned here.
    const bool turned = given.row_stride == 1 && given.k_stride != 1;

    Element values[PACK_TURNS];  // all loads are under way before the first store
#pragma unroll
    for (int i = 0; i < PACK_TURNS; ++i) {
        const int other = line + i * PACK_LINES;
        const int row = first_row + (turned ? lane : other), k = first_k + (turned ? other : lane);
        if (row < given.rows && k < given.k) values[i] = given.source[row * given.row_stride + k * given.k_stride];
    }
    if (turned) {
#pragma unroll
        for (int i = 0; i < PACK_TURNS; ++i) tile[line + i * PACK_LINES][lane] = values[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PACK_TURNS; ++i) values[i] = tile[lane][line + i * PACK_LINES];
    }
#pragma unroll
    for (int i = 0; i < PACK_TURNS; ++i) {
        const int row = first_row + line + i * PACK_LINES, k = first_k + lane;
        if (row < given.rows && k < given.k) given.target[row * given.pitch + k] = packed(values[i]);
    }
}
