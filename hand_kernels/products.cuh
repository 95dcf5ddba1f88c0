// How a warp's sums go to D from registers, on levels 7 to 10: products of 16 x 8, dealt out to lanes as by mma.sync
// (`ptx.cuh`), which wgmma does too.
#pragma once
#include "common.cuh"

// Four lanes hold, each, two columns of every one of four products: values[j] is the lane's pair of product j. They
// exchange them so that each lane has one product's eight columns, in order: product lane % 4.
INLINE void exchange(float (&values)[4][2]) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const bool upper = threadIdx.x & bit;
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int c = 0; c < 2; ++c)
                if ((j & bit) == 0) {
                    float &low = values[j][c], &high = values[j | bit][c];
                    const float other = shuffle_xor(upper ? low : high, bit);
                    low = upper ? other : low;
                    high = upper ? high : other;
                }
    }
}

// Sums of products side by side, 16 rows from `row` on and 8 columns each from `column` on, into D: runs of 8 columns,
// 16 bytes of a 16-bit D, from neighbouring lanes.
template <int PRODUCTS>
INLINE void write_products(const Arguments& args, const Epilogue& epilogue, int row, int column,
                           const float (&sums)[PRODUCTS][4]) {
    static_assert(PRODUCTS % 4 == 0, "four lanes exchange four products");
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < PRODUCTS; j += 4)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float values[4][2], run[8];
#pragma unroll
            for (int x = 0; x < 8; ++x) values[x / 2][x % 2] = sums[j + x / 2][2 * half + x % 2];
            exchange(values);
#pragma unroll
            for (int x = 0; x < 8; ++x) run[x] = values[x / 2][x % 2];
            write(args, epilogue, row + 8 * half + lane / 4, column + (j + lane % 4) * 8, run);
        }
}
