// A copy of an operand as TMA and wgmma take it: rows of K, contiguous along K and aligned to 16 bytes. TF32 operands are
// rounded on the way, to the nearest.
#pragma once

struct Packing {
    const Element* source;
    Element* target;
    long long row_stride, k_stride;  // of the source, in elements
    long long pitch;                 // of the target's rows, a multiple of 4 that has room for all of K
    int rows, k;
};

constexpr int PACK_TILE = 64;  // rows, and elements of K, of a block of 256 threads

INLINE Element packed(Element x) {
    if constexpr (sizeof(Element) == 4) {
        unsigned bits;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
        return __uint_as_float(bits);
    } else {
        return x;
    }
}

struct alignas(4 * sizeof(Element)) Four {
    Element values[4];
};

extern "C" __global__ void __launch_bounds__(256) CUTEGEMM_NAME(_pack)(const Packing given) {
    __shared__ Element tile[PACK_TILE][PACK_TILE + 1];
    const int across = (given.k + PACK_TILE - 1) / PACK_TILE;
    const int first_row = blockIdx.x / across * PACK_TILE, first_k = blockIdx.x % across * PACK_TILE;
    const bool turned = given.row_stride == 1 && given.k_stride != 1;  // neighbours are rows: they are read side by side
    if (turned) {
        const int row = first_row + threadIdx.x % PACK_TILE;
#pragma unroll
        for (int i = threadIdx.x / PACK_TILE; i < PACK_TILE; i += 256 / PACK_TILE)
            if (row < given.rows && first_k + i < given.k)
                tile[i][threadIdx.x % PACK_TILE] = given.source[row + (first_k + i) * given.k_stride];
        __syncthreads();
    }
    const int place = threadIdx.x % 16 * 4, k = first_k + place;
    if (k >= given.k) return;
#pragma unroll
    for (int i = threadIdx.x / 16; i < PACK_TILE; i += 16) {
        const int row = first_row + i;
        if (row >= given.rows) continue;
        Four four = {};
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (k + j < given.k)
                four.values[j] =
                    packed(turned ? tile[place + j][i] : given.source[row * given.row_stride + (k + j) * given.k_stride]);
        *reinterpret_cast<Four*>(given.target + row * given.pitch + k) = four;
    }
}
